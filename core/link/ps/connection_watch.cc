#include "core/link/ps/connection_watch.h"

#include "core/base/clock.h"
#include "core/link/ps/wire.h"

namespace deft::link::ps_backend {
namespace {

constexpr unsigned kHangUps = 5;  // a server that hangs up may be starting; after some times it is the key
// A server lets no more results leave before the link has taken the first of them, and they are hardly ever of this size.
constexpr std::uint64_t kMostUnfinishedBytes = (kAnswersAhead + 2) * kMaxAnswerBytes;
constexpr UnfinishedMessages::Limits kMostUnfinished{.of_one = kMostUnfinishedBytes, .of_all = kMostUnfinishedBytes};
constexpr int kWatched = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                         ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;

}  // namespace

ConnectionWatch::ConnectionWatch(zmq::context_t& context, zmq::socket_t& socket, const std::string& name,
                                 std::uint16_t port)
    : port_(port) {
  monitor_.open(context, socket, "inproc://" + name, kWatched);
}

ConnectionWatch::News ConnectionWatch::take_news() {
  News news;
  while (const auto event = monitor_.next()) {
    switch (event->kind) {
      case ZMQ_EVENT_CONNECTED:
        connection_ = borrow_socket(0, event->value);
        unfinished_.connected(event->value, port_);
        break;
      case ZMQ_EVENT_DISCONNECTED: news.lost = true; break;
      case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL: news.refused |= ++hung_up_ >= kHangUps; break;
      default: news.refused = true;
    }
  }
  news.endless = unfinished_.look(kMostUnfinished, MonotonicClock::now()) > 0;
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
