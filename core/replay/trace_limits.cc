#include "core/replay/trace_limits.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "core/model/events.h"

namespace deft::replay {
namespace {

using trace::TraceKind;

constexpr std::size_t kEntriesOfTime = 4;  // a step keeps the time of a bucket in memory, while a pair costs time alone

// How many pairs of a tensor and a bucket the gradients of successive tensors of a group are.
class PairCounts {
 public:
  explicit PairCounts(const trace::TraceGroup& group) : before_(group.tensors.size() + 1) {
    for (const auto& bucket : group.buckets)
      for (const auto tensor : bucket.tensors) ++before_[tensor + 1];
    for (std::size_t tensor = 1; tensor < before_.size(); ++tensor) before_[tensor] += before_[tensor - 1];
  }
  // With one for each tensor, which is looked at.
  [[nodiscard]] std::size_t of(const trace::GradientTrace& gradient) const {
    const std::size_t last = before_.size() - 1;
    const std::size_t begin = std::min<std::size_t>(gradient.first_tensor, last);
    const std::size_t end = std::min<std::size_t>(begin + gradient.tensors, last);
    return before_[end] - before_[begin] + end - begin;
  }

 private:
  std::vector<std::size_t> before_;  // [tensor]
};

}  // namespace

std::string limit_work(trace::NodeTrace& trace, std::size_t most) {
  std::map<std::uint32_t, PairCounts> pairs;
  std::size_t most_buckets = 0;
  for (const auto& group : trace.groups) {
    pairs.emplace(group.group, group);
    most_buckets = std::max(most_buckets, group.buckets.size());
  }
  std::size_t entries = 0;
  const auto is_too_much = [&](const trace::TraceRecord& record) {
    if (record.kind() == TraceKind::kStage) {
      const bool is_forward =
          record.as<trace::StageTrace>().stage == static_cast<std::uint32_t>(model::Stage::kForward);
      entries += is_forward ? kEntriesOfTime * most_buckets : 0;
    } else if (record.kind() == TraceKind::kGradient) {
      const auto gradient = record.as<trace::GradientTrace>();
      const auto known = pairs.find(gradient.group);
      entries += known == pairs.end() ? 0 : known->second.of(gradient);
    }
    return entries > most;
  };
  const auto end = std::ranges::find_if(trace.records, is_too_much);
  if (end == trace.records.end()) return {};
  const auto left_out = trace.records.end() - end;
  trace.records.erase(end, trace.records.end());
  return std::to_string(left_out) +
         " records are left out, because there are too many steps of too many buckets: trace fewer steps "
         "(DEFT_TRACE_STEPS)";
}

}  // namespace deft::replay
