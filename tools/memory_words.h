// Tells in words and as JSON what replay says of the workers' memory.
//
//   print_memory(measured, what_if)                 // "memory: rank 0 needs 412.3 MB in backward of conv1: ..."
//   memory_json(measured, what_if)                  // null if no worker has told
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "core/replay/measured_job.h"
#include "core/replay/memory_peak.h"

namespace deft::tools {

void print_memory(const replay::MeasuredJob& measured, const replay::MemoryWhatIf& what_if);
nlohmann::json memory_json(const replay::MeasuredJob& measured, const replay::MemoryWhatIf& what_if);

}  // namespace deft::tools
