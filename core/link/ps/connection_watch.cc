#include "core/link/ps/connection_watch.h"

#include <cstdint>
#include <cstring>

namespace deft::link::ps_backend {
namespace {

constexpr unsigned kHangUps = 5;  // a server that hangs up may be starting; after some times it is the key
constexpr int kWatched = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                         ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;

}  // namespace

ConnectionWatch::ConnectionWatch(zmq::context_t& context, zmq::socket_t& socket, const std::string& name)
    : monitor_(context, zmq::socket_type::pair) {
  const std::string endpoint = "inproc://" + name;
  if (zmq_socket_monitor(socket.handle(), endpoint.c_str(), kWatched) != 0) throw zmq::error_t();
  monitor_.connect(endpoint);
}

// An event is two frames: its number and value, and the address. The value of a new connection is its descriptor.
ConnectionWatch::News ConnectionWatch::take_news() {
  News news;
  zmq::message_t frame;
  while (monitor_.recv(frame, zmq::recv_flags::dontwait)) {
    std::uint16_t event = 0;
    std::int32_t value = 0;
    if (monitor_.get(zmq::sockopt::rcvmore) == 0 || frame.size() < sizeof event + sizeof value) continue;
    std::memcpy(&event, frame.data(), sizeof event);
    std::memcpy(&value, frame.data<std::byte>() + sizeof event, sizeof value);
    switch (event) {
      case ZMQ_EVENT_CONNECTED: connection_ = borrow_socket(0, value); break;
      case ZMQ_EVENT_DISCONNECTED: news.lost = true; break;
      case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL: news.refused |= ++hung_up_ >= kHangUps; break;
      default: news.refused = true;
    }
  }
  return news;
}

void ConnectionWatch::count_pushes(PeerTraffic& traffic) const {
  PeerTraffic counted;
  add_kernel_traffic(connection_, counted);
  traffic.resent = counted.resent;
  traffic.rtt_us = counted.rtt_us;
  traffic.pushed_bytes = counted.sent_bytes;
  traffic.pushing_us = counted.busy_us;
}

}  // namespace deft::link::ps_backend
