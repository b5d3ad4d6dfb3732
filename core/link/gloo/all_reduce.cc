#include "core/link/gloo/all_reduce.h"

#include <gloo/transport/buffer.h>
#include <gloo/transport/pair.h>

#include <algorithm>

#include "core/link/gloo/mesh.h"
#include "core/reduce/reduce.h"

namespace deft::link::gloo_backend {
namespace {

constexpr std::size_t kSlotBytes = 256 << 10;     // a segment: long enough to pay for its wake-up, short enough for L2
constexpr std::size_t kScratchBytes = 64 << 20;   // of all peers together: with many nodes the segments get shorter
constexpr std::size_t kExchangeBytes = 64 << 10;  // what a node sends at most when everyone gets everything
constexpr std::size_t kGranuleBytes = 64;         // slices begin on cache lines of the part

constexpr std::size_t ceil_div(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

std::size_t slot_bytes_for(std::uint32_t nodes, std::uint64_t window) {
  const std::size_t share = kScratchBytes / window / std::max(1U, nodes - 1);
  return std::clamp(share / kGranuleBytes * kGranuleBytes, std::size_t{4096}, kSlotBytes);
}

// gloo's numbers for buffers. A buffer that goes takes the registration of its number on that pair with it, even if it
// only sends; so the two directions of a pair use different numbers.
int directed(std::uint64_t number, std::uint32_t receiver, std::uint32_t sender) {
  return static_cast<int>(number << 1 | (receiver < sender ? 0U : 1U));
}

constexpr std::uint64_t kScratchNumber = 0;

// The number of the results of one operation. Nodes that disagree about the operation get different numbers: then
// nothing is delivered to the wrong place, and both sides wait until they are aborted.
std::uint64_t result_number(std::uint64_t operation, std::size_t count, model::DType dtype, model::ReduceOp op) {
  std::uint64_t hash = operation;
  for (const std::uint64_t word : {std::uint64_t{count}, std::uint64_t(dtype), std::uint64_t(op)}) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 29;
  }
  return (hash >> 35) + kScratchNumber + 1;
}

}  // namespace

// Visits the peers beginning with the next node, so that not all nodes send to the same one at once.
template <typename Visit>
void AllReduce::each_peer(Visit visit) {
  for (std::uint32_t step = 1; step < mesh_.nodes(); ++step) {
    current_peer_ = (mesh_.node() + step) % mesh_.nodes();
    visit(peers_[current_peer_]);
  }
}

AllReduce::AllReduce(Mesh& mesh)
    : mesh_(mesh), slot_bytes_(slot_bytes_for(mesh.nodes(), kWindow)), peers_(mesh.nodes()) {
  each_peer([this](Peer& peer) {
    peer.scratch.resize(kWindow * slot_bytes_);
    peer.scratch_receive = mesh_.pair(current_peer_)
                               .createRecvBuffer(directed(kScratchNumber, mesh_.node(), current_peer_),
                                                 peer.scratch.data(), peer.scratch.size());
  });
}

AllReduce::~AllReduce() = default;

void AllReduce::run(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op) {
  work_ = Work{.data = data, .count = count, .element = model::dtype_bytes(dtype), .dtype = dtype, .op = op};
  const std::size_t bytes = count * work_.element;
  try {
    if (bytes * (mesh_.nodes() - 1) <= kExchangeBytes && bytes <= slot_bytes_) {
      exchange();
    } else {
      scatter_and_gather();
    }
  } catch (...) {
    mesh_.poison();  // first of all: gloo keeps plain pointers to what release() destroys
    release();
    throw;
  }
  release();
  ++operations_;
}

void AllReduce::exchange() {
  const std::size_t bytes = work_.count * work_.element;
  work_.slice = work_.segment = work_.count;
  each_peer([&](Peer& peer) {
    register_segments(peer);
    peer.segment_send->send(0, bytes, slot_offset(0));
    ++peer.segments_unsent;
  });
  each_peer([](Peer& peer) { peer.scratch_receive->waitRecv(); });
  await_sends();
  reduce_round({0, work_.count}, 0);
  ++rounds_before_;
}

void AllReduce::scatter_and_gather() {
  const std::size_t granule = kGranuleBytes / work_.element;
  work_.slice = ceil_div(ceil_div(work_.count, mesh_.nodes()), granule) * granule;
  const std::size_t rounds = ceil_div(work_.slice, slot_bytes_ / work_.element);
  work_.segment = ceil_div(ceil_div(work_.slice, rounds), granule) * granule;
  register_results();
  // Two rounds ahead: the third slot may still be in use by a peer that has not finished the operation before.
  for (std::uint64_t round = 0; round < std::min<std::size_t>(rounds, kWindow - 1); ++round) send_segments(round);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    const Range mine = segment_of(mesh_.node(), round);
    if (mine.count > 0) {
      each_peer([](Peer& peer) { peer.scratch_receive->waitRecv(); });
      reduce_round(mine, round);
      send_results(round);
    }
    if (round + kWindow - 1 < rounds) {
      receive_results(round);
      send_segments(round + kWindow - 1);
    }
  }
  const std::uint64_t received = rounds > kWindow - 1 ? rounds - (kWindow - 1) : 0;
  for (std::uint64_t round = received; round < rounds; ++round) receive_results(round);
  await_sends();
  rounds_before_ += rounds;
}

