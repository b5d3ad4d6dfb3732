#include "core/link/curve/socket_monitor.h"

#include <cstring>

namespace deft::link {

void SocketMonitor::open(zmq::context_t& context, zmq::socket_t& watched, const std::string& name, int kinds) {
  if (zmq_socket_monitor(watched.handle(), name.c_str(), kinds) != 0) throw zmq::error_t();
  watched_ = watched.handle();
  events_ = zmq::socket_t(context, zmq::socket_type::pair);
  events_.connect(name);
}

// ZeroMQ's thread holds a lock while it waits for room for an event, and the end of the watching needs this lock. So there is room first.
void SocketMonitor::close() {
  if (watched_ == nullptr) return;
  while (next()) continue;
  zmq_socket_monitor(std::exchange(watched_, nullptr), nullptr, 0);
  events_.close();
}

// An event is two frames: its number and value, and the address.
std::optional<SocketMonitor::Event> SocketMonitor::next() {
  zmq::message_t frame;
  while (events_.recv(frame, zmq::recv_flags::dontwait)) {
    std::uint16_t kind = 0;
    Event event;
    if (events_.get(zmq::sockopt::rcvmore) == 0 || frame.size() < sizeof kind + sizeof event.value) continue;
    std::memcpy(&kind, frame.data(), sizeof kind);
    std::memcpy(&event.value, frame.data<std::byte>() + sizeof kind, sizeof event.value);
    event.kind = kind;
    return event;
  }
  return std::nullopt;
}

}  // namespace deft::link
