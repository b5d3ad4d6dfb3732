#include "core/link/gloo/link_impl.h"

#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "core/link/gloo/signals.h"

namespace deft::link::gloo_backend {
namespace {

using UnboundBuffer = gloo::transport::UnboundBuffer;

// gloo's text without the source line in front of it.
std::string plain(const std::string& text) {
  const auto end = text.find("] ");
  return text.starts_with('[') && text.find(".cc:") < end && end != std::string::npos ? text.substr(end + 2) : text;
}

// The tag of a transfer. Nodes that disagree about it get different tags, and wait until they are aborted.
std::uint64_t tag_of(std::uint64_t transfer, std::uint64_t kind, std::span<const std::size_t> bytes) {
  std::uint64_t hash = (transfer << 2) | kind;
  for (const std::size_t size : bytes) {
    hash = (hash ^ size) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 29;
  }
  return hash;
}

constexpr std::chrono::milliseconds kPartingTime{500};
constexpr std::uint64_t kBroadcast = 1;
constexpr std::uint64_t kAllGather = 2;

}  // namespace

LinkImpl::LinkImpl(std::string name, std::unique_ptr<Mesh> mesh, std::unique_ptr<LinkImpl> express)
    : name_(std::move(name)), mesh_(std::move(mesh)), express_(std::move(express)) {
  if (mesh_->nodes() > 1) all_reduce_ = std::make_unique<AllReduce>(*mesh_);
}

LinkImpl::~LinkImpl() {
  if (mesh_->nodes() == 1 || !failure_.check()) return;
  if (all_reduce_->idle()) {
    part();
  } else {
    stop();  // nothing must touch the data of what was not finished
  }
}

// Waits a moment until the peers have got what this node sent last: gloo fails a receive when the connection ends, even if
// its data has just arrived. A peer that parts as well ends the wait.
void LinkImpl::part() {
  constexpr std::uint64_t kTag = ~std::uint64_t{0};
  const SigpipeBlocked guard;
  const auto until = std::chrono::steady_clock::now() + kPartingTime;
  std::vector<std::byte> words(2 * mesh_->nodes());  // one to send and one to receive for each peer
  std::vector<std::unique_ptr<UnboundBuffer>> buffers(mesh_->nodes());
  const auto each_peer = [&](auto visit) {
    for (std::uint32_t peer = 0; peer < mesh_->nodes(); ++peer) {
      if (peer == mesh_->node()) continue;
      try {
        visit(static_cast<int>(peer), buffers[peer]);
      } catch (const std::exception&) {
        buffers[peer].reset();  // this peer is gone already
      }
    }
  };
  each_peer([&](int peer, auto& buffer) {
    buffer = mesh_->unbound(&words[2 * static_cast<std::size_t>(peer)], 2);
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

// Runs `operation`; whatever it throws makes the link fail for good.
template <typename Operation>
Result<void> LinkImpl::run(Operation operation) {
  if (mesh_->nodes() == 1) return failure_.check();
  if (auto ok = failure_.check(); !ok) {
    stop();  // an abort() may not have come to that yet, and the caller takes its data back now
    return ok;
  }
  const SigpipeBlocked guard;
  try {
    operation();
    return {};
  } catch (const PeerFailure& e) {
    Error error = failure(e.peer, plain(e.what()));
    stop();  // the peers learn at once
    return tl::unexpected(std::move(error));
  }
}

// Afterwards no data is touched any more.
void LinkImpl::stop() {
  mesh_->poison();
  all_reduce_->halt();
}

Error LinkImpl::failure(std::uint32_t peer, const std::string& cause) {
  return failure_.keep({ErrorKind::kLost, "the connection to node " + std::to_string(peer) + " failed: " + cause,
                        "see the log of node " + std::to_string(peer), name_});
}

Result<void> LinkImpl::all_reduce(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op) {
  if (auto ok = start_all_reduce(data, count, dtype, op, 0); !ok) return ok;
  return finish_all_reduce();
}

Result<void> LinkImpl::start_all_reduce(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op,
                                        std::uint32_t /*urgency*/) {
  if (model::dtype_bytes(dtype) == 0 || !model::is_known(op)) {
    return fail(ErrorKind::kInvalid, "all-reduce of an unknown dtype or operation");
  }
  return run([&] { all_reduce_->start(data, count, dtype, op); });
}

Result<void> LinkImpl::finish_all_reduce() {
  return run([&] { all_reduce_->finish(); });
}

Result<std::optional<std::size_t>> LinkImpl::finish_next() {
  bool any = true;
  if (auto ok = run([&] { any = all_reduce_->finish_next(); }); !ok) return tl::unexpected(ok.error());
  return any ? std::optional<std::size_t>(0) : std::nullopt;
}

void LinkImpl::wake() {
  if (all_reduce_) all_reduce_->wake();
}

Result<void> LinkImpl::broadcast(std::byte* data, std::size_t bytes, std::uint32_t root) {
  if (root >= mesh_->nodes()) {
    return fail(ErrorKind::kInvalid,
                "broadcast from node " + std::to_string(root) + " of " + std::to_string(mesh_->nodes()));
  }
  if (bytes == 0) return {};
  return run([&] {
    std::vector<std::size_t> sizes(mesh_->nodes(), 0);
    sizes[root] = bytes;
    exchange_blocks(data, sizes, kBroadcast);
  });
}

Result<void> LinkImpl::all_gather(std::byte* data, std::span<const std::size_t> bytes) {
  if (bytes.size() != mesh_->nodes()) {
    return fail(ErrorKind::kInvalid, "all-gather of " + std::to_string(bytes.size()) + " blocks on " +
                                         std::to_string(mesh_->nodes()) + " nodes");
  }
  return run([&] { exchange_blocks(data, bytes, kAllGather); });
}

// Sends this node's block to all peers, and receives theirs. Each peer has a buffer of its own, so that a failure can
// be put down to a peer.
void LinkImpl::exchange_blocks(std::byte* data, std::span<const std::size_t> bytes, std::uint64_t kind) {
  struct Wait {
    std::uint32_t peer;
    std::unique_ptr<UnboundBuffer> buffer;
  };
  const std::uint64_t tag = tag_of(transfers_++, kind, bytes);
  std::vector<Wait> receives;
  std::vector<Wait> sends;
  std::byte* block = data;
  std::byte* mine = data;
  for (std::uint32_t node = 0; node < mesh_->nodes(); block += bytes[node], ++node) {
    if (node == mesh_->node()) mine = block;
    if (node == mesh_->node() || bytes[node] == 0) continue;
    naming_peer(node, [&] {
      receives.push_back({node, mesh_->unbound(block, bytes[node])});
      receives.back().buffer->recv(static_cast<int>(node), tag);
    });
  }
  for (std::uint32_t node = 0; node < mesh_->nodes() && bytes[mesh_->node()] > 0; ++node) {
    if (node == mesh_->node()) continue;
    naming_peer(node, [&] {
      sends.push_back({node, mesh_->unbound(mine, bytes[mesh_->node()])});
      sends.back().buffer->send(static_cast<int>(node), tag);
    });
  }
  for (Wait& wait : receives) naming_peer(wait.peer, [&] { wait.buffer->waitRecv(); });
  for (Wait& wait : sends) naming_peer(wait.peer, [&] { wait.buffer->waitSend(); });
}

void LinkImpl::abort(std::string_view reason) {
  failure_.keep({ErrorKind::kLost, std::string(reason), {}, name_});
  mesh_->poison();
  if (express_) express_->abort(reason);
}

}  // namespace deft::link::gloo_backend
