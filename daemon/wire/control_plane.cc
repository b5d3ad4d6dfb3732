#include "daemon/wire/control_plane.h"

#include <arpa/inet.h>
#include <glog/logging.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/numbers.h"
#include "core/base/socket_priority.h"
#include "core/link/address.h"
#include "daemon/wire/codec.h"

namespace deft::daemon {
namespace {

constexpr int kMessagesARound = 512;           // of a socket, so that a flood does not keep sessions and timers waiting
constexpr std::size_t kBytesARound = 8 << 20;  // of a socket, likewise; one message may be larger
constexpr std::size_t kMostOfStranger = 2 << 20;  // a JOIN, or the first answer of a leader of thousands of nodes
constexpr int kUnreadMessages = 4096;             // of one peer; its further messages wait on its side
constexpr int kUnsentMessages = 65536;            // to one peer, which does not read them
constexpr TimeUs kResolveAgainUs = 1'000'000;
constexpr std::string_view kInternet = "tcp://";
constexpr int kLowDelay = 0x10;  // IPTOS_LOWDELAY

// Orders must not wait behind gradients for a NIC. The TOS of a socket sets its priority in this kernel only if IPv4
// set it on a connection; accepted connections have the TOS of their listener alone. So the priority of the connection that
// `message` came by is set.
void go_first_on_the_way_of(const zmq::message_t& message) {
  const int fd = zmq_msg_get(message.handle(), ZMQ_SRCFD);
  if (fd >= 0) put_first(fd);
}

void unwatch(Reactor& reactor, zmq::socket_t& socket) { reactor.unwatch(socket.get(zmq::sockopt::fd)); }

struct Place {
  std::string host, port;
  bool is_number = false;  // and no name
};

std::optional<Place> split(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) return std::nullopt;
  Place place{address.substr(0, colon), address.substr(colon + 1)};
  if (parse_whole<std::uint16_t>(place.port).value_or(0) == 0) return std::nullopt;
  in_addr parsed{};
  place.is_number = inet_pton(AF_INET, place.host.c_str(), &parsed) == 1;
  return place;
}

// The IPv4 address of a name, as text; empty: it has none. May take as long as the resolver likes.
std::string address_of(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* all = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &all) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(all, &freeaddrinfo);
  std::array<char, INET_ADDRSTRLEN> text{};
  const auto* first = reinterpret_cast<const sockaddr_in*>(all->ai_addr);
  return inet_ntop(AF_INET, &first->sin_addr, text.data(), text.size()) != nullptr ? text.data() : "";
}

}  // namespace

ControlPlane::ControlPlane(Reactor& reactor, link::CurveKey key)
    : reactor_(reactor),
      router_(context_, zmq::socket_type::router),
      guard_{std::move(key), {}, {}, 0, ConnectionBudget(reactor)} {}

Result<std::unique_ptr<ControlPlane>> ControlPlane::open(Reactor& reactor, const Options& options) {
  auto key = link::CurveKey::read(options.secret_file);
  if (!key) return tl::unexpected(key.error());
  std::unique_ptr<ControlPlane> plane(new ControlPlane(reactor, *std::move(key)));
  if (auto ok = plane->listen(options.listen); !ok) return tl::unexpected(ok.error());
  plane->polling_.poller = reactor.add_poller([p = plane.get()](bool) { return p->drain(); });
  return plane;
}

ControlPlane::~ControlPlane() {
  if (polling_.poller != 0) reactor_.remove_poller(polling_.poller);
  while (!dealers_.empty()) ControlPlane::disconnect(Peer(dealers_.begin()->first));
  unwatch(reactor_, router_);
  if (guard_.watch.socket()) unwatch(reactor_, guard_.watch.socket());
  if (guard_.gate.is_open()) unwatch(reactor_, guard_.gate.socket());
}

