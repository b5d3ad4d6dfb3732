#include "core/link/curve/handshake_watch.h"

#include <cstdint>
#include <cstring>

namespace deft::link {
namespace {

constexpr int kFailures =
    ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
constexpr int kFramesATurn = 4096;

}  // namespace

void HandshakeWatch::open(zmq::context_t& context, zmq::socket_t& watched, const std::string& name) {
  constexpr int kEvents = ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | kFailures;
  if (zmq_socket_monitor(watched.handle(), name.c_str(), kEvents) != 0) throw zmq::error_t();
  socket_ = zmq::socket_t(context, zmq::socket_type::pair);
  socket_.connect(name);
}

// An event is two frames: its number and value, and the address.
HandshakeWatch::Turn HandshakeWatch::turn() {
  Turn turn;
  zmq::message_t frame;
  for (int i = 0; i < kFramesATurn && socket_.recv(frame, zmq::recv_flags::dontwait); ++i) {
    std::uint16_t event = 0;
    if (socket_.get(zmq::sockopt::rcvmore) == 0 || frame.size() < sizeof event) continue;
    std::memcpy(&event, frame.data(), sizeof event);
    if ((event & kFailures) != 0) ++turn.failed;
    if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) ++turn.done;
    if (event == ZMQ_EVENT_DISCONNECTED) ++turn.ended;
  }
  return turn;
}

}  // namespace deft::link
