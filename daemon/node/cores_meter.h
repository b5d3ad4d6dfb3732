// Measures, twice a second at most, how busy the cores are on which a node's workers may run, and how much of that is the job's own work.
//
//   CoresMeter meter;
//   if (const auto use = meter.measure(now_us, pids)) record(*use);   // empty: it is not time, or not all is known
//
// The rest of the cores' time is the work of other programs. The kernel counts what cores did in steps of 10 ms, and processes exactly.
// One thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/trace/cores_trace.h"

namespace deft::daemon {

struct CoresUse {
  TimeUs since_us = 0, until_us = 0;
  trace::CoresTrace trace;
};

class CoresMeter {
 public:
  CoresMeter() = default;
  // `proc`: a folder with the kernel's files.
  explicit CoresMeter(std::string proc) : proc_(std::move(proc)) {}

  // `workers`: the processes of the node's workers. A call with other ones than before only begins, and so does the first one.
  std::optional<CoresUse> measure(TimeUs now_us, std::span<const pid_t> workers);

 private:
  struct Sums {  // since the kernel or a process began
    std::vector<pid_t> workers;
    trace::CoresTrace trace;
  };
  [[nodiscard]] std::optional<Sums> read(std::span<const pid_t> workers) const;

  const std::string proc_ = "/proc";
  std::optional<Sums> last_;  // at last_us_
  TimeUs last_us_ = 0;
};

}  // namespace deft::daemon
