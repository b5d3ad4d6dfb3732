#include "core/link/gloo/mesh.h"

#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "core/base/signals.h"
#include "core/base/socket_priority.h"
#include "core/link/address.h"
#include "core/link/gloo/guarded_context.h"
#include "core/link/try_threads.h"

namespace deft::link::gloo_backend {
namespace {

// Longer than any job; gloo adds it to a clock, so it must not be the largest number there is.
constexpr std::chrono::hours kForever{100};
constexpr std::chrono::milliseconds kPartingTime{500};

// Filled in here: gloo would ask the resolver.
Result<gloo::transport::tcp::attr> device_attributes(const std::string& ip) {
  const auto address = make_address(ip, 0);
  if (!address) return tl::unexpected(address.error());
  gloo::transport::tcp::attr attr;
  attr.hostname = ip;
  attr.ai_socktype = SOCK_STREAM;
  attr.ai_protocol = IPPROTO_TCP;
  attr.ai_family = address->family();
  attr.ai_addrlen = address->bytes;
  std::memcpy(&attr.ai_addr, &address->storage, sizeof attr.ai_addr);
  return attr;
}

// A peer that could not keep the connection has broken it off already.
bool is_broken_off(int socket) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  return getpeername(socket, reinterpret_cast<sockaddr*>(&name), &size) != 0 && errno == ENOTCONN;
}

}  // namespace

Mesh::Mesh(std::uint32_t node, std::uint32_t nodes) : node_(node), nodes_(nodes) {}

Result<std::unique_ptr<Mesh>> Mesh::connect(const LinkSpec& spec, const LinkGroup& group) {
  std::unique_ptr<Mesh> mesh(new Mesh(group.node, group.nodes));
  if (group.nodes == 1) return mesh;
  auto connections = connect_peers(spec, group, "gloo");
  if (!connections) return tl::unexpected(connections.error());
  mesh->connections_ = *std::move(connections);
  if (auto ok = mesh->take(spec.address, group.member); !ok) return tl::unexpected(ok.error());
  return mesh;
}

Mesh::~Mesh() {
  // Sockets are closed softly: the last bytes may still be on their way to a slower peer.
  const SigpipeBlocked guard;
  context_.reset();
  if (loop_ != nullptr) loop_->wake();
  device_.reset();
  connections_.encryption.reset();  // sends what gloo wrote last
}

Result<void> Mesh::take(const std::string& address, const std::string& member) {
  const auto attributes = device_attributes(address);
  if (!attributes) return tl::unexpected(attributes.error());
  // gloo keeps the descriptor of its loop for ever if it cannot make the thread of it.
  if (auto ok = try_threads(1); !ok) return ok;
  try {
    const AllSignalsBlocked inherited_by_the_loop;
    device_ = std::make_shared<gloo::transport::tcp::Device>(*attributes);
    context_ = std::make_shared<GuardedContext>(device_, static_cast<int>(node_), static_cast<int>(nodes_));
    context_->setTimeout(kForever);
    for (std::uint32_t peer = 0; peer < nodes_; ++peer)
      if (peer != node_) context_->createPair(static_cast<int>(peer));
    loop_ = std::make_unique<SleepingLoop>(*device_);
    context_->serve_by(*loop_);
    for (std::uint32_t peer = 0; peer < nodes_; ++peer) {
      if (peer == node_) continue;
      const int wire = connections_.wire(peer);
      sockets_.push_back(borrow_socket(peer, wire));
      context_->adopt(static_cast<int>(peer), connections_.sockets[peer].release(), wire);
    }
  } catch (const std::exception& e) {
    for (const BorrowedSocket& socket : sockets_) {
      const std::string peer = member + " " + std::to_string(socket.peer);
      if (is_broken_off(socket.fd))
        return fail(ErrorKind::kLost, "no connection to " + peer + ": it was broken off at once",
                    "see the log of " + peer);
    }
    return fail(ErrorKind::kUnavailable, "gloo cannot use " + address + ": " + e.what());
  }
  return {};
}

void Mesh::add_traffic(std::vector<PeerTraffic>& sums) const {
  for (const BorrowedSocket& socket : sockets_) add_kernel_traffic(socket, sums[socket.peer]);
}

void Mesh::add_thread_clocks(std::vector<ThreadClock>& clocks, std::uint16_t number) const {
  if (context_ != nullptr)
    if (const auto clock = context_->loop_clock()) clocks.push_back({model::DaemonThread::kReceives, number, *clock});
  if (connections_.encryption != nullptr) connections_.encryption->add_thread_clock(clocks, number);
}

void Mesh::go_first() {
  for (const BorrowedSocket& socket : sockets_) put_first(socket.fd);
}

gloo::transport::Pair& Mesh::pair(std::uint32_t peer) { return *context_->getPair(static_cast<int>(peer)); }

std::unique_ptr<gloo::transport::UnboundBuffer> Mesh::unbound(std::byte* data, std::size_t bytes) {
  return context_->createUnboundBuffer(data, bytes);
}

// gloo fails a receive when the connection ends, even if its data has just arrived.
void Mesh::part() {
  constexpr std::uint64_t kTag = ~std::uint64_t{0};
  const SigpipeBlocked guard;
  const auto until = std::chrono::steady_clock::now() + kPartingTime;
  std::vector<std::byte> words(2 * nodes_);  // one to send and one to receive for each peer
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> buffers(nodes_);
  const auto each_peer = [&](auto visit) {
    for (std::uint32_t peer = 0; peer < nodes_; ++peer) {
      if (peer == node_) continue;
      try {
        visit(static_cast<int>(peer), buffers[peer]);
      } catch (const std::exception&) {
        buffers[peer].reset();  // this peer is gone already
      }
    }
  };
  each_peer([&](int peer, auto& buffer) {
    buffer = unbound(&words[2 * static_cast<std::size_t>(peer)], 2);
    buffer->recv(peer, kTag, 0, 1);
    buffer->send(peer, kTag, 1, 1);
  });
  each_peer([&](int, auto& buffer) {
    if (buffer == nullptr) return;
    const auto left = until - std::chrono::steady_clock::now();
    buffer->waitRecv(std::max(std::chrono::ceil<std::chrono::milliseconds>(left), std::chrono::milliseconds(1)));
    buffer->waitSend(std::chrono::milliseconds(1));
  });
}

void Mesh::poison() {
  if (context_ == nullptr) return;
  // gloo has no call for this, but a receive that times out fails all pairs of its context, with every operation that
  // is pending on them, and closes their sockets.
  const SigpipeBlocked guard;
  std::byte nothing{};
  try {
    unbound(&nothing, 1)->waitRecv(std::chrono::milliseconds(0));
  } catch (const std::exception&) {
    // as intended
  }
  connections_.abandon();
}

}  // namespace deft::link::gloo_backend
