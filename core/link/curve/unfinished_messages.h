// Ends connections of ZeroMQ sockets whose message has no end.
//
//   unfinished.connected(fd, port);   // a HandshakeWatch tells the descriptor
//   unfinished.delivered(frame);      // the last one of a message that was received
//   unfinished.look({.of_one = 8 << 20, .of_all = 128 << 20}, now_us);   // as often as likes, also when nothing has come
//
// ZeroMQ bounds the bytes of a frame and the number of messages, but not how many frames a message has. It keeps them until the last one
// has come, and tells nobody. So whoever reaches a port that no key guards, or is called by us, could fill the memory of the process. The
// kernel knows what a connection has brought. So what it has brought since the last whole message is none yet. An empty frame takes two
// bytes on the wire and 64 in memory: a limit costs up to 32 times its bytes. The thread of the sockets.
#pragma once

#include <cstdint>
#include <map>
#include <zmq.hpp>

#include "core/base/clock.h"
#include "core/link/borrowed_socket.h"

namespace deft::link {

class UnfinishedMessages {
 public:
  struct Limits {  // bytes on the wire
    std::uint64_t of_one = 0;
    std::uint64_t of_all = 0;  // together
  };

  // `port`: of one of its ends. ZeroMQ may have closed the connection by now, and its number be another's, which is left alone.
  void connected(int fd, std::uint16_t port);
  void delivered(const zmq::message_t& frame);
  // Gives how many it has ended. It does nothing if kLookUs have not passed since the last look. Whole messages that wait for the thread
  // count as unfinished ones. So it skips looks while there are some: one if the thread had no time for several looks, and kMostSkipped in a
  // row if `messages_wait`.
  static constexpr TimeUs kLookUs = 100'000;  // a stranger on loopback brings some 300 MB meanwhile
  static constexpr unsigned kMostSkipped = 5;
  unsigned look(const Limits& limits, TimeUs now_us, bool messages_wait = false);
  [[nodiscard]] bool empty() const { return connections_.empty(); }

 private:
  struct Connection {
    BorrowedSocket socket;
    std::uint64_t whole_bytes = 0;  // belong to messages that were received
    std::uint64_t unfinished_bytes = 0;
    bool has_delivered = false;  // since the last look
  };
  static bool look_at(Connection& connection);
  unsigned end_those_above(const Limits& limits);

  std::map<int, Connection> connections_;  // by descriptor
  TimeUs looked_us_ = 0;
  unsigned skipped_ = 0;  // looks that were due, since the last one that was made
};

}  // namespace deft::link
