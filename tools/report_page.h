// The page of `deft report`: its HTML, style, script and the library that plots, in one text. They are files in tools/report, which
// the build puts into the program; dygraphs comes from the system (libjs-dygraphs, MIT license).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace deft::tools {

std::string report_page(const nlohmann::json& data);

}  // namespace deft::tools