Result<void> ControlPlane::listen(const std::string& address) {
  const auto endpoint = link::listening_endpoint(address);
  if (!endpoint) return tl::unexpected(endpoint.error());
  try {
    guard_.gate.open(context_, guard_.key);
    if (guard_.gate.is_open()) watch(guard_.gate.socket());
    set_up(router_);
    guard_.key.guard_listener(router_);
    router_.set(zmq::sockopt::router_mandatory, true);
    guard_.watch.open(context_, router_, "inproc://deft-control-connections");
    watch(guard_.watch.socket());
    router_.bind(*endpoint);
    const auto place = split(router_.get(zmq::sockopt::last_endpoint).substr(kInternet.size()));
    if (place) guard_.port = parse_whole<std::uint16_t>(place->port).value_or(0);
    watch(router_);
  } catch (const zmq::error_t& error) {
    return fail(error.num() == EADDRINUSE ? ErrorKind::kExhausted : ErrorKind::kInvalid,
                "cannot listen on " + address + ": " + error.what(),
                error.num() == EADDRINUSE ? "another program holds this port: stop it, or choose another DEFT_LISTEN"
                                          : "DEFT_LISTEN is host:port with an address of this machine");
  }
  return {};
}

void ControlPlane::set_up(zmq::socket_t& socket) {
  socket.set(zmq::sockopt::linger, 500);
  socket.set(zmq::sockopt::sndhwm, kUnsentMessages);
  socket.set(zmq::sockopt::rcvhwm, kUnreadMessages);
  socket.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(wire::kMaxMessageBytes));
  socket.set(zmq::sockopt::tos, kLowDelay);
  // A peer whose machine is gone ends its connection by the kernel's probes. ZeroMQ's own heartbeats would end those of a process that
  // was stopped and goes on, because its timers run before it reads.
  socket.set(zmq::sockopt::tcp_keepalive, 1);
  socket.set(zmq::sockopt::tcp_keepalive_idle, 30);
  socket.set(zmq::sockopt::tcp_keepalive_intvl, 10);
  socket.set(zmq::sockopt::tcp_keepalive_cnt, 3);
  socket.set(zmq::sockopt::handshake_ivl, 10'000);
}

void ControlPlane::watch(zmq::socket_t& socket) {
  // ZeroMQ's descriptor tells changes only. So the sockets are asked until they have nothing.
  const auto told = [this](std::uint32_t) { polling_.is_due = true; };
  const auto ok = reactor_.watch(socket.get(zmq::sockopt::fd), EPOLLIN | EPOLLET, told);
  LOG_IF(ERROR, !ok) << ok.error().message();
}

Result<Peer> ControlPlane::connect(const std::string& address, uid_t user) {
  const auto place = split(address);
  if (!place)
    return fail(ErrorKind::kInvalid, "cannot connect to the leader at '" + address + "': no host:port",
                "DEFT_LEADER is host:port");
  if (link::is_ipv6(address))
    return fail(ErrorKind::kInvalid, "cannot connect to the leader at '" + address + "': daemons talk over IPv4 only",
                "DEFT_LEADER is host:port with an IPv4 address, or with a name that has one");
  const Peer peer = "to " + address + " #" + std::to_string(next_dealer_++);
  try {
    Dealer dealer{zmq::socket_t(context_, zmq::socket_type::dealer), {}, *parse_whole<std::uint16_t>(place->port)};
    zmq::socket_t& socket = dealer.socket;
    set_up(socket);
    guard_.key.guard_caller(socket);
    socket.set(zmq::sockopt::reconnect_ivl, 50);
    socket.set(zmq::sockopt::reconnect_ivl_max, 1000);
    dealer.watch.open(context_, socket, "inproc://deft-leader-" + std::to_string(next_dealer_));
    if (place->is_number) socket.connect(std::string(kInternet) + address);
    dealer.has_address = place->is_number;
    watch(socket);
    watch(dealer.watch.socket());
    dealers_.emplace(peer, std::move(dealer));
  } catch (const zmq::error_t& error) {
    return fail(ErrorKind::kInvalid, "cannot connect to the leader at '" + address + "': " + error.what(),
                "DEFT_LEADER is host:port");
  }
  if (!place->is_number) resolve(peer, user, place->host, place->port);
  return peer;
}

