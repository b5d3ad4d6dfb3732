#include "core/link/curve/unfinished_messages.h"

#include <netinet/in.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

namespace deft::link {
namespace {

constexpr TimeUs kNoTimeUs = 5 * UnfinishedMessages::kLookUs;  // between looks of a thread that had no time

bool has_port(const sockaddr_storage& end, std::uint16_t port) {
  return end.ss_family == AF_INET && ntohs(reinterpret_cast<const sockaddr_in&>(end).sin_port) == port;
}

int socket_of(const zmq::message_t& frame) { return zmq_msg_get(frame.handle(), ZMQ_SRCFD); }

}  // namespace

void UnfinishedMessages::connected(int fd, std::uint16_t port) {
  const BorrowedSocket socket = borrow_socket(0, fd);
  if (has_port(socket.own, port) || has_port(socket.other, port)) connections_[fd] = Connection{.socket = socket};
}

void UnfinishedMessages::delivered(const zmq::message_t& frame) {
  const auto sender = connections_.find(socket_of(frame));
  if (sender != connections_.end()) sender->second.is_known = sender->second.has_delivered = true;
}

void UnfinishedMessages::delivered_by_stranger(const zmq::message_t& frame, std::uint64_t wire_bytes) {
  const auto sender = connections_.find(socket_of(frame));
  if (sender == connections_.end()) return;
  sender->second.has_delivered |= sender->second.is_known;
  sender->second.whole_bytes += wire_bytes;
}

bool UnfinishedMessages::knows(const zmq::message_t& frame) const {
  const auto sender = connections_.find(socket_of(frame));
  return sender != connections_.end() && sender->second.is_known;
}

// False: the connection has ended.
bool UnfinishedMessages::look_at(Connection& connection) {
  const auto bytes = read_bytes(connection.socket);
  if (!bytes) return false;
  const bool all_whole = std::exchange(connection.has_delivered, false);
  connection.whole_bytes = all_whole ? *bytes : std::min(*bytes, connection.whole_bytes);
  connection.unfinished_bytes = *bytes - connection.whole_bytes;
  return true;
}

void UnfinishedMessages::look_at_all(bool known_too) {
  for (auto it = connections_.begin(); it != connections_.end();) {
    const bool stays = (it->second.is_known && !known_too) || look_at(it->second);
    it = stays ? std::next(it) : connections_.erase(it);
  }
}

bool UnfinishedMessages::has_strangers() const {
  return std::ranges::any_of(connections_, [](const auto& one) { return !one.second.is_known; });
}

std::uint64_t UnfinishedMessages::bytes() const {
  std::uint64_t all = 0;
  for (const auto& [_, connection] : connections_) all += connection.unfinished_bytes;
  return all;
}

unsigned UnfinishedMessages::end_largest(bool strangers_only, std::uint64_t of_one, std::uint64_t of_all) {
  std::vector<Connections::iterator> largest;
  std::uint64_t all = 0;
  for (auto it = connections_.begin(); it != connections_.end(); ++it) {
    if (strangers_only && it->second.is_known) continue;
    largest.push_back(it);
    all += it->second.unfinished_bytes;
  }
  std::ranges::sort(largest, std::greater(), [](const auto& it) { return it->second.unfinished_bytes; });
  unsigned ended = 0;
  for (const auto& connection : largest) {
    const std::uint64_t bytes = connection->second.unfinished_bytes;
    if (bytes <= of_one && all <= of_all) break;
    all -= bytes;
    shut_down(connection->second.socket);
    connections_.erase(connection);
    ++ended;
  }
  return ended;
}

unsigned UnfinishedMessages::look(const Limits& limits, TimeUs now_us, bool messages_wait) {
  const TimeUs since_us = now_us - looked_us_;
  if (since_us < kLookUs) return 0;
  looked_us_ = now_us;
  const unsigned may_skip = messages_wait ? kMostSkipped : static_cast<unsigned>(since_us >= kNoTimeUs);
  const bool skips = skipped_ < may_skip;
  skipped_ = skips ? skipped_ + 1 : 0;
  look_at_all(!skips);
  const unsigned strangers = end_largest(true, limits.of_strangers, limits.of_strangers);
  return skips ? strangers : strangers + end_largest(false, limits.of_one, limits.of_all);
}

}  // namespace deft::link
