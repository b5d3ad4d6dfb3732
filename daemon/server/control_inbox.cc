#include "daemon/server/control_inbox.h"

#include <glog/logging.h>

namespace deft::daemon {

bool ControlInbox::receive(const Peer& from, std::span<const std::byte> message) {
  const auto header = wire::header_of(message);
  if (!header) return reject(drops_.unreadable, header.error().what);
  if (header->version != wire::kControlVersion) return reject_mismatch(from, message);
  switch (jobs_.receive(from, *header, message)) {
    case JobTable::Delivery::kTaken: return true;
    case JobTable::Delivery::kStranger: return reject(drops_.stranger, "its sender has not joined the job");
    case JobTable::Delivery::kTurnedAway: ++drops_.stranger; return false;
    case JobTable::Delivery::kUnclaimed: ++drops_.unclaimed; return false;
    case JobTable::Delivery::kUnreadable: return reject(drops_.unreadable, "a message that cannot be read");
    case JobTable::Delivery::kRefusal: return reject_mismatch(from, message);
  }
  return false;
}

bool ControlInbox::reject_mismatch(const Peer& from, std::span<const std::byte> message) {
  const auto received = wire::Received::parse(message);
  if (!received) return reject(drops_.unreadable, received.error().what);
  const auto error = versions_.mismatch(*received);
  if (!error) return false;
  if (const auto answer = versions_.answer(from, *received)) control_.send(from, *answer);
  jobs_.peer_mismatched(from, *received, *error);
  return reject(drops_.other_version, error->what);
}

bool ControlInbox::reject(std::uint64_t& count, const std::string& why) {
  ++count;
  const auto left_out = lines_.admit(clock_.now_us());
  if (left_out) LOG(WARNING) << "a control message was rejected: " << why << RateLimit::describe(*left_out);
  return false;
}

}  // namespace deft::daemon