// ZeroMQ would ask the resolver on its one thread, and the messages of all jobs would wait for the answer. Asks again while there is
// none: the name may come to be known. A resolver that is silent holds only what `user` causes.
void ControlPlane::resolve(const Peer& peer, uid_t user, const std::string& host, const std::string& port) {
  const auto found = std::make_shared<std::string>();
  reactor_.offload(
      user, [host, found] { *found = address_of(host); },
      [this, peer, user, host, port, found, alive = std::weak_ptr(alive_)] {
        if (alive.expired()) return;
        const auto dealer = dealers_.find(peer);
        if (dealer == dealers_.end()) return;
        if (!found->empty()) {
          dealer->second.socket.connect(std::string(kInternet) + *found + ":" + port);
          dealer->second.has_address = true;
          return;
        }
        if (const auto left_out = lines_.unknown_names.admit(reactor_.now_us()))
          LOG(WARNING) << "the name '" << host << "' of a leader has no IPv4 address (yet)"
                       << RateLimit::describe(*left_out);
        reactor_.after(kResolveAgainUs, [this, peer, user, host, port, weak = std::weak_ptr(alive_)] {
          if (!weak.expired() && dealers_.count(peer) != 0) resolve(peer, user, host, port);
        });
      });
}

void ControlPlane::disconnect(const Peer& peer) {
  const auto it = dealers_.find(peer);
  if (it == dealers_.end()) return;
  unwatch(reactor_, it->second.socket);
  unwatch(reactor_, it->second.watch.socket());
  dealers_.erase(it);
}

void ControlPlane::send(const Peer& peer, const std::string& message) {
  // ZeroMQ may take in what has come while it sends, and its descriptor does not tell of that any more.
  polling_.is_due = true;
  try {
    const auto dealer = dealers_.find(peer);
    if (dealer != dealers_.end()) {
      if (!dealer->second.has_address) return;
      if (!dealer->second.socket.send(zmq::buffer(message), zmq::send_flags::dontwait)) report_stuck(peer);
      return;
    }
    if (router_.send(zmq::buffer(peer), zmq::send_flags::sndmore | zmq::send_flags::dontwait))
      router_.send(zmq::buffer(message), zmq::send_flags::dontwait);
    else
      report_stuck(peer);
  } catch (const zmq::error_t& error) {
    if (const auto left_out = lines_.unsent.admit(reactor_.now_us()))
      LOG(WARNING) << "a control message could not be sent: " << error.what() << RateLimit::describe(*left_out);
  }
}

// The order of messages has a gap from here on. Later, because whoever sends is in the middle of something.
void ControlPlane::report_stuck(const Peer& peer) {
  reactor_.post(
      [this, peer] {
        if (on_stuck) on_stuck(peer);
      },
      {});
}

bool ControlPlane::drain() {
  if (!std::exchange(polling_.is_due, false)) return false;
  guard_.budget.set_messages_wait(false);
  bool any = guard_.gate.is_open() && drain_gate();
  const auto handshakes = guard_.watch.turn();
  refused_.handshakes += handshakes.failed;
  guard_.budget.watch(handshakes.connected, guard_.port);
  any |= !handshakes.empty();
  if (handshakes.failed > 0)
    if (const auto left_out = lines_.refused.admit(reactor_.now_us()))
      LOG(WARNING) << "a connection to the control port ended before a message could pass: it is of a daemon that has "
                      "another key "
                      "(secret_file) than this one, or of which only one has a key; or of no daemon"
                   << RateLimit::describe(*left_out);
  any |= drain_router();
  // Handlers may connect or disconnect while this runs.
  std::vector<Peer> peers;
  for (const auto& [peer, dealer] : dealers_) peers.push_back(peer);
  for (const auto& peer : peers)
    if (const auto it = dealers_.find(peer); it != dealers_.end()) any |= drain_dealer(peer, it->second);
  polling_.is_due |= any;  // each socket gave a bounded number of messages
  return any;
}

