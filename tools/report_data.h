// Makes the JSON that the page of `deft report` shows of one traced job. page.js says how it is drawn.
//
//   const auto data = report_data(*job, *explanation);         // text in it is that of the trace: the page must not trust it
//   data["what_if"] = what_if_grid(job->measured, budget_us);
//
// Columns, not objects: a timeline has some hundred thousand slices. Times are microseconds since the beginning of the trace.
#pragma once

#include <nlohmann/json.hpp>

#include "core/base/clock.h"
#include "core/replay/explain.h"
#include "tools/traced_job.h"

namespace deft::tools {

nlohmann::json report_data(const TracedJob& job, const replay::Explanation& explanation);

// The step time of the job under each policy, with links, computes and nodes of several speeds and numbers, by replay. The points next
// to the traced job come first. Those for which the time does not suffice are null.
nlohmann::json what_if_grid(const replay::MeasuredJob& measured, TimeUs budget_us);

}  // namespace deft::tools
