// A full mesh of gloo's TCP pairs over one NIC: connects by a deadline, can be poisoned from any thread, and never
// leaves a thread or a socket behind.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/link/borrowed_socket.h"
#include "core/link/link.h"
#include "core/link/peer_sockets.h"
#include "core/link/thread_clocks.h"

namespace gloo::transport {
class Pair;
class UnboundBuffer;
}  // namespace gloo::transport
namespace gloo::transport::tcp {
class Device;
}  // namespace gloo::transport::tcp

namespace deft::link::gloo_backend {

class GuardedContext;
class SleepingLoop;

// What gloo threw when it dealt with one peer.
struct PeerFailure : std::runtime_error {
  PeerFailure(std::uint32_t peer_node, const std::string& cause) : std::runtime_error(cause), peer(peer_node) {}
  std::uint32_t peer;
};

// Calls `deal`; its exception becomes a failure of this peer.
template <typename Deal>
void naming_peer(std::uint32_t peer, Deal deal) {
  try {
    deal();
  } catch (const std::exception& e) {
    throw PeerFailure(peer, e.what());
  }
}

class Mesh {
 public:
  // Connects to the other nodes (core/link/peer_sockets.h), and hands the connections to gloo.
  static Result<std::unique_ptr<Mesh>> connect(const LinkSpec& spec, const LinkGroup& group);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  [[nodiscard]] std::uint32_t node() const { return node_; }
  [[nodiscard]] std::uint32_t nodes() const { return nodes_; }
  [[nodiscard]] gloo::transport::Pair& pair(std::uint32_t peer);
  [[nodiscard]] std::unique_ptr<gloo::transport::UnboundBuffer> unbound(std::byte* data, std::size_t bytes);

  // Lets this mesh's traffic go before other traffic that waits for the NIC, if the kernel's queue there has priorities
  // (pfifo_fast and prio have).
  void go_first();

  // Adds the bytes that the connections have carried to `sums`, which has an entry for each node.
  void add_traffic(std::vector<PeerTraffic>& sums) const;

  // Adds the clocks of the threads that serve the connections, if they run. `number`: of this mesh among the link's.
  void add_thread_clocks(std::vector<ThreadClock>& clocks, std::uint16_t number) const;

  // Waits a moment until the peers have got what this node sent last; a peer that parts as well ends the wait.
  void part();

  // Why the connection to this peer has ended, if that was found out; else empty. Any thread.
  [[nodiscard]] std::string failure_of(std::uint32_t peer) const { return connections_.failure_of(peer); }

  // Makes every wait on this mesh throw, now and later. Any thread. Afterwards gloo touches no buffer any more.
  void poison();

 private:
  Mesh(std::uint32_t node, std::uint32_t nodes);
  // `member`: the word for a peer in messages.
  Result<void> take(const std::string& address, const std::string& member);

  const std::uint32_t node_;
  const std::uint32_t nodes_;
  std::unique_ptr<SleepingLoop> loop_;  // of the device, which it outlives
  std::shared_ptr<gloo::transport::tcp::Device> device_;
  std::shared_ptr<GuardedContext> context_;
  PeerConnections connections_;          // without their sockets, which the pairs own
  std::vector<BorrowedSocket> sockets_;  // the pairs' TCP sockets, also if the pairs work on local ones
};

}  // namespace deft::link::gloo_backend