// How much one turn has received from a socket.
struct ControlPlane::Round {
  int messages = 0;
  std::size_t bytes = 0;

  [[nodiscard]] bool is_full() const { return messages >= kMessagesARound || bytes >= kBytesARound; }
};

bool ControlPlane::drain_router() {
  Round round;
  zmq::message_t identity, payload;
  while (!round.is_full() && router_.recv(identity, zmq::recv_flags::dontwait)) {
    ++round.messages;
    int parts = 1;
    std::uint64_t wire_bytes = 0;
    while (router_.get(zmq::sockopt::rcvmore)) {
      [[maybe_unused]] const auto part = router_.recv(payload, zmq::recv_flags::none);
      wire_bytes += link::wire_bytes_of(payload.size());
      ++parts;
    }
    round.bytes += wire_bytes;
    const bool is_member = parts == 2 && deliver(Peer(identity.data<char>(), identity.size()), payload);
    if (parts != 2) ++refused_.messages;
    guard_.budget.delivered(payload, wire_bytes, is_member);
  }
  if (round.is_full()) guard_.budget.set_messages_wait(true);
  return round.messages > 0;
}

bool ControlPlane::is_locked_out(const Peer& peer) const {
  const auto dealer = dealers_.find(peer);
  return dealer != dealers_.end() && dealer->second.locked_out;
}

bool ControlPlane::is_nowhere(const Peer& peer) const {
  const auto dealer = dealers_.find(peer);
  return dealer != dealers_.end() && !dealer->second.has_address;
}

bool ControlPlane::watch_handshakes(Dealer& dealer) {
  const auto handshakes = dealer.watch.turn();
  guard_.budget.watch(handshakes.connected, dealer.port);
  if (handshakes.failed + handshakes.done > 0) dealer.locked_out = handshakes.done == 0;
  return !handshakes.empty();
}

bool ControlPlane::drain_dealer(const Peer& peer, Dealer& dealer) {
  const bool watched = watch_handshakes(dealer);
  Round round;
  const Peer name = peer;  // NOLINT(performance-unnecessary-copy-initialization): a message may end who owns it
  zmq::message_t payload;
  while (!round.is_full() && dealers_.count(name) != 0 && dealer.socket.recv(payload, zmq::recv_flags::dontwait)) {
    ++round.messages;
    round.bytes += payload.size();
    const bool is_member = deliver(name, payload);
    if (!payload.more()) guard_.budget.delivered(payload, link::wire_bytes_of(payload.size()), is_member);
  }
  if (round.is_full()) guard_.budget.set_messages_wait(true);
  return round.messages > 0 || watched;
}

bool ControlPlane::deliver(const Peer& from, const zmq::message_t& message) {
  if (message.size() > kMostOfStranger && !guard_.budget.knows(message)) {
    ++refused_.messages;
    if (const auto left_out = lines_.refused.admit(reactor_.now_us()))
      LOG(WARNING) << "a control message of " << message.size() << " bytes was dropped: its sender has not joined a job"
                   << RateLimit::describe(*left_out);
    return false;
  }
  go_first_on_the_way_of(message);
  return on_message && on_message(from, {message.data<std::byte>(), message.size()});
}

bool ControlPlane::drain_gate() {
  const auto turn = guard_.gate.turn();
  refused_.locked_out += turn.refused;
  if (turn.refused > 0)
    if (const auto left_out = lines_.refused.admit(reactor_.now_us()))
      LOG(WARNING) << "a daemon with another secret was refused" << RateLimit::describe(*left_out);
  return turn.admitted + turn.refused > 0;
}

}  // namespace deft::daemon
