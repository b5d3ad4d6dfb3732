// The daemon's status in Prometheus' text format.
//
//   metrics_text(status)   // "# HELP deft_jobs ...\n# TYPE deft_jobs gauge\ndeft_jobs 2\n..."
//
// The status is the one account of the daemon's work: each family of metrics names the place in it that it shows, in the table of
// metrics_text.cc. A place that is not in `status` gives no sample.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace deft::daemon {

inline constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

std::string metrics_text(const nlohmann::json& status);

}  // namespace deft::daemon
