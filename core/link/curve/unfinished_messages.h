// Ends connections of ZeroMQ sockets whose message has no end.
//
//   unfinished.connected(fd, port);   // a HandshakeWatch tells the descriptor
//   unfinished.delivered(frame);      // the last one of a message that was received
//   unfinished.look({.of_one = 128 << 20, .of_all = 512 << 20}, now_us);   // as often as likes, also when nothing has come
//
// ZeroMQ bounds the bytes of a frame and the number of messages, but not how many frames a message has. It keeps them until the last one
// has come, and tells nobody. So whoever reaches a port that no key guards, or is called by us, could fill the memory of the process. The
// kernel knows what a connection has brought. So what it has brought since the last whole message is none yet. The thread of the sockets.
#pragma once

#include <cstdint>
#include <map>
#include <zmq.hpp>

#include "core/base/clock.h"
#include "core/link/borrowed_socket.h"

namespace deft::link {

class UnfinishedMessages {
 public:
  struct Limits {  // bytes
    std::uint64_t of_one = 0;
    std::uint64_t of_all = 0;  // together
  };

  // `port`: of one of its ends. ZeroMQ may have closed the connection by now, and its number be another's, which is left alone.
  void connected(int fd, std::uint16_t port);
  void delivered(const zmq::message_t& frame);
  // Gives how many it has ended.
  unsigned end_those_above(const Limits& limits);
  // The same if kLookUs have passed since the last look. A thread that had no time for several looks skips one, because whole messages of
  // all connections are waiting for it.
  static constexpr TimeUs kLookUs = 100'000;  // a stranger on loopback brings some 300 MB meanwhile
  unsigned look(const Limits& limits, TimeUs now_us);
  [[nodiscard]] bool empty() const { return connections_.empty(); }

 private:
  struct Connection {
    BorrowedSocket socket;
    std::uint64_t whole_bytes = 0;  // belong to messages that were received
    std::uint64_t unfinished_bytes = 0;
    bool has_delivered = false;  // since the last look
  };
  static bool look_at(Connection& connection);

  std::map<int, Connection> connections_;  // by descriptor
  TimeUs looked_us_ = 0;
  bool skipped_ = false;  // the last look that was due
};

}  // namespace deft::link
