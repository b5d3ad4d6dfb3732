// Puts into words what `deft optimize --memory` finds: how the job fits, and what the script has to do for that.
//
//   for (const std::string& line : memory_advice(*fit, measured)) ...
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/optimize/memory_fit.h"

namespace deft::tools {

std::vector<std::string> memory_advice(const optimize::MemoryFit& fit, const replay::MeasuredJob& measured);
nlohmann::json memory_fit_json(const optimize::MemoryFit& fit, const replay::MeasuredJob& measured);

}  // namespace deft::tools
