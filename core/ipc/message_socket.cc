#include "core/ipc/message_socket.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "core/ipc/address.h"
#include "core/ipc/messages.h"

namespace deft::ipc {
namespace {

constexpr std::size_t kMaxDescriptors = 4;

tl::unexpected<Error> failed(ErrorKind kind, const std::string& what, int error, const char* fix = "") {
  return fail(kind, what + ": " + std::strerror(error), fix);
}

tl::unexpected<Error> not_connected(const std::string& path, int error) {
  const std::string what = "no deftd answers on " + path + ": " + std::strerror(error);
  if (error == ENOENT || error == ECONNREFUSED)
    return fail(ErrorKind::kUnavailable, what, "start deftd or use deftrun; DEFT_SOCKET names another socket");
  if (error == EACCES || error == EPERM)
    return fail(ErrorKind::kUnavailable, what, "this user may not use that daemon; join the group of the socket");
  return fail(ErrorKind::kUnavailable, what, "check DEFT_SOCKET");
}

void take_descriptors(msghdr& message, Packet& packet) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      packet.descriptors.emplace_back(fd);
    }
  }
}

}  // namespace

Result<MessageSocket> MessageSocket::connect(const std::string& path) {
  auto address = UnixAddress::of(path);
  if (!address) return tl::unexpected(address.error());
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return failed(ErrorKind::kExhausted, "cannot make a socket", errno, "ulimit -n");
  int result = 0;
  do {
    result = ::connect(socket.get(), address->get(), address->bytes());
  } while (result != 0 && errno == EINTR);
  if (result != 0) return not_connected(path, errno);
  return MessageSocket(std::move(socket));
}

Result<void> MessageSocket::send(std::span<const std::byte> bytes, std::span<const int> descriptors) {
  const auto sent = try_send(bytes, descriptors);
  if (!sent) return tl::unexpected(sent.error());
  if (!*sent) return fail(ErrorKind::kExhausted, "the other side of the socket does not read its messages");
  return {};
}

Result<bool> MessageSocket::try_send(std::span<const std::byte> bytes, std::span<const int> descriptors) {
  if (descriptors.size() > kMaxDescriptors || bytes.empty() || bytes.size() > kMaxMessageBytes)
    return fail(ErrorKind::kInvalid, "a message of " + std::to_string(bytes.size()) + " bytes cannot be sent",
                "shorten the name that it carries");
  iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(c), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return true;
  if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
  if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)
    return fail(ErrorKind::kLost, "the other side of the socket is gone");
  return failed(ErrorKind::kExhausted, "cannot send a message", errno);
}

Result<Packet> MessageSocket::receive(TimeUs deadline_us) {
  while (true) {
    auto packet = try_receive();
    if (!packet) return tl::unexpected(packet.error());
    if (*packet) return std::move(**packet);
    const TimeUs left_us = deadline_us - MonotonicClock::now();
    if (left_us <= 0) return fail(ErrorKind::kTimeout, "no answer came over the socket");
    pollfd entry{socket_.get(), POLLIN, 0};
    if (poll(&entry, 1, static_cast<int>(std::min<TimeUs>((left_us + 999) / 1000, INT_MAX))) < 0 && errno != EINTR)
      return failed(ErrorKind::kInternal, "cannot wait for the socket", errno);
  }
}

bool MessageSocket::has_unread() const {
  int bytes = 0;
  return ioctl(socket_.get(), SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

void MessageSocket::limit_sending(TimeUs most_us) const {
  const timeval limit{most_us / 1'000'000, most_us % 1'000'000};
  setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

// Looks at the next message without taking its descriptors out of the queue: nothing is closed by this.
bool MessageSocket::next_has_descriptors() const {
  msghdr message{};
  ssize_t got = 0;
  do {
    got = recvmsg(socket_.get(), &message, MSG_PEEK | MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  return got >= 0 && (message.msg_flags & MSG_CTRUNC) != 0;
}

Result<std::optional<Packet>> MessageSocket::try_receive() {
  if (!takes_descriptors_ && next_has_descriptors())
    return fail(ErrorKind::kViolation, "descriptors came with a message of a worker",
                "no message of a worker carries any: use libdeft of the daemon's version");
  std::array<std::byte, kMaxMessageBytes> bytes;  // most messages are short: only what comes is written and copied
  iovec piece{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = 0;
  do {
    got = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    // A peer that ends with our messages unread is reported once as a reset, before its own last messages.
  } while (got < 0 && (errno == EINTR || errno == ECONNRESET));
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::optional<Packet>{};
  if (got < 0) return failed(ErrorKind::kInternal, "cannot receive a message", errno);
  Packet packet;
  take_descriptors(message, packet);
  if (message.msg_flags & MSG_TRUNC) return fail(ErrorKind::kViolation, "a message longer than any of Deft's");
  if (message.msg_flags & MSG_CTRUNC)
    return fail(ErrorKind::kExhausted, "descriptors that came with a message were lost",
                "raise the limit on open files (ulimit -n)");
  packet.bytes.assign(bytes.begin(), bytes.begin() + got);
  return std::optional<Packet>(std::move(packet));
}

void MessageSocket::shut_down() const { ::shutdown(socket_.get(), SHUT_RDWR); }

// Credentials come with each message, also with an empty one. So it can be told from the end.
bool MessageSocket::discard_unread() const {
  constexpr int kOn = 1, kMostMessages = 64;
  if (setsockopt(socket_.get(), SOL_SOCKET, SO_PASSCRED, &kOn, sizeof kOn) != 0) return false;
  for (int i = 0; i < kMostMessages;) {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(ucred))> control{};
    const auto receive = [&](int flags) {
      msghdr message{};
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      const ssize_t got = recvmsg(socket_.get(), &message, flags | MSG_DONTWAIT);
      return std::pair(got, message);
    };
    const auto [got, next] = receive(MSG_PEEK);
    if (got < 0 && (errno == EINTR || errno == ECONNRESET)) continue;
    if (got < 0 || (next.msg_flags & MSG_CTRUNC) != 0) return false;
    if (next.msg_controllen == 0) return true;
    receive(0);
    ++i;
  }
  return false;
}

Result<PeerIdentity> MessageSocket::peer() const {
  ucred credentials{};
  socklen_t bytes = sizeof credentials;
  if (getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0)
    return failed(ErrorKind::kInternal, "the kernel does not say who is at the other end", errno);
  return PeerIdentity{credentials.pid, credentials.uid};
}

}  // namespace deft::ipc
