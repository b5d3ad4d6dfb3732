#include "daemon/server/control_inbox.h"

#include <glog/logging.h>

namespace deft::daemon {

void ControlInbox::receive(const Peer& from, std::span<const std::byte> message) {
  const auto received = wire::Received::parse(message);
  if (!received) return reject(received.error().what);
  if (const auto error = versions_.mismatch(*received)) {
    reject(error->what);
    if (const auto answer = versions_.answer(from, *received)) control_.send(from, *answer);
    return jobs_.peer_mismatched(from, *received, *error);
  }
  switch (jobs_.receive(from, *received)) {
    case JobTable::Delivery::kTaken: return;
    case JobTable::Delivery::kStranger: return reject("its sender has not joined the job");
    case JobTable::Delivery::kUnclaimed: ++unclaimed_; return;
  }
}

void ControlInbox::reject(const std::string& why) {
  ++rejected_;
  LOG_EVERY_N(WARNING, 1000) << "a control message was rejected (" << rejected_ << " until now): " << why;
}

}  // namespace deft::daemon
