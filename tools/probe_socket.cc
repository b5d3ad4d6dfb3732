#include "tools/probe_socket.h"

#include "core/base/numbers.h"

namespace deft::tools {
namespace {

constexpr std::int64_t kMaxFrameBytes = 1 << 20;  // the ranks of a probe set some kilobytes each
constexpr int kWaitingMessages = 32;              // on one connection, each way
constexpr link::UnfinishedMessages::Limits kMostUnfinished{.of_one = 4 << 20, .of_all = 8 << 20};  // of bytes

}  // namespace

void ProbeSocket::open(zmq::context_t& context, zmq::socket_type type, const std::string& name) {
  socket_ = zmq::socket_t(context, type);
  socket_.set(zmq::sockopt::maxmsgsize, kMaxFrameBytes);
  socket_.set(zmq::sockopt::rcvhwm, kWaitingMessages);
  socket_.set(zmq::sockopt::sndhwm, kWaitingMessages);
  watch_.open(context, socket_, name);
}

void ProbeSocket::bind(const std::string& endpoint) {
  socket_.bind(endpoint);
  set_port_of(socket_.get(zmq::sockopt::last_endpoint));
}

void ProbeSocket::connect(const std::string& address) {
  set_port_of(address);
  socket_.connect("tcp://" + address);
}

void ProbeSocket::set_port_of(const std::string& address) {
  port_ = parse_whole<std::uint16_t>(address.substr(address.rfind(':') + 1)).value_or(0);
}

std::vector<zmq::message_t> ProbeSocket::receive(zmq::recv_flags flags) {
  std::vector<zmq::message_t> frames(1);
  if (!socket_.recv(frames[0], flags)) return {};
  while (frames.back().more())
    if (!socket_.recv(frames.emplace_back(), zmq::recv_flags::none)) break;
  std::uint64_t wire_bytes = 0;
  const std::size_t made_here = socket_.get(zmq::sockopt::type) == ZMQ_ROUTER ? 1 : 0;  // the frame that names the peer
  for (std::size_t i = made_here; i < frames.size(); ++i) wire_bytes += link::wire_bytes_of(frames[i].size());
  unfinished_.delivered_by_stranger(frames.back(), wire_bytes);
  return frames;
}

void ProbeSocket::end_endless_messages() {
  for (const int fd : watch_.turn().connected) unfinished_.connected(fd, port_);
  unfinished_.look(kMostUnfinished, MonotonicClock::now());
}

}  // namespace deft::tools
