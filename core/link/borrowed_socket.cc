#include "core/link/borrowed_socket.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>

#include "core/base/descriptor.h"

namespace deft::link {
namespace {

bool same_end(const sockaddr_storage& a, const sockaddr_storage& b) {
  if (a.ss_family != b.ss_family) return false;
  if (a.ss_family == AF_INET) {
    const auto& x = reinterpret_cast<const sockaddr_in&>(a);
    const auto& y = reinterpret_cast<const sockaddr_in&>(b);
    return x.sin_port == y.sin_port && x.sin_addr.s_addr == y.sin_addr.s_addr;
  }
  if (a.ss_family != AF_INET6) return false;
  const auto& x = reinterpret_cast<const sockaddr_in6&>(a);
  const auto& y = reinterpret_cast<const sockaddr_in6&>(b);
  return x.sin6_port == y.sin6_port && std::memcmp(&x.sin6_addr, &y.sin6_addr, sizeof x.sin6_addr) == 0;
}

using NameOf = int (*)(int, sockaddr*, socklen_t*);

std::optional<sockaddr_storage> end_of(int fd, NameOf name_of) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  if (name_of(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) return std::nullopt;
  return name;
}

bool is_same(const BorrowedSocket& socket, int fd) {
  const auto own = end_of(fd, getsockname), other = end_of(fd, getpeername);
  return own && other && same_end(*own, socket.own) && same_end(*other, socket.other);
}

}  // namespace

BorrowedSocket borrow_socket(std::uint32_t peer, int fd) {
  BorrowedSocket socket{.peer = peer, .fd = fd};
  if (const auto own = end_of(fd, getsockname)) socket.own = *own;
  if (const auto other = end_of(fd, getpeername)) socket.other = *other;
  return socket;
}

std::optional<std::uint64_t> read_bytes(const BorrowedSocket& socket) {
  if (!is_same(socket, socket.fd)) return std::nullopt;
  tcp_info info{};
  socklen_t size = sizeof info;
  // The kernel is asked for the unread bytes last, so bytes that come between the two questions count as unread.
  int unread = 0;
  if (getsockopt(socket.fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  if (ioctl(socket.fd, SIOCINQ, &unread) != 0) return std::nullopt;
  const std::uint64_t received = info.tcpi_bytes_received;
  return received - std::min(received, static_cast<std::uint64_t>(unread));
}

// Through a descriptor of its own, which nobody closes between the two looks.
void shut_down(const BorrowedSocket& socket) {
  const Descriptor own(fcntl(socket.fd, F_DUPFD_CLOEXEC, 0));
  if (own.valid() && is_same(socket, own.get())) ::shutdown(own.get(), SHUT_RDWR);
}

void add_kernel_traffic(const BorrowedSocket& socket, PeerTraffic& sum) {
  if (!is_same(socket, socket.fd)) return;
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(socket.fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return;
  if (size < offsetof(tcp_info, tcpi_busy_time) + sizeof info.tcpi_busy_time) return;  // a kernel before 4.10
  sum.sent_bytes += info.tcpi_bytes_acked;
  sum.busy_us += static_cast<TimeUs>(info.tcpi_busy_time);
  sum.resent += info.tcpi_total_retrans;
  if (sum.rtt_us == 0 || info.tcpi_min_rtt < sum.rtt_us) sum.rtt_us = info.tcpi_min_rtt;
}

}  // namespace deft::link
