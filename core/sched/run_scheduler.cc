#include "core/sched/run_scheduler.h"

#include <algorithm>
#include <utility>

namespace deft::sched {

using model::BucketIndex;

std::vector<bool> apart_buckets(const std::vector<model::Bucket>& buckets) {
  std::vector<bool> apart(buckets.size());
  for (std::size_t i = 1; i < buckets.size(); ++i)
    apart[i] =
        buckets[i].dtype != buckets[i - 1].dtype || buckets[i].offset != buckets[i - 1].offset + buckets[i - 1].bytes;
  return apart;
}

RunStarts single_runs(std::size_t buckets) {
  RunStarts starts;
  for (BucketIndex bucket = 0; bucket < buckets; ++bucket) starts.push_back(bucket);
  return starts;
}

RunStarts runs_as_ddp(const std::vector<model::Bucket>& buckets, std::uint64_t bytes) {
  const auto apart = apart_buckets(buckets);
  RunStarts starts;
  std::uint64_t held = 0;
  for (BucketIndex bucket = 0; bucket < buckets.size(); ++bucket) {
    const std::uint64_t full = starts.size() == 1 ? std::min(model::kDdpFirstBucketBytes, bytes) : bytes;
    if (starts.empty() || apart[bucket] || held >= full) {
      starts.push_back(bucket);
      held = 0;
    }
    held += buckets[bucket].bytes;
  }
  return starts;
}

RunStarts runs_of_bytes_from_end(const std::vector<model::Bucket>& buckets, std::uint64_t last_bytes,
                                 std::uint64_t bytes) {
  const auto apart = apart_buckets(buckets);
  RunStarts starts;
  std::uint64_t held = 0;
  for (auto bucket = static_cast<BucketIndex>(buckets.size()); bucket-- > 0;) {
    held += buckets[bucket].bytes;
    const std::uint64_t full = starts.empty() ? std::min(last_bytes, bytes) : bytes;
    if (bucket > 0 && !apart[bucket] && held < full) continue;
    starts.push_back(bucket);
    held = 0;
  }
  std::ranges::reverse(starts);
  return starts;
}

RunScheduler::RunScheduler(const Setup& setup, RunStarts starts)
    : QueueScheduler(setup, in_order(setup, 0)), setup_(setup), apart_(apart_buckets(setup.buckets)) {
  change_runs(std::move(starts));
}

RunScheduler::Runs RunScheduler::make_runs(RunStarts starts, std::size_t buckets) {
  Runs runs{std::move(starts), std::vector<std::uint32_t>(buckets), {}};
  runs.size.resize(runs.starts.size());
  std::uint32_t run = 0;
  for (BucketIndex bucket = 0; bucket < buckets; ++bucket) {
    if (run + 1 < runs.starts.size() && runs.starts[run + 1] == bucket) ++run;
    runs.of[bucket] = run;
    ++runs.size[run];
  }
  return runs;
}

void RunScheduler::change_runs(RunStarts starts) {
  runs_ = std::make_shared<const Runs>(make_runs(std::move(starts), setup_.buckets.size()));
  std::uint64_t largest = 0;
  for (std::size_t run = 0; run < runs_->starts.size(); ++run) {
    std::uint64_t bytes = 0;
    for (BucketIndex b = runs_->starts[run]; b < runs_->starts[run] + runs_->size[run]; ++b) bytes += bucket(b).bytes;
    largest = std::max(largest, bytes);
  }
  change_rules(in_order(setup_, largest));
}

void RunScheduler::bucket_ready(BucketIndex bucket, std::uint64_t step, TimeUs) {
  const auto [it, first] = steps_.try_emplace(step);
  Step& under_way = it->second;
  if (first) under_way = {runs_, runs_->size, static_cast<std::uint32_t>(setup_.buckets.size())};
  const Runs& runs = *under_way.runs;
  const std::uint32_t run = runs.of[bucket];
  if (--under_way.missing[run] == 0) enqueue_run(runs.starts[run], runs.size[run], step, part_limit());
  if (--under_way.left == 0) steps_.erase(it);
}

// The queue counts a run's bytes from the beginning of its first bucket.
std::vector<Launch> RunScheduler::take_launches(TimeUs now_us) {
  auto launches = QueueScheduler::take_launches(now_us);
  for (Launch& launch : launches)
    for (; launch.offset >= bucket(launch.bucket).bytes; ++launch.bucket) launch.offset -= bucket(launch.bucket).bytes;
  return launches;
}

}  // namespace deft::sched
