#include "core/replay/measured_buckets.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <utility>

#include "core/partition/rebucket.h"
#include "core/replay/measured_job.h"
#include "core/replay/quantiles.h"
#include "core/replay/recut.h"

namespace deft::replay {
namespace {

using trace::TraceGroup;

constexpr double kLeastUs = 0.001;
constexpr std::size_t kMostSteps = 64;  // from which the times of other buckets are taken

bool share_a_tensor(const TraceGroup::Bucket& one, const TraceGroup::Bucket& next) {
  return !one.tensors.empty() && std::ranges::find(next.tensors, one.tensors.back()) != next.tensors.end();
}

// What codecs may encode is known of tensors as well as of buckets.
bool tells_all(const TraceGroup& group) {
  const auto tells = [](const auto& one) { return one.elements.has_value(); };
  return std::ranges::none_of(group.buckets, tells) || std::ranges::all_of(group.tensors, tells);
}

// True if `bucketing` cuts the gradients into no more buckets than a profile may have.
bool is_coarse_enough(const TraceGroup& group, std::string_view bucketing) {
  if (!bucketing.starts_with("uniform")) return true;
  const auto bytes = partition::uniform_bytes(bucketing);
  if (!bytes) return false;
  std::uint64_t total = 0;
  for (const TraceGroup::Bucket& bucket : group.buckets) total += bucket.bytes;
  return total / *bytes <= model::kMaxProfileBuckets;
}

std::vector<WorkerStep> complete_of(const std::vector<WorkerStep>& steps) {
  std::vector<WorkerStep> complete;
  std::ranges::copy_if(steps, std::back_inserter(complete), &WorkerStep::complete);
  return complete;
}

// What backward takes for each bucket, from the one before it on.
std::vector<double> backward_of_complete(const std::vector<WorkerStep>& steps, std::size_t count) {
  std::vector<std::size_t> order(count);  // in which backward makes them
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<std::vector<double>> backward_us(count);
  for (const WorkerStep& step : steps) {
    std::ranges::stable_sort(order, {}, [&](std::size_t b) { return step.ready_us[b]; });
    TimeUs before_us = step.backward_began_us;
    for (const auto b : order) {
      backward_us[b].push_back(static_cast<double>(std::max<TimeUs>(0, step.ready_us[b] - before_us)));
      before_us = std::max(before_us, step.ready_us[b]);
    }
  }
  std::vector<double> medians_us;
  for (auto& times_us : backward_us) medians_us.push_back(median(std::move(times_us)));
  return medians_us;
}

// How long after the begin of backward each bucket is ready, in the steps in which it was handed in.
std::vector<double> ready_by_bucket(const std::vector<WorkerStep>& steps, std::size_t count) {
  std::vector<double> medians_us;
  for (std::size_t b = 0; b < count; ++b) {
    std::vector<double> ready_us;
    for (const WorkerStep& step : steps)
      if (step.ready_us[b] > 0) ready_us.push_back(static_cast<double>(step.ready_us[b] - step.backward_began_us));
    medians_us.push_back(median(std::move(ready_us)));
  }
  return medians_us;
}

// The same as backward_of_complete(), from steps in which some buckets were not handed in.
std::vector<double> backward_by_bucket(const std::vector<WorkerStep>& steps, std::size_t count) {
  const auto ready_us = ready_by_bucket(steps, count);
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t b) { return ready_us[b]; });
  std::vector<double> backward_us(count);
  double before_us = 0;
  for (const auto b : order) backward_us[b] = ready_us[b] - std::exchange(before_us, ready_us[b]);
  return backward_us;
}

double sum_of(const std::vector<model::ProfileBucket>& buckets, double model::ProfileBucket::*us) {
  return std::transform_reduce(buckets.begin(), buckets.end(), 0.0, std::plus<>(),
                               [us](const model::ProfileBucket& bucket) { return bucket.*us; });
}

void scale_to(double sum_us, std::vector<model::ProfileBucket>& buckets, double model::ProfileBucket::*us) {
  const double times = sum_us / sum_of(buckets, us);
  for (auto& bucket : buckets) bucket.*us = std::max(kLeastUs, bucket.*us * times);
}

}  // namespace

std::vector<model::ProfileBucket> buckets_of(const std::vector<WorkerStep>& steps, const TraceGroup& group,
                                             double rest_us) {
  const std::size_t count = group.buckets.size();
  const std::vector<WorkerStep> complete = complete_of(steps);
  const auto backward_us =
      complete.size() >= kLeastSteps ? backward_of_complete(complete, count) : backward_by_bucket(steps, count);
  std::vector<double> forward_us;
  for (const WorkerStep& step : steps) forward_us.push_back(step.forward_us);
  std::vector<model::ProfileBucket> buckets(count);
  double backward_sum_us = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t b = count - 1 - i;
    buckets[i].name = "b" + std::to_string(b);
    buckets[i].bytes = group.buckets[b].bytes;
    buckets[i].joined = b > 0 && share_a_tensor(group.buckets[b - 1], group.buckets[b]);
    if (const auto& elements = group.buckets[b].elements)
      buckets[i].coded_bytes = elements->coded_bytes,
      buckets[i].element_bytes = model::is_half(elements->dtype) ? 2 : 4;
    backward_sum_us += buckets[i].backward_us = std::max(kLeastUs, backward_us[b]);
  }
  for (auto& bucket : buckets)
    bucket.forward_us = std::max(kLeastUs, median(forward_us)) * bucket.backward_us / backward_sum_us;
  buckets.front().forward_us += rest_us;
  return buckets;
}

