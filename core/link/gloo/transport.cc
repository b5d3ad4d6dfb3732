#include "core/link/gloo/transport.h"

#include <gloo/transport/buffer.h>
#include <gloo/transport/pair.h>

#include <algorithm>
#include <utility>

namespace deft::link::gloo_backend {
namespace {

constexpr std::size_t kSlotBytes = 256 << 10;    // a segment: long enough to pay for its wake-up, short enough for L2
constexpr std::size_t kScratchBytes = 64 << 20;  // of all peers together: with many nodes the segments get shorter
constexpr std::size_t kWholeBytes = 64 << 10;    // the most that a node sends when everyone gets everything

// A request of kReduceByAll sends everything to everyone anyway. So between two nodes larger ones go whole: this saves a round's
// acknowledgement and its wake-ups.
constexpr std::size_t kWholeByAllBytes = 512 << 10;

std::size_t reduced_whole_bytes(std::uint32_t nodes) {
  return std::clamp(kWholeBytes / std::max(1U, nodes - 1) / kGranuleBytes * kGranuleBytes, kGranuleBytes, kWholeBytes);
}

std::size_t whole_bytes_for(std::uint32_t nodes) { return nodes == 2 ? kWholeByAllBytes : reduced_whole_bytes(nodes); }

std::size_t slot_bytes_for(std::uint32_t nodes, std::uint64_t window) {
  const std::size_t share = kScratchBytes / window / std::max(1U, nodes - 1);
  return std::clamp(share / kGranuleBytes * kGranuleBytes, std::size_t{4096}, kSlotBytes);
}

// gloo's numbers for buffers. A buffer that goes takes the registration of its number on that pair with it, even if it
// only sends; so the two directions of a pair use different numbers.
int directed(std::uint64_t number, std::uint32_t receiver, std::uint32_t sender) {
  return static_cast<int>(number << 1 | (receiver < sender ? 0U : 1U));
}

constexpr std::uint64_t kRoundsNumber = 0;
constexpr std::uint64_t kWholesNumber = 1;

// Without an all-gather the first element of a result acknowledges the round.
Range result_of(const Segmented& segmented, std::uint32_t owner, std::uint64_t round) {
  const Range range = segmented.segment_of(owner, round);
  return segmented.gathers() ? range : Range{range.first, std::min<std::size_t>(range.count, 1)};
}

// The number of the results of one request. Its last bits differ from those of all others in flight. The rest differs, but for one
// case of many millions, if nodes disagree about the request.
std::uint64_t result_number(std::uint64_t index, const WorkRequest& request) {
  std::uint64_t hash = index;
  for (const std::uint64_t word :
       {std::uint64_t{request.count}, std::uint64_t(request.dtype), std::uint64_t{request.block},
        std::uint64_t(request.op) << 8 | std::uint64_t(request.kind)}) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 29;
  }
  return (hash >> 38) * Transport::kMostInFlight + index % Transport::kMostInFlight + kWholesNumber + 1;
}

}  // namespace

template <typename Visit>
void Transport::each_peer_named(Visit visit) const {
  each_peer(mesh_.node(), mesh_.nodes(), [&](std::uint32_t peer) {
    naming_peer(peer, [&] { visit(peer); });
    return true;
  });
}

// A slot for each request in flight that is sent whole, twice: to start such a request, the one `depth` before it has ended
// here. So every peer had started that, hence ended the one `depth` before that, and is done with the slot.
Transport::Transport(Mesh& mesh, std::uint64_t depth)
    : mesh_(mesh),
      slot_bytes_(slot_bytes_for(mesh.nodes(), kWindow)),
      whole_bytes_(whole_bytes_for(mesh.nodes())),
      whole_slots_(2 * depth),
      inboxes_(mesh.nodes()) {
  each_peer_named([this](std::uint32_t peer) {
    Inbox& inbox = inboxes_[peer];
    inbox.scratch.resize(kWindow * slot_bytes_);
    inbox.unsplit = std::make_unique_for_overwrite<std::byte[]>(whole_slots_ * whole_bytes_);
    auto& pair = mesh_.pair(peer);
    inbox.rounds =
        pair.createRecvBuffer(directed(kRoundsNumber, mesh_.node(), peer), inbox.scratch.data(), inbox.scratch.size());
    inbox.wholes = pair.createRecvBuffer(directed(kWholesNumber, mesh_.node(), peer), inbox.unsplit.get(),
                                         whole_slots_ * whole_bytes_);
  });
}

Transport::~Transport() = default;

std::size_t Transport::most_whole_bytes(const WorkRequest& request) const {
  return request.kind == WorkRequest::Kind::kReduceByAll ? whole_bytes_ : reduced_whole_bytes(mesh_.nodes());
}

