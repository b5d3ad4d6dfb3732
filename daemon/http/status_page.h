// The daemon's status as a page for a browser: tables, no script, nothing from elsewhere. It loads itself anew every few seconds.
//
//   status_page(status)
//
// Whatever stands in the status (names that users and peers chose) is escaped.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace deft::daemon {

inline constexpr const char* kPageType = "text/html; charset=utf-8";

std::string status_page(const nlohmann::json& status);

}  // namespace deft::daemon
