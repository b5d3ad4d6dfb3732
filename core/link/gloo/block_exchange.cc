#include "core/link/gloo/block_exchange.h"

#include <gloo/transport/unbound_buffer.h>

#include <span>

namespace deft::link::gloo_backend {
namespace {

constexpr const char* kCutOff = "it was closed in the middle of a message";

// The tag of an exchange. Nodes that disagree about it get different tags.
std::uint64_t tag_of(std::uint64_t number, const WorkRequest& request, std::span<const std::size_t> blocks) {
  std::uint64_t hash = (number << 2) | static_cast<std::uint64_t>(request.kind);
  for (const std::size_t size : blocks) {
    hash = (hash ^ size) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 29;
  }
  return hash;
}

}  // namespace

BlockExchange::BlockExchange(Mesh& mesh, const WorkRequest& request, std::uint64_t number)
    : request_(request.id), observer_(request.observer) {
  const auto transfer_of = [&](std::uint32_t peer, std::byte* data, std::size_t size) -> Transfer {
    return {peer, size, MoveTimer(observer_.get()), mesh.unbound(data, size)};
  };
  const std::vector<std::size_t> bytes = request.blocks(mesh.nodes());
  const std::uint64_t tag = tag_of(number, request, bytes);
  const std::uint32_t own = mesh.node();
  std::byte* block = request.data;
  std::byte* mine = request.data;
  for (std::uint32_t node = 0; node < mesh.nodes(); block += bytes[node], ++node) {
    if (node == own) mine = block;
    if (node == own || bytes[node] == 0) continue;
    naming_peer(node, [&] {
      receives_.push_back(transfer_of(node, block, bytes[node]));
      receives_.back().buffer->recv(static_cast<int>(node), tag);
    });
  }
  for (std::uint32_t node = 0; node < mesh.nodes() && bytes[own] > 0; ++node) {
    if (node == own) continue;
    naming_peer(node, [&] {
      sends_.push_back(transfer_of(node, mine, bytes[own]));
      sends_.back().buffer->send(static_cast<int>(node), tag);
    });
  }
}

BlockExchange::~BlockExchange() = default;

void BlockExchange::tell(const Transfer& transfer, bool is_sent) const {
  transfer.timer.tell({.request = request_,
                       .peer = transfer.peer,
                       .bytes = transfer.bytes,
                       .part = model::SegmentPart::kBlock,
                       .is_sent = is_sent});
}

void BlockExchange::wait() {
  for (const Transfer& transfer : receives_)
    naming_peer(transfer.peer, [&] {
      if (!transfer.buffer->waitRecv()) throw PeerFailure(transfer.peer, kCutOff);
      tell(transfer, false);
    });
  for (const Transfer& transfer : sends_)
    naming_peer(transfer.peer, [&] {
      if (!transfer.buffer->waitSend()) throw PeerFailure(transfer.peer, kCutOff);
      tell(transfer, true);
    });
}

}  // namespace deft::link::gloo_backend
