// The SO_PRIORITY of each of this process's connected TCP sockets: 6 goes before 0 at a NIC (core/base/socket_priority.h).
#pragma once

#include <sys/socket.h>

#include <filesystem>
#include <set>
#include <string>

namespace deft::link::testing {

inline std::multiset<int> socket_priorities() {
  std::multiset<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0 || peer.ss_family != AF_INET) continue;
    int priority = -1;
    size = sizeof priority;
    if (getsockopt(fd, SOL_SOCKET, SO_PRIORITY, &priority, &size) == 0) found.insert(priority);
  }
  return found;
}

}  // namespace deft::link::testing