// From where the parts of the caller's memory go into the peer's scratch.
void AllReduce::register_segments(Peer& peer) {
  peer.segment_send = mesh_.pair(current_peer_)
                          .createSendBuffer(directed(kScratchNumber, current_peer_, mesh_.node()), work_.data,
                                            work_.count * work_.element);
}

// Where the results of each peer's slice will go, and from where ours are sent.
void AllReduce::register_results() {
  const std::uint64_t number = result_number(operations_, work_.count, work_.dtype, work_.op);
  const std::size_t bytes = work_.count * work_.element;
  each_peer([&](Peer& peer) {
    auto& pair = mesh_.pair(current_peer_);
    peer.result_receive = pair.createRecvBuffer(directed(number, mesh_.node(), current_peer_), work_.data, bytes);
    peer.result_send = pair.createSendBuffer(directed(number, current_peer_, mesh_.node()), work_.data, bytes);
    register_segments(peer);
  });
}

void AllReduce::send_segments(std::uint64_t round) {
  each_peer([&](Peer& peer) {
    const Range range = segment_of(current_peer_, round);
    if (range.count == 0) return;
    peer.segment_send->send(range.first * work_.element, range.count * work_.element, slot_offset(round));
    ++peer.segments_unsent;
  });
}

void AllReduce::send_results(std::uint64_t round) {
  const Range range = segment_of(mesh_.node(), round);
  const std::size_t offset = range.first * work_.element;
  each_peer([&](Peer& peer) {
    peer.result_send->send(offset, range.count * work_.element, offset);
    ++peer.results_unsent;
  });
}

void AllReduce::receive_results(std::uint64_t round) {
  each_peer([&](Peer& peer) {
    if (segment_of(current_peer_, round).count > 0) peer.result_receive->waitRecv();
  });
}

void AllReduce::await_sends() {
  each_peer([](Peer& peer) {
    for (; peer.segments_unsent > 0; --peer.segments_unsent) peer.segment_send->waitSend();
    for (; peer.results_unsent > 0; --peer.results_unsent) peer.result_send->waitSend();
  });
}

// Reduces this node's elements `range` with what the peers sent for them in `round`.
void AllReduce::reduce_round(Range range, std::uint64_t round) {
  std::byte* const mine = work_.data + range.first * work_.element;
  inputs_.assign(mesh_.nodes(), mine);
  each_peer([&](Peer& peer) { inputs_[current_peer_] = peer.scratch.data() + slot_offset(round); });
  reduce::reduce(mine, inputs_, range.count, work_.dtype, work_.op);
}

void AllReduce::release() {
  for (Peer& peer : peers_) {
    peer.segment_send.reset();
    peer.result_send.reset();
    peer.result_receive.reset();
    peer.segments_unsent = peer.results_unsent = 0;
  }
}

AllReduce::Range AllReduce::segment_of(std::uint32_t owner, std::uint64_t round) const {
  const std::size_t slice_end = std::min((owner + 1) * work_.slice, work_.count);
  const std::size_t first = std::min(owner * work_.slice + round * work_.segment, slice_end);
  return {first, std::min(work_.segment, slice_end - first)};
}

std::size_t AllReduce::slot_offset(std::uint64_t round) const {
  return (rounds_before_ + round) % kWindow * slot_bytes_;
}

}  // namespace deft::link::gloo_backend
