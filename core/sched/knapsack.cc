// Our policy: follows a cyclic plan (knapsack_planner.h). Where no profile is given, it begins synchronously, measures,
// and plans when it has seen enough; later it plans again when what it measures has moved away from the plan.
#include <cmath>
#include <deque>
#include <utility>

#include "core/sched/knapsack_planner.h"
#include "core/sched/plan_follower.h"
#include "core/sched/policies.h"
#include "core/sched/step_meter.h"

namespace deft::sched {
namespace {

constexpr std::uint64_t kLookEvery = 32;  // steps between comparisons of the plan with what is measured
constexpr double kMoved = 0.15;           // a change of a time or a throughput that is worth a new plan

// One update a step, all of it on the wire at once: what runs until there is something to plan with.
model::Profile unknown_times(const Setup& setup) {
  model::Profile profile;
  for (std::size_t b = setup.buckets.size(); b-- > 0;) {
    const auto bytes = static_cast<double>(setup.buckets[b].bytes);
    profile.buckets.push_back({"b" + std::to_string(b), setup.buckets[b].bytes, 1e-3 * bytes, 2e-3 * bytes, {}});
  }
  for (std::size_t l = 0; l < setup.links.size(); ++l)
    profile.links.push_back({"link" + std::to_string(l), setup.links[l].latency_us, {}, setup.links[l].bytes_per_us});
  return profile;
}

bool moved(double now, double then) { return std::abs(now - then) > kMoved * then; }

bool moved(const model::Profile& now, const model::Profile& then) {
  if (moved(now.compute_us(), then.compute_us()) || moved(now.forward_us(), then.forward_us())) return true;
  for (std::size_t l = 0; l < now.links.size(); ++l)
    if (moved(now.link_model(l).bytes_per_us, then.link_model(l).bytes_per_us)) return true;
  return false;
}

class Knapsack final : public Scheduler {
 public:
  Knapsack(const Setup& setup, model::Plan plan)
      : setup_(setup), links_(setup.links), meter_(setup.buckets), measures_(!setup.profile) {
    followers_.emplace_back(std::move(plan), setup.buckets.size(), 0, 0);
  }

  void stage_began(Stage stage, std::uint64_t step, TimeUs now_us) override {
    if (measures_) meter_.stage_began(stage, step, now_us);
    reach(step);
  }
  void bucket_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us) override {
    if (measures_) meter_.bucket_ready(bucket, step, now_us);
    reach(step);
    for (auto& follower : followers_) follower.ready(bucket, step);
  }
  void part_finished(const Launch&, TimeUs) override {}
  void link_measured(model::LinkIndex link, const model::LinkModel& measured) override { links_[link] = measured; }

  std::vector<Launch> take_launches(TimeUs) override {
    std::vector<Launch> launches;
    followers_.front().take(launches);
    while (followers_.size() > 1 && followers_.front().done()) {  // links keep one order: the old plan's parts go first
      followers_.pop_front();
      followers_.front().take(launches);
    }
    for (auto& launch : launches) launch.id = launches_++;
    return launches;
  }
  std::vector<Update> take_updates() override { return std::exchange(updates_, {}); }

 private:
  void reach(std::uint64_t step) {
    if (reached_ > step) return;
    reached_ = step + 1;
    if (measures_ && step >= look_at_ && followers_.size() == 1) look(step);
    for (auto& follower : followers_) follower.reach(step, updates_);
  }

  // Plans anew if that is worth it. The new plan begins where the cycle that is under way ends.
  void look(std::uint64_t step) {
    look_at_ = step + (planned_on_ ? kLookEvery : 1);
    auto measured = meter_.profile(links_);
    if (!measured || (planned_on_ && !moved(*measured, *planned_on_))) return;
    auto plan = plan_knapsack(*measured, setup_.limits);
    if (!plan) return;  // what was measured makes no sense yet; the old plan is still good
    const auto end = followers_.back().end();
    followers_.emplace_back(std::move(*plan), setup_.buckets.size(), end.step, end.generation, end.apply);
    planned_on_ = std::move(measured);
    look_at_ = end.step + kLookEvery;
  }

  Setup setup_;
  std::vector<model::LinkModel> links_;
  StepMeter meter_;
  bool measures_;
  std::deque<PlanFollower> followers_;  // the plan that runs, and behind it the one that is about to
  std::optional<model::Profile> planned_on_;
  std::uint64_t look_at_ = StepMeter::kSteps;
  std::uint64_t reached_ = 0;
  std::uint64_t launches_ = 0;
  std::vector<Update> updates_;
};

}  // namespace

Result<std::unique_ptr<Scheduler>> make_knapsack(const Setup& setup) {
  PlanLimits limits = setup.limits;
  if (!setup.profile) limits.max_staleness_steps = 0;
  auto plan = plan_knapsack(setup.profile ? *setup.profile : unknown_times(setup), limits);
  if (!plan) return tl::unexpected(plan.error().in("policy knapsack"));
  return std::make_unique<Knapsack>(setup, std::move(*plan));
}

}  // namespace deft::sched
