// Now and then notes in a finished transfer how many bytes its link has carried since the last time, for traces.
//
//   meter.use(link);           // null, or a link without counters: nothing is measured
//   meter.measure(done);       // fills done.traffic if it is time
//
// The thread of the link.
#pragma once

#include <vector>

#include "core/link/link.h"
#include "daemon/channel/transfer.h"

namespace deft::daemon {

class TrafficMeter {
 public:
  void use(const link::Link* link);
  void measure(TransferDone& done);

 private:
  const link::TrafficCounters* counters_ = nullptr;
  TimeUs period_us_ = 0;
  std::vector<link::PeerTraffic> last_;  // at last_us_
  TimeUs last_us_ = 0;
};

}  // namespace deft::daemon
