// The page of `deft report`: its HTML, style, script and the library that plots, in one text. They are files in tools/report, which
// the build puts into the program; dygraphs comes from the system (libjs-dygraphs, MIT license).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "core/base/clock.h"
#include "core/replay/explain.h"
#include "tools/traced_job.h"

namespace deft::tools {

std::string report_page(const nlohmann::json& data);

// The page of a traced job, with what if as far as replays take no longer than `budget_us`, and beside `other`, if that is not null. `folder`
// is shown. kInvalid if the file cannot be written.
Result<void> write_report(const TracedJob& job, const replay::Explanation& explanation, const std::string& folder,
                          TimeUs budget_us, const std::string& file, const nlohmann::json& other = nullptr);

}  // namespace deft::tools
