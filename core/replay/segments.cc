#include "core/replay/segments.h"

#include <algorithm>
#include <limits>

#include "core/model/segment_part.h"

namespace deft::replay {
namespace {

using trace::SegmentTrace;
using trace::TraceKind;

using Way = SentSegments::Way;

// Of what `node` has sent.
Way way_of_sent(const SegmentTrace& segment, std::uint32_t node) {
  return {.launch = segment.number,
          .round = segment.round,
          .request = segment.request,
          .part = segment.part,
          .is_server = segment.is_server == 1,
          .to = segment.peer,
          .from = node};
}

// Of what `node` has received: as `from` had sent it. A server takes segments and answers with results.
Way way_of_received(const SegmentTrace& segment, std::uint32_t node, std::uint32_t from) {
  constexpr auto kSegment = static_cast<std::uint8_t>(model::SegmentPart::kSegment);
  constexpr auto kResult = static_cast<std::uint8_t>(model::SegmentPart::kResult);
  Way way = way_of_sent(segment, from);
  if (!way.is_server) way.to = node;
  if (way.is_server && way.part == kResult) way.part = kSegment;
  return way;
}

// Visits the segments that a node has sent, or received. Through a server, only those with data: a node also pushes nothing to ask for
// another node's data, and that node gets an empty answer.
template <typename Visit>
void each_segment(const trace::NodeTrace& trace, bool is_sent, Visit visit) {
  for (const auto& record : trace.records) {
    if (record.kind() != TraceKind::kSegment) continue;
    const auto segment = record.as<SegmentTrace>();
    if ((segment.is_sent == 1) != is_sent || (segment.is_server == 1 && segment.bytes == 0)) continue;
    visit(record, segment);
  }
}

// Whatever `receiver` got from `sender`, by their own clocks.
template <typename Visit>
void each_pair(const trace::NodeTrace& sender, const trace::NodeTrace& receiver, Visit visit) {
  SentSegments sent;
  sent.add(sender, receiver.header.node);
  sent.index();
  each_segment(receiver, false, [&](const trace::TraceRecord& record, const SegmentTrace& segment) {
    if (segment.is_server == 0 && segment.peer != sender.header.node) return;
    if (const auto* const send = sent.that_fed(receiver.header.node, segment)) visit(send->begin_us, record.end_us());
  });
}

}  // namespace

void SentSegments::add(const trace::NodeTrace& trace, std::optional<std::uint32_t> peer) {
  each_segment(trace, true, [&](const trace::TraceRecord& record, const SegmentTrace& segment) {
    if (segment.is_server == 1 || segment.peer == peer.value_or(segment.peer))
      sends_.push_back({way_of_sent(segment, trace.header.node), record.begin_us()});
  });
}

// Of two that say the same, which no daemon writes, the first one counts.
void SentSegments::index() {
  std::ranges::stable_sort(sends_, {}, &Send::way);
  const auto is_again = [](const Send& a, const Send& b) { return a.way == b.way; };
  sends_.erase(std::unique(sends_.begin(), sends_.end(), is_again), sends_.end());
}

const SentSegments::Send* SentSegments::find(const Way& way) const {
  const auto at = std::ranges::lower_bound(sends_, way, {}, &Send::way);
  return at == sends_.end() || at->way != way ? nullptr : &*at;
}

const SentSegments::Send* SentSegments::that_fed(std::uint32_t node, const SegmentTrace& received) const {
  if (received.is_server == 0) return find(way_of_received(received, node, received.peer));
  if (received.bytes == 0) return nullptr;
  constexpr std::uint32_t kLast = std::numeric_limits<std::uint32_t>::max();
  const auto begin = std::ranges::lower_bound(sends_, way_of_received(received, node, 0), {}, &Send::way);
  const auto end = std::ranges::upper_bound(sends_, way_of_received(received, node, kLast), {}, &Send::way);
  return begin == end
             ? nullptr
             : &*std::max_element(begin, end, [](const Send& a, const Send& b) { return a.begin_us < b.begin_us; });
}

const SentSegments::Send* SentSegments::of(std::uint32_t node, const SegmentTrace& sent) const {
  return find(way_of_sent(sent, node));
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
