#include "core/link/tcp/transport.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "core/link/rendezvous.h"
#include "core/link/tcp/address.h"

namespace deft::link::tcp_backend {
namespace {

constexpr std::uint64_t kMagic = 0x5043544b524f5731;  // the first word on a connection, and of every frame

struct Greeting {
  std::uint64_t magic = kMagic;
  std::uint64_t member = 0;
};

struct Frame {
  std::uint64_t magic = kMagic;
  std::uint64_t number = 0;  // of the exchange, counted from 0
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;
};

int milliseconds_until(TimeUs deadline_us) {
  return static_cast<int>(std::clamp<TimeUs>((deadline_us - MonotonicClock::now() + 999) / 1000, 0, 1'000'000));
}

// Waits until `fd` is ready for `events`; false at the deadline.
bool await(int fd, short events, TimeUs deadline_us) {
  while (true) {
    pollfd entry{fd, events, 0};
    const int ready = poll(&entry, 1, milliseconds_until(deadline_us));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

std::string error_text() { return std::strerror(errno); }

// The whole greeting within the deadline; an empty text, or what went wrong.
std::string receive_greeting(int fd, Greeting& greeting, TimeUs deadline_us) {
  auto* const bytes = reinterpret_cast<char*>(&greeting);
  std::size_t have = 0;
  while (have < sizeof greeting) {
    if (!await(fd, POLLIN, deadline_us)) return "it said nothing in time";
    const ssize_t got = recv(fd, bytes + have, sizeof greeting - have, 0);
    if (got == 0) return "it closed the connection";
    if (got < 0 && errno != EAGAIN && errno != EINTR) return error_text();
    if (got > 0) have += static_cast<std::size_t>(got);
  }
  return greeting.magic == kMagic ? "" : "it speaks another protocol";
}

void tune(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

tl::unexpected<Error> Transport::lost(std::uint32_t peer, const std::string& cause) const {
  return fail(ErrorKind::kLost, "the connection to " + name_of(peer) + " failed: " + cause,
              "see the log of " + name_of(peer));
}

Result<std::unique_ptr<Transport>> Transport::connect(const LinkSpec& spec, const LinkGroup& group) {
  std::unique_ptr<Transport> transport(new Transport(group.node, group.nodes, group.member));
  transport->stop_ = Socket(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!transport->stop_.valid()) return fail(ErrorKind::kExhausted, "eventfd: " + error_text());
  if (group.nodes == 1) return transport;
  if (auto ok = transport->meet_all(spec, group); !ok) return tl::unexpected(ok.error());
  return transport;
}

// Everyone listens, dials the members before it and is dialled by those behind it.
Result<void> Transport::meet_all(const LinkSpec& spec, const LinkGroup& group) {
  const auto address = make_address(spec.address, 0);
  if (!address) return tl::unexpected(address.error());
  const Socket listener(socket(address->family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid() || bind(listener.get(), address->get(), address->bytes) != 0 ||
      listen(listener.get(), static_cast<int>(members_)) != 0)
    return fail(ErrorKind::kUnavailable, "cannot listen on " + spec.address + ": " + error_text());
  const auto port = port_of(listener.get());
  if (!port) return tl::unexpected(port.error());
  const std::string text = to_text(spec.address, *port);
  auto values = meet(group, "tcp", std::as_bytes(std::span(text)));
  if (!values) return tl::unexpected(values.error());
  for (std::uint32_t peer = 0; peer < members_; ++peer)
    if (!from_text((*values)[peer])) return fail(ErrorKind::kViolation, name_of(peer) + " published a bad address");
  if (auto ok = dial(*values, group.connect_deadline_us); !ok) return ok;
  return answer(listener.get(), group.connect_deadline_us);
}

Result<void> Transport::dial(std::span<const std::vector<std::byte>> values, TimeUs deadline_us) {
  for (std::uint32_t peer = 0; peer < own_; ++peer) {
    const Address address = *from_text(values[peer]);
    Socket made(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!made.valid()) return fail(ErrorKind::kExhausted, "socket: " + error_text());
    tune(made.get());
    if (::connect(made.get(), address.get(), address.bytes) != 0 && errno != EINPROGRESS)
      return fail(ErrorKind::kLost, "no connection to " + name_of(peer) + ": " + error_text());
    if (!await(made.get(), POLLOUT, deadline_us))
      return fail(ErrorKind::kTimeout, name_of(peer) + " came, but took no connection in time",
                  "check that a firewall lets TCP through between the nodes");
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(made.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    const Greeting greeting{kMagic, own_};
    if (error != 0) return fail(ErrorKind::kLost, "no connection to " + name_of(peer) + ": " + std::strerror(error));
    if (send(made.get(), &greeting, sizeof greeting, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof greeting))
      return lost(peer, error_text());
    sockets_[peer] = std::move(made);
  }
  return {};
}

Result<void> Transport::answer(int listener, TimeUs deadline_us) {
  const auto missing = [this] {
    std::string names;
    for (std::uint32_t peer = own_ + 1; peer < members_; ++peer)
      if (!sockets_[peer].valid()) names += (names.empty() ? "" : ", ") + name_of(peer);
    return names;
  };
  while (!missing().empty()) {
    if (!await(listener, POLLIN, deadline_us))
      return fail(ErrorKind::kTimeout, missing() + " came, but did not connect in time",
                  "check that a firewall lets TCP through between the nodes");
    Socket made(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!made.valid()) continue;  // it has gone again
    tune(made.get());
    Greeting greeting;
    const std::string problem = receive_greeting(made.get(), greeting, deadline_us);
    const bool expected = problem.empty() && greeting.member > own_ && greeting.member < members_;
    if (expected && !sockets_[greeting.member].valid()) sockets_[greeting.member] = std::move(made);
  }
  return {};
}

// One exchange under way with one peer.
struct Transport::Pending {
  std::uint32_t peer = 0;
  Message message;
  Frame out_frame, in_frame;
  std::size_t sent = 0, received = 0;  // bytes, the frame's included
  [[nodiscard]] bool all_sent() const { return sent == sizeof(Frame) + message.out.size(); }
  [[nodiscard]] bool all_received() const { return received == sizeof(Frame) + message.in.size(); }
};

namespace {

// What is still to come of a frame and the bytes behind it.
template <typename Byte>
std::span<Byte> rest(std::span<Byte> frame, std::span<Byte> body, std::size_t done) {
  return done < frame.size() ? frame.subspan(done) : body.subspan(done - frame.size());
}

bool again() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

// Sends and receives as much as goes without waiting.
Result<void> Transport::step(Pending& p) {
  const int fd = sockets_[p.peer].get();
  while (!p.all_sent()) {
    const auto bytes = rest(std::as_bytes(std::span(&p.out_frame, 1)), p.message.out, p.sent);
    const ssize_t done = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (done < 0 && again()) break;
    if (done < 0) return lost(p.peer, error_text());
    p.sent += static_cast<std::size_t>(done);
  }
  while (!p.all_received()) {
    const auto bytes = rest(std::as_writable_bytes(std::span(&p.in_frame, 1)), p.message.in, p.received);
    const ssize_t done = recv(fd, bytes.data(), bytes.size(), 0);
    if (done < 0 && again()) break;
    if (done == 0) return lost(p.peer, "it closed its end");
    if (done < 0) return lost(p.peer, error_text());
    p.received += static_cast<std::size_t>(done);
    const bool wrong =
        p.received >= sizeof(Frame) && (p.in_frame.magic != kMagic || p.in_frame.number != p.out_frame.number ||
                                        p.in_frame.tag != p.out_frame.tag || p.in_frame.bytes != p.message.in.size());
    if (wrong)
      return fail(ErrorKind::kMismatch, name_of(p.peer) + " and " + name_of(own_) + " run different operations",
                  "install the same version of Deft on all nodes");
  }
  return {};
}

Result<void> Transport::exchange(std::uint64_t tag, std::span<const Message> messages) {
  const std::uint64_t number = exchanges_++;
  std::vector<Pending> pending;
  for (std::uint32_t i = 1; i < members_; ++i) {
    const std::uint32_t peer = (own_ + i) % members_;  // so that not all send to the same one first
    pending.push_back({peer, messages[peer], {kMagic, number, tag, messages[peer].out.size()}, {}});
    pending.back().in_frame.magic = 0;
  }
  std::vector<pollfd> entries;
  while (true) {
    for (Pending& p : pending)
      if (auto ok = step(p); !ok) return ok;
    std::erase_if(pending, [](const Pending& p) { return p.all_sent() && p.all_received(); });
    if (pending.empty()) return {};
    entries.assign(1, {stop_.get(), POLLIN, 0});
    for (const Pending& p : pending) {
      const int events = (p.all_sent() ? 0 : POLLOUT) | (p.all_received() ? 0 : POLLIN);
      entries.push_back({sockets_[p.peer].get(), static_cast<short>(events), 0});
    }
    if (poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) return lost(pending[0].peer, error_text());
    if (entries[0].revents != 0) return fail(ErrorKind::kLost, "aborted");
  }
}

void Transport::abort() {
  const std::uint64_t one = 1;
  static_cast<void>(!write(stop_.get(), &one, sizeof one));
  for (const Socket& socket : sockets_)
    if (socket.valid()) shutdown(socket.get(), SHUT_RDWR);  // the peers learn at once
}

}  // namespace deft::link::tcp_backend
