#include "core/link/curve/handshake_watch.h"

namespace deft::link {
namespace {

constexpr int kFailures =
    ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
constexpr int kConnected = ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_CONNECTED;
constexpr int kEventsATurn = 2048;

}  // namespace

void HandshakeWatch::open(zmq::context_t& context, zmq::socket_t& watched, const std::string& name) {
  monitor_.open(context, watched, name,
                kConnected | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | kFailures);
}

HandshakeWatch::Turn HandshakeWatch::turn() {
  Turn turn;
  for (int i = 0; i < kEventsATurn; ++i) {
    const auto event = monitor_.next();
    if (!event) break;
    if ((event->kind & kFailures) != 0) ++turn.failed;
    if (event->kind == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) ++turn.done;
    if (event->kind == ZMQ_EVENT_DISCONNECTED) ++turn.ended;
    if ((event->kind & kConnected) != 0) turn.connected.push_back(event->value);
  }
  return turn;
}

}  // namespace deft::link
