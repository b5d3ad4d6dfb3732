#include "core/replay/segments.h"

#include <algorithm>

namespace deft::replay {
namespace {

using trace::SegmentTrace;
using trace::TraceKind;

SentSegments::Way way_of(const SegmentTrace& segment, std::uint32_t from, std::uint32_t to) {
  return {segment.number, segment.round, segment.request, segment.part, from, to};
}

// Visits the segments that a node has sent to other nodes, or received from them.
template <typename Visit>
void each_segment(const trace::NodeTrace& trace, bool is_sent, Visit visit) {
  for (const auto& record : trace.records) {
    if (record.kind() != TraceKind::kSegment) continue;
    const auto segment = record.as<SegmentTrace>();
    if (segment.is_server == 0 && (segment.is_sent == 1) == is_sent) visit(record, segment);
  }
}

// Whatever `receiver` got from `sender`, by their own clocks.
template <typename Visit>
void each_pair(const trace::NodeTrace& sender, const trace::NodeTrace& receiver, Visit visit) {
  SentSegments sent;
  sent.add(sender, receiver.header.node);
  sent.index();
  each_segment(receiver, false, [&](const trace::TraceRecord& record, const SegmentTrace& segment) {
    if (segment.peer != sender.header.node) return;
    if (const auto* const send = sent.that_fed(receiver.header.node, segment)) visit(send->begin_us, record.end_us());
  });
}

}  // namespace

void SentSegments::add(const trace::NodeTrace& trace, std::optional<std::uint32_t> peer) {
  each_segment(trace, true, [&](const trace::TraceRecord& record, const SegmentTrace& segment) {
    if (segment.peer == peer.value_or(segment.peer))
      sends_.push_back({way_of(segment, trace.header.node, segment.peer), record.begin_us()});
  });
}

// Of two that say the same, which no daemon writes, the first one counts.
void SentSegments::index() { std::ranges::stable_sort(sends_, {}, &Send::way); }

const SentSegments::Send* SentSegments::find(const Way& way) const {
  const auto at = std::ranges::lower_bound(sends_, way, {}, &Send::way);
  return at == sends_.end() || at->way != way ? nullptr : &*at;
}

const SentSegments::Send* SentSegments::that_fed(std::uint32_t node, const SegmentTrace& received) const {
  return received.is_server == 1 ? nullptr : find(way_of(received, received.peer, node));
}

const SentSegments::Send* SentSegments::of(std::uint32_t node, const SegmentTrace& sent) const {
  return sent.is_server == 1 ? nullptr : find(way_of(sent, node, sent.peer));
}

std::vector<ClockBound> clock_bounds(const trace::NodeTrace& node, const trace::NodeTrace& leader) {
  std::vector<ClockBound> bounds;
  each_pair(leader, node, [&](TimeUs sent_us, TimeUs received_us) {
    bounds.push_back({.node_us = received_us, .leader_us = sent_us, .is_least = true});
  });
  each_pair(node, leader, [&](TimeUs sent_us, TimeUs received_us) {
    bounds.push_back({.node_us = sent_us, .leader_us = received_us, .is_least = false});
  });
  return bounds;
}

}  // namespace deft::replay
