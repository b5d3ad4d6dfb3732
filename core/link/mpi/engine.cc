#include "core/link/mpi/engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace deft::link::mpi_backend {
namespace {

constexpr std::size_t kWholeBytes = 64 << 10;  // the most that a node sends when everyone gets everything

Segmented cut(const WorkRequest& request, const Transport& transport) {
  const std::size_t whole = std::min(kWholeBytes / (transport.nodes() - 1), transport.slot_bytes());
  Segmented segmented(request, transport.node(), transport.nodes(), transport.slot_bytes(), whole);
  if (segmented.whole) segmented.slices = {request.count, request.count, request.count, 1};
  return segmented;
}

model::SegmentPart part_of(Stream stream) {
  return stream == Stream::kResults ? model::SegmentPart::kResult : model::SegmentPart::kSegment;
}

// The bytes that come from `peer` in a round.
Range message_from(const Segmented& segmented, std::uint32_t peer, Stream stream, std::uint64_t round) {
  if (stream == Stream::kResults) return segmented.gathers() ? segmented.segment_of(peer, round) : Range{};
  return segmented.whole ? Range{0, segmented.request.count} : segmented.mine(round);
}

}  // namespace

template <typename Visit>
bool Engine::for_peers(Visit visit) const {
  return each_peer(transport_.node(), transport_.nodes(), visit);
}

bool Engine::start(const WorkRequest& request) {
  InFlight& entry = in_flight_.emplace_back(InFlight{cut(request, transport_), 0, {}});
  entry.segmented.first_round = started_rounds_;
  started_rounds_ += entry.segmented.slices.rounds;
  entry.tag = transport_.begin(std::array{std::uint64_t{request.count}, std::uint64_t(request.dtype),
                                          std::uint64_t{request.block},
                                          std::uint64_t(request.op) << 8 | std::uint64_t(request.kind)});
  return expect_ahead() && fill_window();
}

bool Engine::finish() {
  InFlight& entry = in_flight_.front();
  if (!(entry.segmented.whole ? finish_whole(entry) : finish_rounds(entry))) return false;
  in_flight_.pop_front();
  ++finished_;
  return true;
}

bool Engine::finish_whole(InFlight& entry) {
  if (!own(entry, {0, entry.segmented.request.count}, 0)) return false;
  ++added_;
  return expect_ahead() && fill_window() && flush_segments(entry);
}

// The segments that were sent last may be all that the peers still wait for when this link closes.
bool Engine::flush_segments(const InFlight& entry) {
  return for_peers([&](std::uint32_t peer) { return transport_.flush(peer, Stream::kSegments, entry.given[peer]); });
}

// Results are waited for kWindow rounds behind the addition.
bool Engine::finish_rounds(InFlight& entry) {
  const Segmented& segmented = entry.segmented;
  for (std::uint64_t round = 0; round < segmented.slices.rounds + kWindow; ++round) {
    if (round >= kWindow && !receive_results(entry, round - kWindow)) return false;
    if (round >= segmented.slices.rounds) continue;
    const Range mine = segmented.mine(round);
    if (mine.count > 0 && !own(entry, mine, round)) return false;
    ++added_;
    if (!expect_ahead()) return false;  // before the results, which bring the peers' next segments here
    if (segmented.gathers() && !send_results(entry, round)) return false;
    if (!fill_window()) return false;
  }
  if (!segmented.gathers()) return flush_segments(entry);
  return for_peers([&](std::uint32_t peer) {
    return transport_.flush(peer, Stream::kResults, transport_.given(peer, Stream::kResults));
  });
}

// Tells MPI of the next messages of each peer, as far as there are slots for them.
bool Engine::expect_ahead() {
  return for_peers(
      [&](std::uint32_t peer) { return expect_of(peer, Stream::kSegments) && expect_of(peer, Stream::kResults); });
}

bool Engine::expect_of(std::uint32_t peer, Stream stream) {
  Cursor& cursor = cursors_[peer][static_cast<std::size_t>(stream)];
  for (; cursor.request < finished_ + in_flight_.size(); cursor = {cursor.request + 1, 0}) {
    const InFlight& entry = in_flight_[cursor.request - finished_];
    for (; cursor.round < entry.segmented.slices.rounds; ++cursor.round) {
      const std::size_t count = message_from(entry.segmented, peer, stream, cursor.round).count;
      if (count == 0) continue;
      if (!transport_.can_expect(peer, stream)) return true;
      if (!transport_.expect(peer, stream, entry.tag, count * entry.segmented.element)) return false;
    }
  }
  return true;
}

// Sends the segments of as many rounds as may leave now, of the requests in their order.
bool Engine::fill_window() {
  for (InFlight& entry : in_flight_) {
    Segmented& segmented = entry.segmented;
    for (; segmented.sent < segmented.slices.rounds; ++segmented.sent) {
      if (segmented.first_round + segmented.sent >= added_ + kWindow) return true;
      if (!send_segments(entry, segmented.sent)) return false;
    }
  }
  return true;
}

bool Engine::send_segments(InFlight& entry, std::uint64_t round) {
  entry.given.resize(transport_.nodes());
  return for_peers([&](std::uint32_t peer) {
    const Segmented& segmented = entry.segmented;
    const Range range = segmented.whole ? Range{0, segmented.request.count} : segmented.segment_of(peer, round);
    const bool sent = send(entry, peer, Stream::kSegments, range, round);
    entry.given[peer] = transport_.given(peer, Stream::kSegments);
    return sent;
  });
}

bool Engine::send_results(const InFlight& entry, std::uint64_t round) {
  const Range range = entry.segmented.mine(round);
  return for_peers([&](std::uint32_t peer) { return send(entry, peer, Stream::kResults, range, round); });
}

bool Engine::send(const InFlight& entry, std::uint32_t peer, Stream stream, Range range, std::uint64_t round) {
  if (range.count == 0) return true;
  const MoveTimer timer(entry.segmented.request.observer.get());
  if (!transport_.send(peer, stream, entry.tag, entry.segmented.bytes(range), Transport::Pace::kFree)) return false;
  timer.tell(move_of(entry.segmented, peer, part_of(stream), round, range, true));
  return true;
}

// Adds the peers' values to this node's elements `mine`.
bool Engine::own(const InFlight& entry, Range mine, std::uint64_t round) {
  inputs_.assign(transport_.nodes(), entry.segmented.bytes(mine).data());
  const bool received = for_peers([&](std::uint32_t peer) {
    const MoveTimer timer(entry.segmented.request.observer.get());
    inputs_[peer] = transport_.receive(peer, Stream::kSegments);
    if (inputs_[peer] == nullptr) return false;
    timer.tell(move_of(entry.segmented, peer, model::SegmentPart::kSegment, round, mine, false));
    return true;
  });
  if (received) entry.segmented.own(mine, inputs_);
  return received;
}

bool Engine::receive_results(const InFlight& entry, std::uint64_t round) {
  const bool received = for_peers([&](std::uint32_t peer) {
    const Range range = message_from(entry.segmented, peer, Stream::kResults, round);
    const auto into = entry.segmented.bytes(range);
    if (into.empty()) return true;
    const MoveTimer timer(entry.segmented.request.observer.get());
    const std::byte* result = transport_.receive(peer, Stream::kResults);
    if (result == nullptr) return false;
    timer.tell(move_of(entry.segmented, peer, model::SegmentPart::kResult, round, range, false));
    std::memcpy(into.data(), result, into.size());
    return true;
  });
  return received && expect_ahead();
}

}  // namespace deft::link::mpi_backend
