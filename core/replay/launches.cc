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

}  // namespace

std::vector<std::vector<std::uint32_t>> buckets_by_tensor(const trace::TraceGroup& group) {
  std::vector<std::vector<std::uint32_t>> buckets(group.tensors.size());
  for (std::uint32_t b = 0; b < group.buckets.size(); ++b)
    for (const auto tensor : group.buckets[b].tensors) buckets[tensor].push_back(b);
  return buckets;
}

std::vector<NodeLaunch> launches_of(const trace::NodeTrace& trace) {
  const ReadyTimes ready(trace);
  std::map<std::uint64_t, NodeLaunch> launches;
  for (const auto& record : trace.records) {
    if (record.kind() == TraceKind::kOrder) {
      const auto order = record.as<trace::OrderTrace>();
      NodeLaunch& launch = launches[order.number];
      launch.number = order.number;
      launch.link = order.link;
      launch.bytes = launch.wire_bytes = order.bytes();
      launch.order = order;
      launch.ordered_us = record.begin_us();
      if (const auto& known = ready.of(order); known.us > 0)
        launch.ready_us = known.us, launch.last_step = known.last_step;
    } else if (record.kind() == TraceKind::kTransfer) {
      const auto transfer = record.as<trace::TransferTrace>();
      NodeLaunch& launch = launches[transfer.number];
      launch.number = transfer.number;
      launch.link = transfer.link;
      launch.bytes = transfer.bytes;
      launch.wire_bytes = transfer.wire_bytes;
      launch.spans.push_back({transfer.stage, record.begin_us(), record.end_us()});
    }
  }
  std::vector<NodeLaunch> sorted;
  for (auto& [number, launch] : launches) {
    std::ranges::stable_sort(launch.spans, {},
                             [](const NodeLaunch::Span& s) { return std::pair(s.begin_us, s.end_us); });
    sorted.push_back(std::move(launch));
  }
  std::ranges::stable_sort(
      sorted, {}, [](const NodeLaunch& launch) { return launch.spans.empty() ? TimeUs{0} : launch.begin_us(); });
  return sorted;
}

}  // namespace deft::replay
