// A full mesh of gloo's TCP pairs over one NIC: connects by a deadline, can be poisoned from any thread, and never
// leaves a thread or a socket behind.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/link/link.h"

namespace gloo::transport {
class Context;
class Device;
class Pair;
class UnboundBuffer;
}  // namespace gloo::transport

namespace deft::link::gloo_backend {

// What gloo threw when it dealt with one peer.
struct PeerFailure : std::runtime_error {
  PeerFailure(std::uint32_t peer_node, const std::string& cause) : std::runtime_error(cause), peer(peer_node) {}
  std::uint32_t peer;
};

// Calls `deal`; what it throws becomes a failure of this peer.
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
  // Meets the other nodes in the group's store and connects to each of them.
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

  // Waits a moment until the peers have got what this node sent last; a peer that parts as well ends the wait.
  void part();

  // Makes every wait on this mesh throw, now and later. Any thread. Afterwards gloo touches no buffer any more.
  void poison();

 private:
  Mesh(std::uint32_t node, std::uint32_t nodes) : node_(node), nodes_(nodes) {}
  Result<void> create(const std::string& address);
  Result<void> connect_pairs(const LinkSpec& spec, const LinkGroup& group);

  const std::uint32_t node_;
  const std::uint32_t nodes_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;
  std::vector<sockaddr_storage> listeners_;  // of the mesh: each connection has one of them on one of its ends
};

}  // namespace deft::link::gloo_backend
