// Makes a traced job fit into less memory (dPRO, Algorithm 1, line 1): by gradient accumulation or by recomputation, whichever is
// faster.
//
//   const auto fit = fit_memory(measured, std::uint64_t{8} << 30);   // an error: neither does
//   if (!fit->is_needed()) ...                                        // the job fits as it is
//   fit->chosen().what_if                                             // search() takes it: SearchLimits::memory
//
// Accumulation takes the fewest micro-batches that fit, of those that divide the batch. Recomputation tries ranges of layers: modules of
// each depth of the model, and several neighbours of a list together. It takes range after range, the one first whose forward takes the
// least time for what it frees above the limit. Replay tells how long a step of each takes. All workers must fit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/replay/measured_job.h"
#include "core/replay/memory_peak.h"

namespace deft::optimize {

struct MemoryFit {
  struct Choice {
    replay::MemoryWhatIf what_if;
    double peak_bytes = 0;  // of the worker that needs most
    double step_us = 0;     // by replay, with the traced settings
  };
  std::uint64_t limit_bytes = 0;
  Choice traced;
  std::optional<Choice> accumulation = {};  // that fits; empty also if none is needed
  std::optional<Choice> recomputation = {};

  [[nodiscard]] bool is_needed() const { return traced.peak_bytes > static_cast<double>(limit_bytes); }
  // The fastest that fits.
  [[nodiscard]] const Choice& chosen() const;
};

// kInvalid if the trace tells nothing of memory, or if the job cannot be replayed; kExhausted, saying what the least is, if nothing fits.
Result<MemoryFit> fit_memory(const replay::MeasuredJob& measured, std::uint64_t limit_bytes);

}  // namespace deft::optimize
