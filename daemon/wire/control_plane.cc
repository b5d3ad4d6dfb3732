#include "daemon/wire/control_plane.h"

#include <glog/logging.h>
#include <sys/epoll.h>

#include <array>
#include <cstring>
#include <fstream>
#include <vector>

#include "core/base/socket_priority.h"

namespace deft::daemon {
namespace {

constexpr std::size_t kZ85KeyChars = 40;
constexpr std::int64_t kMaxMessageBytes = 64 << 20;
constexpr int kMessagesARound = 512;   // of a socket, so that a flood does not keep sessions and timers waiting
constexpr int kUnreadMessages = 4096;  // of one peer; its further messages wait on its side
constexpr std::string_view kInternet = "tcp://";
constexpr int kLowDelay = 0x10;  // IPTOS_LOWDELAY
constexpr char kAuthenticationEndpoint[] = "inproc://zeromq.zap.01";

Result<std::string> read_secret(const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream in(path);
  std::string key;
  if (!in || !(in >> key))
    return fail(ErrorKind::kInvalid, "cannot read a key from " + path, "make one with `deft keygen > FILE`");
  if (key.size() != kZ85KeyChars)
    return fail(ErrorKind::kInvalid, path + " holds no CURVE key of 40 characters",
                "make one with `deft keygen > FILE`");
  return key;
}

// Orders must not wait behind gradients for a NIC. The TOS of a socket sets its priority in this kernel only where IPv4
// set it on a connection; those that a listener accepts have its TOS alone. So the one that `message` came by is told.
void go_first_on_the_way_of(const zmq::message_t& message) {
  const int fd = zmq_msg_get(message.handle(), ZMQ_SRCFD);
  if (fd >= 0) put_first(fd);
}

}  // namespace

ControlPlane::ControlPlane(Reactor& reactor, std::string secret_key)
    : reactor_(reactor), router_(context_, zmq::socket_type::router), secret_key_(std::move(secret_key)) {}

Result<std::unique_ptr<ControlPlane>> ControlPlane::open(Reactor& reactor, const Options& options) {
  auto secret = read_secret(options.secret_file);
  if (!secret) return tl::unexpected(secret.error());
  std::unique_ptr<ControlPlane> plane(new ControlPlane(reactor, std::move(*secret)));
  if (!plane->secret_key_.empty()) {
    std::array<char, kZ85KeyChars + 1> public_key{};
    if (zmq_curve_public(public_key.data(), plane->secret_key_.c_str()) != 0)
      return fail(ErrorKind::kInvalid, "the key in " + options.secret_file + " is not valid",
                  "make one with `deft keygen`; this ZeroMQ must support CURVE");
    plane->public_key_ = public_key.data();
  }
  if (auto ok = plane->listen(options.listen); !ok) return tl::unexpected(ok.error());
  plane->poller_ = reactor.add_poller([p = plane.get()](bool) { return p->drain(); });
  return plane;
}

ControlPlane::~ControlPlane() {
  if (poller_ != 0) reactor_.remove_poller(poller_);
  for (auto& [peer, socket] : dealers_) reactor_.unwatch(socket.get(zmq::sockopt::fd));
  reactor_.unwatch(router_.get(zmq::sockopt::fd));
  if (authentication_) reactor_.unwatch(authentication_.get(zmq::sockopt::fd));
}

Result<void> ControlPlane::listen(const std::string& address) {
  try {
    if (!secret_key_.empty()) {
      authentication_ = zmq::socket_t(context_, zmq::socket_type::rep);
      authentication_.bind(kAuthenticationEndpoint);
      watch(authentication_);
    }
    guard(router_, true);
    router_.set(zmq::sockopt::router_mandatory, true);
    router_.bind(std::string(kInternet) + address);
    watch(router_);
  } catch (const zmq::error_t& error) {
    return fail(error.num() == EADDRINUSE ? ErrorKind::kExhausted : ErrorKind::kInvalid,
                "cannot listen on " + address + ": " + error.what(),
                error.num() == EADDRINUSE ? "another program holds this port: stop it, or choose another DEFT_LISTEN"
                                          : "DEFT_LISTEN is host:port with an address of this machine");
  }
  return {};
}

void ControlPlane::guard(zmq::socket_t& socket, bool server) {
  socket.set(zmq::sockopt::linger, 500);
  socket.set(zmq::sockopt::sndhwm, 0);
  socket.set(zmq::sockopt::rcvhwm, kUnreadMessages);
  socket.set(zmq::sockopt::maxmsgsize, kMaxMessageBytes);
  socket.set(zmq::sockopt::tos, kLowDelay);
  if (secret_key_.empty()) return;
  socket.set(zmq::sockopt::curve_secretkey, secret_key_);
  if (server) {
    socket.set(zmq::sockopt::curve_server, true);
  } else {
    socket.set(zmq::sockopt::curve_publickey, public_key_);
    socket.set(zmq::sockopt::curve_serverkey, public_key_);
  }
}

void ControlPlane::watch(zmq::socket_t& socket) {
  // ZeroMQ's descriptor tells changes only; drain() as a poller asks the sockets themselves before every sleep.
  const auto ok = reactor_.watch(socket.get(zmq::sockopt::fd), EPOLLIN | EPOLLET, [this](std::uint32_t) { drain(); });
  LOG_IF(ERROR, !ok) << ok.error().message();
}

Result<Peer> ControlPlane::connect(const std::string& address) {
  const Peer peer = "to " + address + " #" + std::to_string(next_dealer_++);
  try {
    zmq::socket_t socket(context_, zmq::socket_type::dealer);
    guard(socket, false);
    socket.set(zmq::sockopt::reconnect_ivl, 50);
    socket.set(zmq::sockopt::reconnect_ivl_max, 1000);
    socket.connect(std::string(kInternet) + address);
    watch(socket);
    dealers_.emplace(peer, std::move(socket));
  } catch (const zmq::error_t& error) {
    return fail(ErrorKind::kInvalid, "cannot connect to the leader at '" + address + "': " + error.what(),
                "DEFT_LEADER is host:port");
  }
  return peer;
}

void ControlPlane::disconnect(const Peer& peer) {
  const auto it = dealers_.find(peer);
  if (it == dealers_.end()) return;
  reactor_.unwatch(it->second.get(zmq::sockopt::fd));
  dealers_.erase(it);
}

void ControlPlane::send(const Peer& peer, const std::string& message) {
  try {
    const auto dealer = dealers_.find(peer);
    if (dealer != dealers_.end()) {
      dealer->second.send(zmq::buffer(message), zmq::send_flags::dontwait);
      return;
    }
    router_.send(zmq::buffer(peer), zmq::send_flags::sndmore | zmq::send_flags::dontwait);
    router_.send(zmq::buffer(message), zmq::send_flags::dontwait);
  } catch (const zmq::error_t& error) {
    LOG(WARNING) << "a control message could not be sent: " << error.what();
  }
}

bool ControlPlane::drain() {
  bool any = authentication_ && drain_authentication();
  any |= drain_router();
  // Handlers may connect or disconnect while this runs.
  std::vector<Peer> peers;
  for (const auto& [peer, socket] : dealers_) peers.push_back(peer);
  for (const auto& peer : peers)
    if (const auto it = dealers_.find(peer); it != dealers_.end()) any |= drain_dealer(peer, it->second);
  return any;
}

bool ControlPlane::drain_router() {
  int received = 0;
  zmq::message_t identity, payload;
  while (received < kMessagesARound && router_.recv(identity, zmq::recv_flags::dontwait)) {
    ++received;
    int parts = 1;
    while (router_.get(zmq::sockopt::rcvmore)) {
      [[maybe_unused]] const auto part = router_.recv(payload, zmq::recv_flags::none);
      ++parts;
    }
    if (parts == 2) {
      deliver(Peer(identity.data<char>(), identity.size()), payload);
    } else {
      ++rejected_;
    }
  }
  return received > 0;
}

bool ControlPlane::drain_dealer(const Peer& peer, zmq::socket_t& socket) {
  int received = 0;
  const Peer name = peer;  // NOLINT(performance-unnecessary-copy-initialization): a message may end who owns it
  zmq::message_t payload;
  while (received < kMessagesARound && dealers_.count(name) != 0 && socket.recv(payload, zmq::recv_flags::dontwait)) {
    ++received;
    deliver(name, payload);
  }
  return received > 0;
}

void ControlPlane::deliver(const Peer& from, const zmq::message_t& message) {
  go_first_on_the_way_of(message);
  if (on_message) on_message(from, {message.data<std::byte>(), message.size()});
}

// ZAP (ZeroMQ RFC 27): a client is let in when its public key is ours, that is, when it holds the same secret.
bool ControlPlane::drain_authentication() {
  bool any = false;
  zmq::message_t frame;
  while (authentication_.recv(frame, zmq::recv_flags::dontwait)) {
    any = true;
    std::vector<std::string> frames{frame.to_string()};
    while (authentication_.get(zmq::sockopt::rcvmore)) {
      [[maybe_unused]] const auto received = authentication_.recv(frame, zmq::recv_flags::none);
      frames.push_back(frame.to_string());
    }
    // version, request id, domain, address, identity, mechanism, credentials
    bool admitted = false;
    if (frames.size() == 7 && frames[5] == "CURVE" && frames[6].size() == 32) {
      std::array<char, kZ85KeyChars + 1> key{};
      zmq_z85_encode(key.data(), reinterpret_cast<const std::uint8_t*>(frames[6].data()), 32);
      admitted = public_key_ == key.data();
    }
    if (!admitted) LOG(WARNING) << "a daemon with another secret was refused";
    const std::array<std::string, 6> answer{
        "1.0", frames.size() > 1 ? frames[1] : "", admitted ? "200" : "400", admitted ? "OK" : "wrong key", "", ""};
    for (std::size_t i = 0; i < answer.size(); ++i)
      authentication_.send(zmq::buffer(answer[i]),
                           i + 1 < answer.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
  }
  return any;
}

}  // namespace deft::daemon
