// Counts how connections of a ZeroMQ socket, which listens or calls, begin and end: ZeroMQ drops who does not get through its greeting,
// or does not hold the key, and tells it here alone.
//
//   HandshakeWatch watch;
//   watch.open(context, router, "inproc://control");   // before the socket is bound
//   const auto turn = watch.turn();                    // when watch.socket() is readable
//
// Order of declaration and thread: as those of a SocketMonitor.
#pragma once

#include <string>
#include <vector>
#include <zmq.hpp>

#include "core/link/curve/socket_monitor.h"

namespace deft::link {

class HandshakeWatch {
 public:
  // Throws zmq::error_t. `name` is an inproc address that no other socket of the context has.
  void open(zmq::context_t& context, zmq::socket_t& watched, const std::string& name);
  void close() { monitor_.close(); }  // watches no longer
  [[nodiscard]] zmq::socket_t& socket() { return monitor_.socket(); }

  struct Turn {
    unsigned failed = 0;              // connections that were dropped before a message could pass
    unsigned done = 0;                // connections by which messages can pass
    unsigned ended = 0;               // connections
    std::vector<int> connected = {};  // descriptors of new connections

    [[nodiscard]] bool empty() const { return failed + done + ended == 0 && connected.empty(); }
  };
  Turn turn();

 private:
  SocketMonitor monitor_;
};

}  // namespace deft::link
