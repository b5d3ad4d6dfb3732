// Watches the TCP connection below a socket of ZeroMQ: whether it was refused or lost, whether a message has no end, and what the kernel
// has counted on it.
#pragma once

#include <cstdint>
#include <string>
#include <zmq.hpp>

#include "core/link/borrowed_socket.h"
#include "core/link/curve/socket_monitor.h"
#include "core/link/curve/unfinished_messages.h"

namespace deft::link::ps_backend {

class ConnectionWatch {
 public:
  // `name` is unique in the context, `port` that of the other end. Construct it before the socket connects, and end it before the
  // socket. Throws zmq::error_t.
  ConnectionWatch(zmq::context_t& context, zmq::socket_t& socket, const std::string& name, std::uint16_t port);

  struct News {
    bool refused = false;  // the other end has another key, or has hung up in several handshakes
    bool lost = false;
    bool endless = false;  // the connection was ended, because a message had no end
  };
  News take_news();                                                              // since the last call
  void delivered(const zmq::message_t& frame) { unfinished_.delivered(frame); }  // the last one of a message

  // Fills what the kernel knows of `traffic`: the bytes pushed, how long they took, the packets sent again, the least round trip.
  void count_pushes(PeerTraffic& traffic) const;

  [[nodiscard]] zmq::pollitem_t events() { return {monitor_.socket().handle(), 0, ZMQ_POLLIN, 0}; }

 private:
  const std::uint16_t port_;
  SocketMonitor monitor_;
  UnfinishedMessages unfinished_;
  BorrowedSocket connection_;  // the newest
  unsigned hung_up_ = 0;       // times, in the handshake
};

}  // namespace deft::link::ps_backend
