#include "daemon/channel/traffic_meter.h"

#include <algorithm>
#include <utility>

namespace deft::daemon {
namespace {

constexpr TimeUs kPeriodUs = 100'000;
constexpr TimeUs kPeersAPeriod = 16;  // of a link with more nodes, which asks the kernel for more connections, seldomer

link::PeerTraffic less(link::PeerTraffic now, const link::PeerTraffic& before) {
  now.sent_bytes -= std::min(now.sent_bytes, before.sent_bytes);
  now.busy_us -= std::min(now.busy_us, before.busy_us);
  now.resent -= std::min(now.resent, before.resent);
  now.pushed_bytes -= std::min(now.pushed_bytes, before.pushed_bytes);  // a new connection begins anew
  now.pushing_us -= std::min(now.pushing_us, before.pushing_us);
  return now;
}

}  // namespace

void TrafficMeter::use(const link::Link* link) {
  counters_ = dynamic_cast<const link::TrafficCounters*>(link);
  if (counters_ == nullptr) return;
  period_us_ = kPeriodUs * (1 + link->nodes() / kPeersAPeriod);
  last_us_ = MonotonicClock::now();
  last_ = counters_->traffic();
}

void TrafficMeter::measure(TransferDone& done) {
  const TimeUs now_us = MonotonicClock::now();
  if (counters_ == nullptr || now_us - last_us_ < period_us_) return;
  auto traffic = counters_->traffic();
  for (const link::PeerTraffic& peer : traffic) {
    const auto before = std::ranges::find(last_, peer.peer, &link::PeerTraffic::peer);
    done.traffic.push_back(before == last_.end() ? peer : less(peer, *before));
  }
  done.traffic_since_us = std::exchange(last_us_, now_us);
  last_ = std::move(traffic);
}

}  // namespace deft::daemon
