// The record of how busy a node's cores were: by the job, and by other programs.
//
//   TraceRecord record(since_us, until_us, CoresTrace{.busy_us = 900'000, .own_us = 300'000, .which = 3, .cores = 2, .workers = 1});
#pragma once

#include <cstdint>

#include "core/trace/record.h"

namespace deft::trace {

// How busy the cores were between begin and end on which this node's workers may run. Nodes of one machine may share them.
struct CoresTrace {
  static constexpr TraceKind kKind = TraceKind::kCores;
  std::uint64_t busy_us = 0;  // of all these cores together, for whatever program; interrupts are left out
  std::uint64_t own_us = 0;   // processor time of this node's workers and its daemon
  std::uint64_t waited_us =
      0;  // in which the main threads of the workers were ready to run, and had no core; of all together
  std::uint64_t which = 0;  // bit i: core i is one of them, or core i + 64, or i + 128, ...
  std::uint16_t cores = 0;
  std::uint16_t workers = 0;
};

}  // namespace deft::trace