Segmented Transport::cut(const WorkRequest& request) const {
  return {request, mesh_.node(), mesh_.nodes(), slot_bytes_, most_whole_bytes(request)};
}

Transport::Peers Transport::connect(const Segmented& segmented) {
  const std::uint64_t number = result_number(connected_++, segmented.request);
  std::byte* const data = segmented.request.data;
  const std::size_t bytes = segmented.request.bytes();
  Peers peers(mesh_.nodes());
  each_peer_named([&](std::uint32_t node) {
    auto& pair = mesh_.pair(node);
    Peer& peer = peers[node];
    const std::uint64_t inbox = segmented.whole ? kWholesNumber : kRoundsNumber;
    if (!segmented.whole) {
      std::byte* const results = segmented.is_by_all() ? &inboxes_[node].acknowledged : data;
      peer.result_receive =
          pair.createRecvBuffer(directed(number, mesh_.node(), node), results, segmented.is_by_all() ? 1 : bytes);
      peer.result_send = pair.createSendBuffer(directed(number, node, mesh_.node()), data, bytes);
    }
    peer.segment_send = pair.createSendBuffer(directed(inbox, node, mesh_.node()), data, bytes);
  });
  return peers;
}

void Transport::send_segments(const Segmented& segmented, Peers& peers, std::uint64_t round) {
  each_peer_named([&](std::uint32_t node) {
    const Range range = segmented.whole ? Range{0, segmented.request.count} : segmented.segment_of(node, round);
    if (range.count == 0) return;
    Peer& peer = peers[node];
    const MoveTimer timer(segmented.request.observer.get());
    peer.segment_send->send(range.first * segmented.element, range.count * segmented.element,
                            slot_of(segmented, round));
    timer.tell(move_of(segmented, node, model::SegmentPart::kSegment, round, range, true));
    ++peer.segments_unsent;
  });
}

void Transport::await_segments(const Segmented& segmented, std::uint64_t round) {
  const Range range = segmented.whole ? Range{0, segmented.request.count} : segmented.mine(round);
  each_peer_named([&](std::uint32_t node) {
    const Inbox& inbox = inboxes_[node];
    const MoveTimer timer(segmented.request.observer.get());
    (segmented.whole ? inbox.wholes : inbox.rounds)->waitRecv();
    timer.tell(move_of(segmented, node, model::SegmentPart::kSegment, round, range, false));
  });
}

std::span<const std::byte* const> Transport::inputs(const Segmented& segmented, Range mine, std::uint64_t round) {
  inputs_.assign(mesh_.nodes(), segmented.bytes(mine).data());
  for (std::uint32_t node = 0; node < mesh_.nodes(); ++node) {
    if (node == mesh_.node()) continue;
    const Inbox& inbox = inboxes_[node];
    inputs_[node] = (segmented.whole ? inbox.unsplit.get() : inbox.scratch.data()) + slot_of(segmented, round);
  }
  return inputs_;
}

// Where every node owns all, the element that acknowledges a round is not the peer's to lose.
void Transport::send_results(const Segmented& segmented, Peers& peers, std::uint64_t round) {
  Range range = result_of(segmented, mesh_.node(), round);
  if (segmented.is_by_all()) range.first = 0;
  const std::size_t offset = range.first * segmented.element;
  each_peer_named([&](std::uint32_t node) {
    Peer& peer = peers[node];
    const MoveTimer timer(segmented.request.observer.get());
    peer.result_send->send(offset, range.count * segmented.element, offset);
    timer.tell(move_of(segmented, node, model::SegmentPart::kResult, round, range, true));
    ++peer.results_unsent;
  });
}

void Transport::await_results(const Segmented& segmented, const Peers& peers, std::uint64_t round) {
  each_peer_named([&](std::uint32_t node) {
    const Range range = result_of(segmented, node, round);
    if (range.count == 0) return;
    const MoveTimer timer(segmented.request.observer.get());
    peers[node].result_receive->waitRecv();
    timer.tell(move_of(segmented, node, model::SegmentPart::kResult, round, range, false));
  });
}

void Transport::await_sends(Peers& peers) {
  each_peer_named([&](std::uint32_t node) {
    Peer& peer = peers[node];
    for (; peer.segments_unsent > 0; --peer.segments_unsent) peer.segment_send->waitSend();
    for (; peer.results_unsent > 0; --peer.results_unsent) peer.result_send->waitSend();
  });
}

std::size_t Transport::slot_of(const Segmented& segmented, std::uint64_t round) const {
  if (segmented.whole) return segmented.first_round % whole_slots_ * whole_bytes_;
  return (segmented.first_round + round) % kWindow * slot_bytes_;
}

}  // namespace deft::link::gloo_backend
