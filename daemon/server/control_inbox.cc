#include "daemon/server/control_inbox.h"

#include <glog/logging.h>

namespace deft::daemon {

bool ControlInbox::receive(const Peer& from, std::span<const std::byte> message) {
  const auto received = wire::Received::parse(message);
  if (!received) return reject(drops_.unreadable, received.error().what);
  if (const auto error = versions_.mismatch(*received)) {
    if (const auto answer = versions_.answer(from, *received)) control_.send(from, *answer);
    jobs_.peer_mismatched(from, *received, *error);
    return reject(drops_.other_version, error->what);
  }
  switch (jobs_.receive(from, *received)) {
    case JobTable::Delivery::kTaken: return true;
    case JobTable::Delivery::kStranger: return reject(drops_.stranger, "its sender has not joined the job");
    case JobTable::Delivery::kTurnedAway: ++drops_.stranger; return false;
    case JobTable::Delivery::kUnclaimed: ++drops_.unclaimed; return false;
  }
  return false;
}

bool ControlInbox::reject(std::uint64_t& count, const std::string& why) {
  ++count;
  const auto left_out = lines_.admit(clock_.now_us());
  if (left_out) LOG(WARNING) << "a control message was rejected: " << why << RateLimit::describe(*left_out);
  return false;
}

}  // namespace deft::daemon
