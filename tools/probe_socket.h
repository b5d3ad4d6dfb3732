// A ZeroMQ socket of deft probe. Nothing vouches for its peers, so it bounds what they can make it hold: the bytes of a frame, the messages
// that wait, and messages without an end.
//
//   ProbeSocket server;
//   server.open(context, zmq::socket_type::router, "inproc://server");
//   server.bind("tcp://10.0.0.1:29611");
//   for (auto frames = server.receive(zmq::recv_flags::dontwait); !frames.empty(); ...) server->send(...);
//   server.end_endless_messages();       // every kLookUs
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "core/base/clock.h"
#include "core/link/curve/handshake_watch.h"
#include "core/link/curve/unfinished_messages.h"

namespace deft::tools {

class ProbeSocket {
 public:
  static constexpr TimeUs kLookUs = link::UnfinishedMessages::kLookUs;

  // Throws zmq::error_t, and so do the next two. `name` is an inproc address that no other socket of the context has.
  void open(zmq::context_t& context, zmq::socket_type type, const std::string& name);
  void bind(const std::string& endpoint);
  void connect(const std::string& address);  // host:port

  // The frames of one message; none if none has come.
  std::vector<zmq::message_t> receive(zmq::recv_flags flags);
  void end_endless_messages();

  zmq::socket_t* operator->() { return &socket_; }
  [[nodiscard]] zmq::pollitem_t messages() { return {socket_.handle(), 0, ZMQ_POLLIN, 0}; }

 private:
  void set_port_of(const std::string& address);

  zmq::socket_t socket_;
  link::HandshakeWatch watch_;
  link::UnfinishedMessages unfinished_;
  std::uint16_t port_ = 0;  // of the server
};

}  // namespace deft::tools
