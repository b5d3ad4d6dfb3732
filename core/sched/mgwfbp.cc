// MG-WFBP (Shi et al., INFOCOM 2019): neighbours in the order of production go as one launch where the start-up of the link
// that this saves is worth more than the wait for the last of them; otherwise fifo. It begins as fifo, merges
// once it has a profile, and merges anew when the profile has moved.
//
// Each step keeps the groups with which its first bucket came, so that a change never leaves a byte out or sends it twice.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "core/model/fusion.h"
#include "core/sched/policies.h"
#include "core/sched/profile_watch.h"
#include "core/sched/queue_scheduler.h"

namespace deft::sched {
namespace {

using model::BucketIndex;

struct Groups {
  std::vector<BucketIndex> starts;  // ascending, the first 0
  std::vector<std::uint32_t> of;    // the group of each bucket
  std::vector<std::uint32_t> size;  // buckets in each group
};

Groups make_groups(std::vector<BucketIndex> starts, std::size_t buckets) {
  Groups groups{std::move(starts), std::vector<std::uint32_t>(buckets), {}};
  groups.size.resize(groups.starts.size());
  std::uint32_t group = 0;
  for (BucketIndex bucket = 0; bucket < buckets; ++bucket) {
    if (group + 1 < groups.starts.size() && groups.starts[group + 1] == bucket) ++group;
    groups.of[bucket] = group;
    ++groups.size[group];
  }
  return groups;
}

// What is not next to the bucket before it, in memory of the same type, cannot share a transfer with it.
std::vector<bool> apart_buckets(const std::vector<model::Bucket>& buckets) {
  std::vector<bool> apart(buckets.size());
  for (std::size_t i = 1; i < buckets.size(); ++i)
    apart[i] =
        buckets[i].dtype != buckets[i - 1].dtype || buckets[i].offset != buckets[i - 1].offset + buckets[i - 1].bytes;
  return apart;
}

std::vector<BucketIndex> all_apart(std::size_t buckets) {
  std::vector<BucketIndex> starts;
  for (BucketIndex bucket = 0; bucket < buckets; ++bucket) starts.push_back(bucket);
  return starts;
}

class MgWfbp final : public QueueScheduler {
 public:
  explicit MgWfbp(const Setup& setup)
      : QueueScheduler(setup, in_order(setup, 0)),
        setup_(setup),
        apart_(apart_buckets(setup.buckets)),
        watch_(setup.links.size(), true) {
    group(all_apart(setup.buckets.size()));
  }

  void bucket_ready(BucketIndex bucket, std::uint64_t step, TimeUs) override {
    const auto [it, first] = steps_.try_emplace(step);
    Step& under_way = it->second;
    if (first) under_way = {groups_, groups_->size, static_cast<std::uint32_t>(setup_.buckets.size())};
    const Groups& groups = *under_way.groups;
    const std::uint32_t group = groups.of[bucket];
    if (--under_way.missing[group] == 0) enqueue_run(groups.starts[group], groups.size[group], step, part_limit());
    if (--under_way.left == 0) steps_.erase(it);
  }

  // The queue counts a group's bytes from the beginning of its first bucket.
  std::vector<Launch> take_launches(TimeUs now_us) override {
    auto launches = QueueScheduler::take_launches(now_us);
    for (Launch& launch : launches)
      for (; launch.offset >= bucket(launch.bucket).bytes; ++launch.bucket)
        launch.offset -= bucket(launch.bucket).bytes;
    return launches;
  }

  void link_lost(model::LinkIndex link) override {
    QueueScheduler::link_lost(link);
    watch_.link_lost(link);
  }

  [[nodiscard]] bool wants_profile(std::uint64_t step) const override { return watch_.is_due(step); }
  void profile_measured(const model::Profile& profile, std::uint64_t step, TimeUs) override {
    auto reason = watch_.look(profile, step);
    if (!reason) return;
    watch_.decided(profile);
    auto starts = model::fused_starts(watch_.remaining(profile), apart_);
    if (starts == groups_->starts) return;
    fusion_ = BucketFusion{step, starts, std::move(reason->reason)};
    group(std::move(starts));
  }

  std::optional<BucketFusion> take_fusion() override { return std::exchange(fusion_, std::nullopt); }

 private:
  struct Step {  // of which not all buckets are ready
    std::shared_ptr<const Groups> groups;
    std::vector<std::uint32_t> missing;  // of each group
    std::uint32_t left = 0;
  };

  void group(std::vector<BucketIndex> starts) {
    groups_ = std::make_shared<const Groups>(make_groups(std::move(starts), setup_.buckets.size()));
    std::uint64_t largest = 0;
    for (std::size_t g = 0; g < groups_->starts.size(); ++g) {
      std::uint64_t bytes = 0;
      for (BucketIndex b = groups_->starts[g]; b < groups_->starts[g] + groups_->size[g]; ++b) bytes += bucket(b).bytes;
      largest = std::max(largest, bytes);
    }
    change_rules(in_order(setup_, largest));
  }

  Setup setup_;
  std::vector<bool> apart_;
  ProfileWatch watch_;
  std::shared_ptr<const Groups> groups_;
  std::map<std::uint64_t, Step> steps_;
  std::optional<BucketFusion> fusion_;
};

}  // namespace

Result<std::unique_ptr<Scheduler>> make_mgwfbp(const Setup& setup) { return std::make_unique<MgWfbp>(setup); }

}  // namespace deft::sched
