#include "core/link/gloo/mesh_sockets.h"

#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <string>

#include "core/base/socket_priority.h"

namespace deft::link::gloo_backend {
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

bool has_end(int fd, NameOf name_of, const std::vector<sockaddr_storage>& ends) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  if (name_of(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) return false;
  return std::any_of(ends.begin(), ends.end(), [&](const auto& end) { return same_end(name, end); });
}

std::vector<int> open_descriptors() {
  std::vector<int> found;
  std::error_code ignored;  // no /proc: then none is found
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const std::string name = entry.path().filename().string();
    int fd = -1;
    if (std::from_chars(name.data(), name.data() + name.size(), fd).ec == std::errc()) found.push_back(fd);
  }
  return found;
}

}  // namespace

void put_first(const std::vector<sockaddr_storage>& ends) {
  for (const int fd : open_descriptors())
    if (has_end(fd, getsockname, ends) || has_end(fd, getpeername, ends)) deft::put_first(fd);
}

}  // namespace deft::link::gloo_backend
