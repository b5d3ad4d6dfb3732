// Composes an all-reduce of a reduce-scatter and an all-gather, for all links that move segments themselves (gloo, mpi,
// tcp). No other place does so.
//
// The elements are cut into one slice a node, and slices into segments, one a round (slices.h). In each round every node
// sends a segment of each slice to the slice's owner. The owner adds the segments of all nodes in one pass, in the order of
// the nodes: that is the reduce-scatter. Then it sends the result back to all: that is the all-gather. So every byte crosses
// the network as often as in a ring, but after two latencies instead of 2 (nodes - 1); 16-bit types are rounded once; and the
// bits of the result depend neither on the size of a part nor on who owns a slice.
//
// If the data is small, every node sends all of it to everyone, and everyone is its owner: one latency. A request may want
// that of data of any size (kReduceByAll). Its rounds then have the same segment for every owner, and no results.
//
// The rounds of all requests of a link make one sequence, so the next requests are on their way while results of the
// previous ones still come. A backend keeps a window of rounds in flight, and says when segments and results have come:
//
//   Segmented segmented(request, node, nodes, slot_bytes, whole_bytes);
//   for each round: send bytes(segment_of(peer, round)) to each peer
//   own(mine(round), inputs);                        // add what came, in place
//   if (gathers()) send bytes(mine(round)) to all
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/link/segment_observer.h"
#include "core/link/slices.h"
#include "core/link/work_request.h"

namespace deft::link {

struct Segmented {
  // `slot_bytes`: of a segment at most. `whole_bytes`: data up to this size is sent whole.
  Segmented(WorkRequest request, std::uint32_t node, std::uint32_t nodes, std::size_t slot_bytes,
            std::size_t whole_bytes);

  // The owner's work on elements `range`: adds `inputs`, one for each node, and leaves the sum in their place. If the request
  // has an owner stage, that does it instead.
  void own(Range range, std::span<const std::byte* const> inputs) const;
  // True if owners send their results to all.
  [[nodiscard]] bool gathers() const { return request.kind == WorkRequest::Kind::kAllReduce && !whole; }

  [[nodiscard]] bool is_by_all() const { return request.kind == WorkRequest::Kind::kReduceByAll; }

  [[nodiscard]] Range segment_of(std::uint32_t owner, std::uint64_t round) const {
    return slices.segment_of(is_by_all() ? 0 : owner, round);
  }
  [[nodiscard]] Range mine(std::uint64_t round) const { return segment_of(node, round); }
  [[nodiscard]] std::span<std::byte> bytes(Range range) const {
    return {request.data + range.first * element, range.count * element};
  }

  WorkRequest request;
  std::uint32_t node = 0;
  std::size_t element = 1;        // bytes
  bool whole = false;             // sent whole to everyone
  Slices slices;                  // without rounds if all is sent whole
  std::uint64_t sent = 0;         // rounds whose segments have gone
  std::uint64_t first_round = 0;  // in the sequence of all requests
};

// What the observer of the request is told of data that a peer gets or has sent.
inline SegmentMove move_of(const Segmented& segmented, std::uint32_t peer, model::SegmentPart part, std::uint64_t round,
                           const Range& range, bool is_sent) {
  return {.request = segmented.request.id,
          .peer = peer,
          .round = static_cast<std::uint32_t>(round),
          .bytes = range.count * segmented.element,
          .part = part,
          .is_sent = is_sent};
}

// Visits the peers of `node` beginning with the next node, so that not all nodes send to the same one at once. Ends when a
// visit gives false; gives whether none did.
template <typename Visit>
bool each_peer(std::uint32_t node, std::uint32_t nodes, Visit visit) {
  for (std::uint32_t step = 1; step < nodes; ++step)
    if (!visit((node + step) % nodes)) return false;
  return true;
}

}  // namespace deft::link
