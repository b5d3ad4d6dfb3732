// Measures, ten times a second at most, how much processor time some threads of the daemon use, for traces.
//
//   CpuMeter meter({{model::DaemonThread::kLink, 0, CLOCK_THREAD_CPUTIME_ID}});   // the thread that measures
//   meter.use(link);                                                              // and the link's own, if it names them
//   const CpuTimes times = meter.measure(now_us);                                 // empty, if it is not time
//
// One thread.
#pragma once

#include <vector>

#include "core/base/clock.h"
#include "core/link/link.h"
#include "core/link/thread_clocks.h"
#include "daemon/channel/transfer.h"

namespace deft::daemon {

class CpuMeter {
 public:
  explicit CpuMeter(std::vector<link::ThreadClock> own) : own_(std::move(own)) {}

  // The link outlives this object, or the next call. Null: none.
  void use(const link::Link* link) { link_ = dynamic_cast<const link::ThreadClocks*>(link); }
  // What each thread has used since the last time that this was not empty. The first call only begins.
  CpuTimes measure(TimeUs now_us);

 private:
  [[nodiscard]] std::vector<ThreadTime> used() const;  // since the threads began

  const std::vector<link::ThreadClock> own_;
  const link::ThreadClocks* link_ = nullptr;
  std::vector<ThreadTime> last_;  // at last_us_
  TimeUs last_us_ = 0;
  bool has_begun_ = false;
};

}  // namespace deft::daemon
