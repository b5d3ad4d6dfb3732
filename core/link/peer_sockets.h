// Connects the members of a link by TCP, and lets nobody else in.
//
//   auto sockets = connect_peers(spec, group, "gloo");   // blocks: a connected socket for each other member, by member
//
// Each member listens on a free port of the link's NIC. It publishes the address in the group's store, together with a secret that
// it has just made. A member connects to those before it. It says the secret of the member that it wants, and the other side answers
// with the secret of the member that calls. So whoever cannot read the store of the job gets no further: a port scan, a health check,
// another user's program. What strangers send is read up to the length of a greeting, and never passed on. A connection that says
// nothing holds nobody up. The port is closed when all members are connected.
//
// This proves who is at the other end. What travels afterwards is not encrypted.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/link/group.h"

namespace deft::link {

// Owns the descriptor of a socket.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket();
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// `topic`: of the keys in the store; it differs for each set of connections of a link. The sockets do not block, and the own place is
// empty. Errors name the members that are missing: kTimeout at the group's deadline, kLost if one cannot be reached or if the job ends.
Result<std::vector<Socket>> connect_peers(const LinkSpec& spec, const LinkGroup& group, std::string_view topic);

// Connections of strangers to the ports of this process, since it began. Any thread.
struct StrangerCounts {
  std::uint64_t wrong = 0;        // said what no member says, or hung up
  std::uint64_t late = 0;         // did not say all of a greeting in time
  std::uint64_t crowded_out = 0;  // had to make room for newer ones
};
StrangerCounts stranger_counts();

}  // namespace deft::link
