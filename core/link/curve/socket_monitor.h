// Hears what ZeroMQ tells of the connections below one of its sockets.
//
//   SocketMonitor monitor;
//   monitor.open(context, router, "inproc://control", ZMQ_EVENT_DISCONNECTED);  // before the socket is bound or connected
//   while (const auto event = monitor.next()) ...                               // when monitor.socket() is readable
//
// It ends before the watched socket does: ZeroMQ's own thread waits for ever, and with it all sockets of the context, if it has an event
// to tell and nobody listens any more. So declare it after the socket. It also waits while thousands of events lie unread. The thread of
// the watched socket.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <zmq.hpp>

namespace deft::link {

class SocketMonitor {
 public:
  SocketMonitor() = default;
  SocketMonitor(SocketMonitor&& other) noexcept
      : watched_(std::exchange(other.watched_, nullptr)), events_(std::move(other.events_)) {}
  SocketMonitor& operator=(SocketMonitor&&) = delete;
  ~SocketMonitor() { close(); }

  // Throws zmq::error_t. `name` is an inproc address that no other socket of the context has, `kinds` a mask of ZMQ_EVENT_*.
  void open(zmq::context_t& context, zmq::socket_t& watched, const std::string& name, int kinds);
  void close();  // again: nothing

  struct Event {
    int kind = 0;
    std::int32_t value = 0;  // of a connection that was made: its descriptor
  };
  std::optional<Event> next();
  [[nodiscard]] zmq::socket_t& socket() { return events_; }

 private:
  void* watched_ = nullptr;
  zmq::socket_t events_;
};

}  // namespace deft::link
