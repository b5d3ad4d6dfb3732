// MG-WFBP (Shi et al., INFOCOM 2019): neighbours in the order of production go as one launch where the start-up of the link
// that this saves is worth more than the wait for the last of them; otherwise fifo. Where no profile is given it begins as
// fifo, measures, and merges when it has seen enough; later it looks again whether what it measures has moved.
//
// Each step keeps the groups with which its first bucket came, so that a change never leaves a byte out or sends it twice.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "core/model/fusion.h"
#include "core/sched/policies.h"
#include "core/sched/profile_change.h"
#include "core/sched/queue_scheduler.h"
#include "core/sched/replan_trigger.h"
#include "core/sched/step_meter.h"

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
        lost_(setup.links.size()),
        meter_(setup.buckets),
        measures_(!setup.profile) {
    group(setup.profile ? model::fused_starts(*setup.profile, apart_) : all_apart(setup.buckets.size()));
  }

  void stage_began(Stage stage, std::uint64_t step, TimeUs now_us, TimeUs waited_us) override {
    if (!measures_) return;
    meter_.stage_began(stage, step, now_us, waited_us);
    if (stage == Stage::kForward && trigger_.due(step)) look(step);
  }

  void bucket_ready(BucketIndex bucket, std::uint64_t step, TimeUs now_us) override {
    if (measures_) meter_.bucket_ready(bucket, step, now_us);
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

  void slowest_step_measured(double us) override { meter_.slowest_step_measured(us); }
  void link_measured(model::LinkIndex link, const model::LinkModel& measured) override {
    QueueScheduler::link_measured(link, measured);
    if (is_sane(measured)) setup_.links[link] = measured;
  }
  void link_lost(model::LinkIndex link) override {
    QueueScheduler::link_lost(link);
    lost_[link] = true;
    trigger_.hurry(0);
  }

  std::optional<BucketFusion> take_fusion() override { return std::exchange(merging_, std::nullopt); }

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

  // Groups anew if that is worth it.
  void look(std::uint64_t step) {
    trigger_.looked(step, grouped_for_.has_value());
    const auto measured = meter_.profile(setup_.links);
    if (!measured) return;
    const plan::ReplanReason change = reason_to_group(*measured);
    if (!trigger_.confirm(change)) return;
    grouped_for_ = measured;
    lost_then_ = lost_;
    trigger_.decided();
    auto starts = model::fused_starts(without_lost(*measured, lost_), apart_);
    if (starts == groups_->starts) return;
    merging_ = BucketFusion{step, starts, change.reason};
    group(std::move(starts));
  }

  [[nodiscard]] plan::ReplanReason reason_to_group(const model::Profile& measured) const {
    if (!grouped_for_) return {"the first profile", true};
    if (lost_ != lost_then_) return {describe_loss(lost_), true};
    std::string reason = describe_move(measured, *grouped_for_, lost_);
    for (std::size_t l = 0; l < lost_.size() && reason.empty(); ++l) {
      const double before = grouped_for_->links[l].latency_us, after = measured.links[l].latency_us;
      if (!lost_[l] && moved(after, before))
        reason = describe_change("link " + std::to_string(l) + "'s latency (us)", before, after);
    }
    return {std::move(reason), false};
  }

  Setup setup_;  // its links as they are measured
  std::vector<bool> apart_;
  std::vector<bool> lost_, lost_then_;  // of each link: now, and when the groups were made
  StepMeter meter_;
  bool measures_;
  std::shared_ptr<const Groups> groups_;
  std::map<std::uint64_t, Step> steps_;
  std::optional<model::Profile> grouped_for_;
  std::optional<BucketFusion> merging_;
  ReplanTrigger trigger_{StepMeter::kComplete};
};

}  // namespace

Result<std::unique_ptr<Scheduler>> make_mgwfbp(const Setup& setup) { return std::make_unique<MgWfbp>(setup); }

}  // namespace deft::sched