double rest_of(const std::vector<WorkerStep>& steps) {
  if (steps.empty()) return 0;
  std::vector<WorkerStep> counted = complete_of(steps);
  if (counted.size() < kLeastSteps) {
    const auto ends_us = ready_by_bucket(steps, steps.front().ready_us.size());
    const auto last = std::ranges::max_element(ends_us) - ends_us.begin();
    counted = steps;
    std::erase_if(counted, [&](const WorkerStep& step) { return step.ready_us[static_cast<std::size_t>(last)] == 0; });
  }
  std::vector<double> rest_us;
  for (const WorkerStep& step : counted) rest_us.push_back(step.rest_us);
  return std::max(0.0, median(rest_us));
}

TensorTimes tensor_times(const trace::NodeTrace& leader, const TraceGroup& group,
                         const std::vector<model::ProfileBucket>& buckets, double rest_us) {
  TraceGroup by_tensor = group;
  by_tensor.buckets.clear();
  for (std::uint32_t tensor = 0; tensor < group.tensors.size(); ++tensor)
    by_tensor.buckets.push_back({.bytes = group.tensors[tensor].bytes, .tensors = {tensor}});
  TensorTimes times{.group = group,
                    .steps = {},
                    .rest_us = rest_us,
                    .forward_us = sum_of(buckets, &model::ProfileBucket::forward_us) - rest_us,
                    .backward_us = sum_of(buckets, &model::ProfileBucket::backward_us)};
  auto steps = steps_of(leader, by_tensor, 0);
  if (auto complete = complete_of(steps); complete.size() >= kLeastSteps) steps = std::move(complete);
  const std::size_t every = std::max<std::size_t>(1, steps.size() / kMostSteps);
  for (std::size_t i = 0; i < steps.size(); i += every) times.steps.push_back(steps[i]);
  return times;
}

std::optional<TraceGroup> with_codec_floor(const TraceGroup& group, std::uint64_t min_bytes) {
  const auto tells = [](const TraceGroup::Tensor& tensor) { return tensor.elements.has_value(); };
  if (!std::ranges::all_of(group.tensors, tells)) return std::nullopt;
  TraceGroup changed = group;
  for (auto& tensor : changed.tensors)
    if (tensor.bytes < min_bytes) tensor.elements->coded_bytes = 0;
  return changed;
}

void count_coded_bytes(const TraceGroup& group, std::vector<model::ProfileBucket>& buckets) {
  const auto offsets = arena_offsets(group);
  if (offsets.size() != group.tensors.size()) return;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> coded;  // ranges of the arena
  for (std::size_t tensor = 0; tensor < offsets.size(); ++tensor)
    if (group.tensors[tensor].elements->coded_bytes > 0)
      coded.emplace_back(offsets[tensor], offsets[tensor] + group.tensors[tensor].bytes);
  std::ranges::sort(coded);
  std::uint64_t begin = 0;
  auto range = coded.begin();
  for (auto bucket = buckets.rbegin(); bucket != buckets.rend(); ++bucket) {
    const std::uint64_t end = begin + bucket->bytes;
    bucket->coded_bytes = 0;
    for (; range != coded.end() && range->first < end; ++range) {
      *bucket->coded_bytes += std::min(end, range->second) - std::max(begin, range->first);
      if (range->second > end) break;  // it goes on in the next bucket
    }
    begin = end;
  }
}

std::vector<model::ProfileBucket> buckets_cut_by(const TensorTimes& times, std::string_view bucketing,
                                                 std::uint64_t partition_bytes) {
  if (times.group.tensors.empty() || !tells_all(times.group) || times.steps.size() < kLeastSteps ||
      !is_coarse_enough(times.group, bucketing))
    return {};
  const auto cut = recut(times.group, bucketing, partition_bytes);
  if (!cut) return {};
  std::vector<WorkerStep> steps = times.steps;
  for (WorkerStep& step : steps) {
    const std::vector<TimeUs> by_tensor = std::exchange(step.ready_us, std::vector<TimeUs>(cut->buckets.size()));
    for (std::size_t b = 0; b < cut->buckets.size(); ++b)
      for (const auto tensor : cut->buckets[b].tensors)
        step.ready_us[b] = std::max(step.ready_us[b], by_tensor[tensor]);
  }
  auto buckets = buckets_of(steps, *cut, 0);
  scale_to(times.forward_us, buckets, &model::ProfileBucket::forward_us);
  scale_to(times.backward_us, buckets, &model::ProfileBucket::backward_us);
  buckets.front().forward_us += times.rest_us;
  return buckets;
}

}  // namespace deft::replay
