#include "core/replay/launches.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

namespace deft::replay {
namespace {

using trace::TraceKind;

// When the gradients of each bucket and generation that the leader has ordered were complete on this node.
class ReadyTimes {
 public:
  explicit ReadyTimes(const trace::NodeTrace& trace);

  struct Ready {
    TimeUs us = 0;  // 0: before the trace began
    std::uint64_t last_step = 0;
  };
  [[nodiscard]] const Ready& of(const trace::OrderTrace& order) const {
    return ready_.at({order.group, order.generation}).at(order.bucket);
  }

 private:
  void handed_in(TimeUs at_us, const trace::GradientTrace& gradient,
                 const std::vector<std::vector<std::uint32_t>>& buckets_of);

  // By group and generation, and then by bucket. Orders bound their number: a gradient may stand for any number of buckets.
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::unordered_map<std::uint32_t, Ready>> ready_;
};

ReadyTimes::ReadyTimes(const trace::NodeTrace& trace) {
  std::map<std::uint32_t, std::vector<std::vector<std::uint32_t>>> buckets_of;  // [group][tensor]
  for (const auto& group : trace.groups) buckets_of[group.group] = buckets_by_tensor(group);
  for (const auto& record : trace.records) {
    if (record.kind() != TraceKind::kOrder) continue;
    const auto order = record.as<trace::OrderTrace>();
    ready_[{order.group, order.generation}].try_emplace(order.bucket);
  }
  for (const auto& record : trace.records) {
    if (record.kind() != TraceKind::kGradient) continue;
    const auto gradient = record.as<trace::GradientTrace>();
    if (const auto group = buckets_of.find(gradient.group); group != buckets_of.end())
      handed_in(record.begin_us(), gradient, group->second);
  }
}

void ReadyTimes::handed_in(TimeUs at_us, const trace::GradientTrace& gradient,
                           const std::vector<std::vector<std::uint32_t>>& buckets_of) {
  const auto ordered = ready_.find({gradient.group, gradient.generation});
  if (ordered == ready_.end()) return;
  const std::size_t end =
      std::min<std::size_t>(buckets_of.size(), std::size_t{gradient.first_tensor} + gradient.tensors);
  for (std::size_t tensor = gradient.first_tensor; tensor < end; ++tensor)
    for (const auto bucket : buckets_of[tensor])
      if (const auto ready = ordered->second.find(bucket); ready != ordered->second.end())
        ready->second = {std::max(ready->second.us, at_us), gradient.last_step};
}

// The number of each launch of which a record tells, and the record's place, in order. There may be hundreds of thousands, and explain asks
// for them often. A trace may come from anywhere, so numbers may be made to collide in a table of hashes.
std::vector<std::pair<std::uint64_t, std::size_t>> records_by_number(const trace::NodeTrace& trace) {
  std::vector<std::pair<std::uint64_t, std::size_t>> places;
  for (std::size_t i = 0; i < trace.records.size(); ++i) {
    const trace::TraceRecord& record = trace.records[i];
    if (record.kind() == TraceKind::kOrder) places.emplace_back(record.as<trace::OrderTrace>().number, i);
    if (record.kind() == TraceKind::kTransfer) places.emplace_back(record.as<trace::TransferTrace>().number, i);
  }
  std::ranges::sort(places);
  return places;
}

void add(const trace::TraceRecord& record, const ReadyTimes& ready, NodeLaunch& launch) {
  if (record.kind() == TraceKind::kTransfer) {
    const auto transfer = record.as<trace::TransferTrace>();
    launch.link = transfer.link;
    launch.bytes = transfer.bytes;
    launch.wire_bytes = transfer.wire_bytes;
    launch.spans.push_back({transfer.stage, record.begin_us(), record.end_us()});
    return;
  }
  const auto order = record.as<trace::OrderTrace>();
  launch.link = order.link;
  launch.bytes = launch.wire_bytes = order.bytes();
  launch.order = order;
  launch.ordered_us = record.begin_us();
  if (const auto& known = ready.of(order); known.us > 0) launch.ready_us = known.us, launch.last_step = known.last_step;
}

// Moves them into the order of the begin of their transfers. They are in the order of their numbers.
std::vector<NodeLaunch> by_begin(std::vector<NodeLaunch> launches) {
  std::vector<std::pair<TimeUs, std::size_t>> order;
  order.reserve(launches.size());
  for (NodeLaunch& launch : launches) {
    const auto times = [](const NodeLaunch::Span& span) { return std::pair(span.begin_us, span.end_us); };
    if (!std::ranges::is_sorted(launch.spans, {}, times)) std::ranges::stable_sort(launch.spans, {}, times);
    order.emplace_back(launch.spans.empty() ? TimeUs{0} : launch.begin_us(), order.size());
  }
  std::ranges::sort(order);
  std::vector<NodeLaunch> sorted;
  sorted.reserve(order.size());
  for (const auto& [begin_us, place] : order) sorted.push_back(std::move(launches[place]));
  return sorted;
}

}  // namespace

std::vector<std::vector<std::uint32_t>> buckets_by_tensor(const trace::TraceGroup& group) {
  std::vector<std::vector<std::uint32_t>> buckets(group.tensors.size());
  for (std::uint32_t b = 0; b < group.buckets.size(); ++b)
    for (const auto tensor : group.buckets[b].tensors) buckets[tensor].push_back(b);
  return buckets;
}

std::vector<NodeLaunch> launches_of(const trace::NodeTrace& trace) {
  const ReadyTimes ready(trace);
  std::vector<NodeLaunch> launches;
  for (const auto& [number, place] : records_by_number(trace)) {
    if (launches.empty() || launches.back().number != number) launches.push_back({.number = number});
    add(trace.records[place], ready, launches.back());
  }
  return by_begin(std::move(launches));
}

}  // namespace deft::replay
