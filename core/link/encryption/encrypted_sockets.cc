#include "core/link/encryption/encrypted_sockets.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/base/clock.h"
#include "core/base/signals.h"

namespace deft::link {
namespace {

constexpr TimeUs kPartingUs = 2'000'000;
constexpr int kBufferBytes = 1 << 20;  // of plain sockets; the kernel may give less
constexpr std::uint64_t kWakeToken = ~std::uint64_t{0};

tl::unexpected<Error> exhausted(const std::string& call) {
  return fail(ErrorKind::kExhausted, call + ": " + std::strerror(errno),
              "raise the limit on open files (ulimit -n): an encrypted connection takes three");
}

}  // namespace

EncryptedSockets::EncryptedSockets()
    : events_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Result<std::unique_ptr<EncryptedSockets>> EncryptedSockets::start(std::vector<EncryptedConnection::Wire> wires) {
  std::unique_ptr<EncryptedSockets> made(new EncryptedSockets);
  if (!made->events_.valid() || !made->wake_.valid()) return exhausted("epoll");
  if (auto ok = made->watch(made->wake_.get(), kWakeToken); !ok) return tl::unexpected(ok.error());
  for (EncryptedConnection::Wire& wire : wires)
    if (auto ok = made->add(std::move(wire)); !ok) return tl::unexpected(ok.error());
  if (auto ok = made->start_thread(); !ok) return tl::unexpected(ok.error());
  return made;
}

Result<void> EncryptedSockets::add(EncryptedConnection::Wire wire) {
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) return exhausted("socketpair");
  for (const int end : ends) setsockopt(end, SOL_SOCKET, SO_SNDBUF, &kBufferBytes, sizeof kBufferBytes);
  connections_.push_back(
      std::make_unique<EncryptedConnection>(std::move(wire), Descriptor(ends[0]), Descriptor(ends[1])));
  const std::uint64_t token = 2 * (connections_.size() - 1);
  if (auto ok = watch(connections_.back()->inner(), token); !ok) return ok;
  return watch(connections_.back()->wire(), token + 1);
}

// Edges: a socket that stays ready, or that nobody reads any more, does not wake the thread again and again.
Result<void> EncryptedSockets::watch(int fd, std::uint64_t token) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.u64 = token;
  if (epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return exhausted("epoll_ctl");
  return {};
}

Result<void> EncryptedSockets::start_thread() {
  const AllSignalsBlocked inherited;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return fail(ErrorKind::kExhausted, std::string("no thread: ") + error.what(),
                "raise the limit on threads (ulimit -u)");
  }
  pthread_setname_np(thread_.native_handle(), "deft encrypt");
  return {};
}

EncryptedSockets::~EncryptedSockets() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  wake();
  thread_.join();
}

void EncryptedSockets::abandon() {
  abandoned_ = true;
  wake();
}

void EncryptedSockets::wake() {
  const std::uint64_t one = 1;
  static_cast<void>(!write(wake_.get(), &one, sizeof one));
}

void EncryptedSockets::run() {
  bool more = false;
  while (!stopping_ && !abandoned_) {
    wait(more ? 0 : -1);
    more = advance(false);
  }
  part();
  while (!stopping_) wait(-1);
}

void EncryptedSockets::wait(int milliseconds) {
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(events_.get(), events.data(), static_cast<int>(events.size()), milliseconds);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t token = events[static_cast<std::size_t>(i)].data.u64;
    if (token != kWakeToken) connections_[token / 2]->note(token % 2 == 1);
  }
}

bool EncryptedSockets::advance(bool last) {
  bool more = false;
  for (const auto& connection : connections_) more = connection->advance(last) || more;
  return more;
}

// The bytes that the user has written before go first.
void EncryptedSockets::part() {
  const TimeUs until_us = MonotonicClock::now() + (abandoned_ ? 0 : kPartingUs);
  for (const auto& connection : connections_) connection->leave();
  while (true) {
    const bool more = advance(true);
    const TimeUs left_us = until_us - MonotonicClock::now();
    const bool sends = std::ranges::any_of(connections_, [](const auto& connection) { return connection->sends(); });
    if (!sends || left_us <= 0 || abandoned_) break;
    wait(more ? 0 : static_cast<int>(left_us / 1000 + 1));
  }
  for (const auto& connection : connections_) connection->shut();
}

EncryptedConnection* EncryptedSockets::find(std::uint32_t peer) const {
  const auto found = std::ranges::find_if(connections_, [&](const auto& each) { return each->peer() == peer; });
  return found == connections_.end() ? nullptr : found->get();
}

Descriptor EncryptedSockets::take_plain(std::uint32_t peer) {
  EncryptedConnection* const connection = find(peer);
  return connection == nullptr ? Descriptor() : connection->take_plain();
}

int EncryptedSockets::wire(std::uint32_t peer) const {
  const EncryptedConnection* const connection = find(peer);
  return connection == nullptr ? -1 : connection->wire();
}

std::string EncryptedSockets::failure_of(std::uint32_t peer) const {
  const EncryptedConnection* const connection = find(peer);
  return connection == nullptr ? std::string() : connection->failure();
}

}  // namespace deft::link
