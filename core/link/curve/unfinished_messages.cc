#include "core/link/curve/unfinished_messages.h"

#include <netinet/in.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace deft::link {
namespace {

constexpr TimeUs kNoTimeUs = 5 * UnfinishedMessages::kLookUs;  // between looks of a thread that had no time

bool has_port(const sockaddr_storage& end, std::uint16_t port) {
  return end.ss_family == AF_INET && ntohs(reinterpret_cast<const sockaddr_in&>(end).sin_port) == port;
}

}  // namespace

void UnfinishedMessages::connected(int fd, std::uint16_t port) {
  const BorrowedSocket socket = borrow_socket(0, fd);
  if (has_port(socket.own, port) || has_port(socket.other, port)) connections_[fd] = Connection{.socket = socket};
}

void UnfinishedMessages::delivered(const zmq::message_t& frame) {
  const auto found = connections_.find(zmq_msg_get(frame.handle(), ZMQ_SRCFD));
  if (found != connections_.end()) found->second.has_delivered = true;
}

// False: the connection has ended.
bool UnfinishedMessages::look_at(Connection& connection) {
  const auto bytes = received_bytes(connection.socket);
  if (!bytes) return false;
  if (std::exchange(connection.has_delivered, false)) connection.whole_bytes = *bytes;
  connection.unfinished_bytes = *bytes - std::min(*bytes, connection.whole_bytes);
  return true;
}

unsigned UnfinishedMessages::end_those_above(const Limits& limits) {
  for (auto it = connections_.begin(); it != connections_.end();)
    it = look_at(it->second) ? std::next(it) : connections_.erase(it);
  std::uint64_t all = 0;
  for (const auto& [_, connection] : connections_) all += connection.unfinished_bytes;
  const auto less = [](const auto& a, const auto& b) { return a.second.unfinished_bytes < b.second.unfinished_bytes; };
  unsigned ended = 0;
  while (!connections_.empty()) {
    const auto most = std::ranges::max_element(connections_, less);
    const std::uint64_t bytes = most->second.unfinished_bytes;
    if (bytes <= limits.of_one && all <= limits.of_all) break;
    shut_down(most->second.socket);
    connections_.erase(most);
    all -= bytes;
    ++ended;
  }
  return ended;
}

unsigned UnfinishedMessages::look(const Limits& limits, TimeUs now_us, bool messages_wait) {
  const TimeUs since_us = now_us - looked_us_;
  if (since_us < kLookUs) return 0;
  looked_us_ = now_us;
  const unsigned may_skip = messages_wait ? kMostSkipped : static_cast<unsigned>(since_us >= kNoTimeUs);
  if (skipped_++ < may_skip) return 0;
  skipped_ = 0;
  return end_those_above(limits);
}

}  // namespace deft::link
