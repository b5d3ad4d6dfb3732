// Ends connections of ZeroMQ sockets whose message has no end.
//
//   unfinished.connected(fd, port);   // a HandshakeWatch tells the descriptor
//   unfinished.delivered(frame);      // of a message that was received
//   unfinished.delivered_by_stranger(frame, wire_bytes);   // likewise, if its sender is not known
//   unfinished.look({.of_one = 8 << 20, .of_all = 128 << 20}, now_us);   // as often as likes, also when nothing has come
//
// ZeroMQ bounds the bytes of a frame and the number of messages, but not how many frames a message has. It keeps them until the last one
// has come, and tells nobody. So whoever reaches a port that no key guards, or is called by us, could fill the memory of the process. The
// kernel knows how many bytes were read from a connection. The bytes since the last whole message belong to a message that has no end yet.
// An empty frame takes two bytes on the wire and 64 in memory: a limit costs up to 32 times its bytes.
//
// A connection is a stranger's until a message of it was delivered. Strangers can have a limit of their own, so they never use up what
// others may bring. The thread of the sockets.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <zmq.hpp>

#include "core/base/clock.h"
#include "core/link/borrowed_socket.h"

namespace deft::link {

// A frame of so many bytes on the wire, without encryption.
constexpr std::uint64_t wire_bytes_of(std::uint64_t frame_bytes) { return frame_bytes + (frame_bytes < 256 ? 2 : 9); }

class UnfinishedMessages {
 public:
  struct Limits {  // bytes on the wire
    std::uint64_t of_one = 0;
    std::uint64_t of_all = 0;                                                // together
    std::uint64_t of_strangers = std::numeric_limits<std::uint64_t>::max();  // together
  };

  // `port`: of one of its ends. ZeroMQ may have closed the connection by now, and its number be another's, which is left alone.
  void connected(int fd, std::uint16_t port);
  void delivered(const zmq::message_t& frame);  // all that came before the next look counts as whole
  // The whole message had `wire_bytes` (wire_bytes_of, of each frame). Only these count as whole: a stranger may send one without an end
  // behind it before the next look.
  void delivered_by_stranger(const zmq::message_t& frame, std::uint64_t wire_bytes);
  [[nodiscard]] bool knows(const zmq::message_t& frame) const;  // its sender is no stranger
  // Gives how many it has ended. It does nothing if kLookUs have not passed since the last look. Whole messages that wait for the thread
  // count as unfinished ones. So it skips looks while there are some: one if the thread had no time for several looks, and kMostSkipped in a
  // row if `messages_wait`. Messages of strangers are few and small, so their limit holds at every look.
  static constexpr TimeUs kLookUs = 100'000;  // a stranger on loopback brings some 300 MB meanwhile
  static constexpr unsigned kMostSkipped = 5;
  unsigned look(const Limits& limits, TimeUs now_us, bool messages_wait = false);
  [[nodiscard]] bool empty() const { return connections_.empty(); }
  [[nodiscard]] bool has_strangers() const;
  // Of all connections together, as far as the last look has seen.
  [[nodiscard]] std::uint64_t bytes() const;

 private:
  struct Connection {
    BorrowedSocket socket;
    std::uint64_t whole_bytes = 0;  // belong to messages that were received
    std::uint64_t unfinished_bytes = 0;
    bool is_known = false;
    bool has_delivered = false;  // since the last look
  };
  using Connections = std::map<int, Connection>;  // by descriptor
  static bool look_at(Connection& connection);
  void look_at_all(bool known_too);
  // Ends the largest connection, until none has more than `of_one` and all together have no more than `of_all`. Gives how many it has ended.
  unsigned end_largest(bool strangers_only, std::uint64_t of_one, std::uint64_t of_all);

  Connections connections_;
  TimeUs looked_us_ = 0;
  unsigned skipped_ = 0;  // looks that were due, since the last one that was made
};

}  // namespace deft::link
