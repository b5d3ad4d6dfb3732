#include "core/link/gloo/block_exchange.h"

#include <gloo/transport/unbound_buffer.h>

#include <algorithm>

#include "core/link/slices.h"

namespace deft::link::gloo_backend {
namespace {

constexpr const char* kCutOff = "it was closed in the middle of a message";
constexpr std::size_t kPartBytes = 256 << 10;   // of a broadcast: what a node passes on at a time
constexpr std::size_t kLeastBytes = 128 << 10;  // of a part, which takes two latencies instead of one
constexpr std::size_t kMostRounds = 64;         // each needs messages to and from every peer

// The tag of an exchange. Nodes that disagree about it get different tags.
std::uint64_t tag_of(std::uint64_t number, const WorkRequest& request, std::span<const std::size_t> blocks) {
  std::uint64_t hash = (number << 2) | static_cast<std::uint64_t>(request.kind);
  for (const std::size_t size : blocks) {
    hash = (hash ^ size) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 29;
  }
  return hash;
}

// Whether the root sends each part to one node. Small blocks go to all at once: that takes one latency.
bool spreads(const WorkRequest& request, std::uint32_t nodes) {
  return request.kind == WorkRequest::Kind::kBroadcast && nodes > 2 && request.count >= (nodes - 1) * kLeastBytes;
}

Slices parts_of(std::size_t bytes, std::uint32_t receivers) {
  const std::size_t least = bytes / receivers / kMostRounds + kGranuleBytes;
  return cut_slices(bytes, granule_of(1, 1), receivers, std::max(kPartBytes, least));
}

}  // namespace

BlockExchange::BlockExchange(Mesh& mesh, const WorkRequest& request, std::uint64_t number)
    : mesh_(mesh),
      request_(request.id),
      observer_(request.observer),
      tag_(tag_of(number, request, request.blocks(mesh.nodes()))) {
  if (spreads(request, mesh.nodes()))
    spread_parts(request);
  else
    exchange_blocks(request);
}

BlockExchange::~BlockExchange() = default;

void BlockExchange::exchange_blocks(const WorkRequest& request) {
  const std::vector<std::size_t> bytes = request.blocks(mesh_.nodes());
  const std::uint32_t own = mesh_.node();
  std::span<std::byte> mine;
  std::byte* block = request.data;
  for (std::uint32_t node = 0; node < mesh_.nodes(); block += bytes[node], ++node) {
    const std::span data{block, bytes[node]};
    if (node == own) mine = data;
    if (node != own && !data.empty()) receives_.push_back(begin(node, 0, data, false));
  }
  for (std::uint32_t node = 0; node < mesh_.nodes() && !mine.empty(); ++node)
    if (node != own) sends_.push_back(begin(node, 0, mine, true));
}

void BlockExchange::spread_parts(const WorkRequest& request) {
  const std::uint32_t own = mesh_.node(), root = request.block_of.root;
  const Slices parts = parts_of(request.count, mesh_.nodes() - 1);
  for (std::uint32_t round = 0; round < parts.rounds; ++round)
    for (std::uint32_t node = 0; node < mesh_.nodes(); ++node) {
      if (node == root) continue;
      const Range part = parts.segment_of(node < root ? node : node - 1, round);
      const std::span data{request.data + part.first, part.count};
      if (data.empty()) continue;
      if (own == root) sends_.push_back(begin(node, round, data, true));
      if (own == node) passed_on_.push_back(begin(root, round, data, false));
      if (own != root && own != node) receives_.push_back(begin(node, round, data, false));
    }
  for (std::uint32_t node = 0; node < mesh_.nodes(); ++node)
    if (node != root && node != own) next_.push_back(node);
}

BlockExchange::Message BlockExchange::begin(std::uint32_t peer, std::uint32_t round, std::span<std::byte> data,
                                            bool is_sent) {
  Message message{peer, round, data, MoveTimer(observer_.get()), nullptr};
  naming_peer(peer, [&] {
    message.buffer = mesh_.unbound(data.data(), data.size());
    if (is_sent)
      message.buffer->send(static_cast<int>(peer), tag_ + round);
    else
      message.buffer->recv(static_cast<int>(peer), tag_ + round);
  });
  return message;
}

void BlockExchange::end(const Message& message, bool is_sent) const {
  naming_peer(message.peer, [&] {
    if (!(is_sent ? message.buffer->waitSend() : message.buffer->waitRecv())) throw PeerFailure(message.peer, kCutOff);
  });
  message.timer.tell({.request = request_,
                      .peer = message.peer,
                      .round = message.round,
                      .bytes = message.data.size(),
                      .part = model::SegmentPart::kBlock,
                      .is_sent = is_sent});
}

void BlockExchange::wait() {
  for (const Message& part : passed_on_) {
    end(part, false);
    for (const std::uint32_t peer : next_) sends_.push_back(begin(peer, part.round, part.data, true));
  }
  for (const Message& message : receives_) end(message, false);
  for (const Message& message : sends_) end(message, true);
}

}  // namespace deft::link::gloo_backend
