// Hears how connections of a ZeroMQ socket, which listens or calls, begin and end: ZeroMQ drops who does not get through its greeting, or does not
// hold the key, and tells it here alone.
//
//   HandshakeWatch watch;
//   watch.open(context, router, "inproc://control");   // before the socket is bound
//   const auto turn = watch.turn();                    // when watch.socket() is readable
//
// One thread at a time. ZeroMQ's own thread waits for whoever does not call turn().
#pragma once

#include <string>
#include <zmq.hpp>

namespace deft::link {

class HandshakeWatch {
 public:
  // Throws zmq::error_t. `name` is an inproc address that no other socket of the context has.
  void open(zmq::context_t& context, zmq::socket_t& watched, const std::string& name);
  // Watches no longer. `watched` goes on; without it, it has been closed.
  void close(zmq::socket_t& watched) { zmq_socket_monitor(watched.handle(), nullptr, 0), socket_.close(); }
  void close() { socket_.close(); }
  [[nodiscard]] zmq::socket_t& socket() { return socket_; }

  struct Turn {
    unsigned failed = 0;  // connections that were dropped before a message could pass
    unsigned done = 0;    // connections by which messages can pass
    unsigned ended = 0;   // connections
  };
  Turn turn();

 private:
  zmq::socket_t socket_;
};

}  // namespace deft::link
