#include "core/link/tcp/transport.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace deft::link::tcp_backend {

constexpr std::uint64_t kMagic = 0x5043544b524f5731;  // the first word of every frame

struct Frame {
  std::uint64_t magic = kMagic;
  std::uint64_t number = 0;  // of the exchange, counted from 0
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;
};

namespace {

constexpr TimeUs kLookUs = 100'000;

std::string error_text() { return std::strerror(errno); }

// Data is on its way again, or the second question whether there is room for it: the peer's kernel, which answers for a process that is
// stopped, too, has answered neither yet.
bool is_unanswered(int wire) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(wire, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  return (info.tcpi_unacked > 0 && info.tcpi_retransmits > 0) || info.tcpi_probes > 1;
}

}  // namespace

tl::unexpected<Error> Transport::lost(std::uint32_t peer, const std::string& cause) const {
  const std::string found = connections_.failure_of(peer);
  return fail(ErrorKind::kLost, "the connection to " + name_of(peer) + " failed: " + (found.empty() ? cause : found),
              "see the log of " + name_of(peer));
}

Result<std::unique_ptr<Transport>> Transport::connect(const LinkSpec& spec, const LinkGroup& group) {
  std::unique_ptr<Transport> transport(new Transport(group));
  transport->stop_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!transport->stop_.valid()) return fail(ErrorKind::kExhausted, "eventfd: " + error_text());
  if (group.nodes == 1) return transport;
  auto connections = connect_peers(spec, group, "tcp");
  if (!connections) return tl::unexpected(connections.error());
  transport->connections_ = *std::move(connections);
  return transport;
}

// One exchange under way with one peer.
struct Transport::Pending {
  std::uint32_t peer = 0;
  Message message;
  Frame out_frame, in_frame;
  const Exchanged* what = nullptr;
  MoveTimer timer{nullptr};
  std::size_t sent = 0, received = 0;  // bytes, the frame's included
  TimeUs answered_us = 0;              // when the peer's kernel was last seen to owe no answer
  [[nodiscard]] bool all_sent() const { return sent == sizeof(Frame) + message.out.size(); }
  [[nodiscard]] bool all_received() const { return received == sizeof(Frame) + message.in.size(); }
  void tell(std::size_t bytes, bool is_sent) const {
    if (bytes > 0)
      timer.tell({.request = what->request, .peer = peer, .bytes = bytes, .part = what->part, .is_sent = is_sent});
  }
};

namespace {

// The missing rest of a frame and of the bytes behind it.
template <typename Byte>
std::span<Byte> rest(std::span<Byte> frame, std::span<Byte> body, std::size_t done) {
  return done < frame.size() ? frame.subspan(done) : body.subspan(done - frame.size());
}

bool again() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

// As much as goes without waiting.
Result<void> Transport::send_some(Pending& p) {
  const int fd = connections_.sockets[p.peer].get();
  while (!p.all_sent()) {
    const auto bytes = rest(std::as_bytes(std::span(&p.out_frame, 1)), p.message.out, p.sent);
    const ssize_t done = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (done < 0 && again()) break;
    if (done < 0) return lost(p.peer, error_text());
    p.sent += static_cast<std::size_t>(done);
    if (p.all_sent()) p.tell(p.message.out.size(), true);
  }
  return {};
}

Result<void> Transport::receive_some(Pending& p) {
  const int fd = connections_.sockets[p.peer].get();
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
    if (p.all_received()) p.tell(p.message.in.size(), false);
  }
  return {};
}

Result<void> Transport::check_answered(std::vector<Pending>& pending) const {
  const TimeUs now_us = MonotonicClock::now();
  for (Pending& p : pending) {
    if (!is_unanswered(connections_.wire(p.peer))) p.answered_us = now_us;
    const TimeUs silent_us = now_us - p.answered_us;
    if (silent_us > silence_us_)
      return lost(p.peer, "its machine has acknowledged nothing for " + std::to_string(silent_us / 1000) + " ms");
  }
  return {};
}

Result<void> Transport::exchange(const Exchanged& what, std::span<const Message> messages) {
  const std::uint64_t number = exchanges_++;
  const MoveTimer timer(what.observer);
  TimeUs looked_us = MonotonicClock::now();
  std::vector<Pending> pending;
  for (std::uint32_t i = 1; i < members_; ++i) {
    const std::uint32_t peer = (own_ + i) % members_;  // so that not all send to the same one first
    pending.push_back({peer, messages[peer], {kMagic, number, what.tag, messages[peer].out.size()}, {}, &what, timer});
    pending.back().in_frame.magic = 0;
    pending.back().answered_us = looked_us;
  }
  std::vector<pollfd> entries;
  while (true) {
    for (Pending& p : pending) {
      if (auto ok = send_some(p); !ok) return ok;
      if (auto ok = receive_some(p); !ok) return ok;
    }
    std::erase_if(pending, [](const Pending& p) { return p.all_sent() && p.all_received(); });
    if (pending.empty()) return {};
    entries.assign(1, {stop_.get(), POLLIN, 0});
    for (const Pending& p : pending) {
      const int events = (p.all_sent() ? 0 : POLLOUT) | (p.all_received() ? 0 : POLLIN);
      entries.push_back({connections_.sockets[p.peer].get(), static_cast<short>(events), 0});
    }
    const int ready = poll(entries.data(), entries.size(), static_cast<int>(kLookUs / 1000));
    if (ready < 0 && errno != EINTR) return lost(pending[0].peer, error_text());
    if (entries[0].revents != 0) return fail(ErrorKind::kLost, "aborted");
    if (MonotonicClock::now() - looked_us < kLookUs) continue;
    looked_us = MonotonicClock::now();
    if (auto ok = check_answered(pending); !ok) return ok;
  }
}

void Transport::abort() {
  const std::uint64_t one = 1;
  static_cast<void>(!write(stop_.get(), &one, sizeof one));
  for (const Descriptor& socket : connections_.sockets)
    if (socket.valid()) shutdown(socket.get(), SHUT_RDWR);  // the peers learn at once
  connections_.abandon();
}

}  // namespace deft::link::tcp_backend
