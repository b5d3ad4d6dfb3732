// Our policy: follows a cyclic plan (knapsack_planner.h). Where no profile is given, it begins synchronously, measures,
// and plans when it has seen enough; later it plans again when what it measures has moved away from the plan, or when the
// judge of the setup would choose otherwise by now. A plan that the user gives begins with step 1 (workers hear of it
// before the first update) and stays. After the loss of a link a plan is made for the others; a given one stays, and takes
// longer.
#include <algorithm>
#include <string>
#include <utility>

#include "core/model/parts.h"
#include "core/model/update_schedule.h"
#include "core/plan/planner.h"
#include "core/sched/due_queue.h"
#include "core/sched/pinned_plan.h"
#include "core/sched/policies.h"
#include "core/sched/profile_change.h"
#include "core/sched/ready_forecast.h"
#include "core/sched/replan_trigger.h"
#include "core/sched/step_meter.h"

namespace deft::sched {
namespace {

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

std::vector<bool> joined_buckets(const Setup& setup) {
  std::vector<bool> joined;
  for (const auto& bucket : setup.buckets) joined.push_back(bucket.joined);
  return joined;
}

// A plan for the links that are left, in which the lost ones have no parts.
Result<model::Plan> plan_without(const std::vector<bool>& lost, const model::Profile& profile,
                                 const plan::Limits& limits) {
  auto plan = plan::find_plan(without_lost(profile, lost), limits);
  if (!plan) return plan;
  for (std::size_t l = 0; l < lost.size(); ++l)
    if (lost[l]) plan->links.emplace(plan->links.begin() + static_cast<std::ptrdiff_t>(l));
  return plan;
}

class Knapsack final : public Scheduler {
 public:
  Knapsack(const Setup& setup, model::Plan plan)
      : setup_(setup),
        links_(setup.links),
        lost_(setup.links.size()),
        plan_(std::move(plan)),
        meter_(setup.buckets),
        measures_(!setup.profile),
        schedules_(setup.buckets.size()),
        decided_(setup.buckets.size()),
        ready_(setup.buckets.size()),
        queued_(setup.buckets.size()),
        queue_(setup),
        forecast_(setup) {
    setup_.limits.joined = joined_buckets(setup);
    model::follow(schedules_, 0, model::cycles_of(plan_));
    if (setup.profile) queue_.pace(plan_.compute_us);
  }

  void pin(const model::Plan& plan) {
    measures_ = false;
    change_to({plan, {}}, 1, unknown_times(setup_), "the option plan");
  }

  void stage_began(Stage stage, std::uint64_t step, TimeUs now_us, TimeUs waited_us) override {
    if (measures_) meter_.stage_began(stage, step, now_us, waited_us);
    reach(step);
    if (stage == Stage::kBackward) backward_began(step, now_us);
  }
  void bucket_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us) override {
    if (measures_) meter_.bucket_ready(bucket, step, now_us);
    reach(step);
    forecast_.ready(bucket, step, now_us);
    ready_[bucket] = std::max(ready_[bucket], step + 1);
    queue_ready(bucket);
  }
  void part_finished(const Launch& launch, TimeUs now_us) override { queue_.finish(launch, now_us); }
  void slowest_step_measured(double us) override { meter_.slowest_step_measured(us); }
  void link_measured(model::LinkIndex link, const model::LinkModel& measured) override {
    links_[link] = measured;
    queue_.measured(link, measured);
  }
  void link_lost(model::LinkIndex link) override {
    lost_[link] = true;
    queue_.lose(link);
    trigger_.hurry(reached_);
  }

  std::vector<Launch> take_launches(TimeUs now_us) override {
    std::vector<Launch> launches;
    queue_.expect_urgent(most_urgent_ ? forecast_.ready_us(*most_urgent_) : std::nullopt);
    queue_.take(now_us, launches);
    return launches;
  }
  std::vector<Update> take_updates() override { return std::exchange(updates_, {}); }

  // The plan in force begins anew at `step`, before whatever plan follows.
  void flushed(std::uint64_t step, TimeUs) override {
    model::cut(schedules_, step);
    begins_ = std::max(begins_, step);
    for (model::BucketIndex b = 0; b < schedules_.size(); ++b) queue_ready(b);
    queue_.date_anew(schedules_);
  }

  std::optional<PlanSwitch> take_switch() override { return std::exchange(switch_, std::nullopt); }

 private:
  void reach(std::uint64_t step) {
    if (reached_ > step) return;
    reached_ = step + 1;
    if (measures_ && step >= begins_ && trigger_.due(step)) look(step);
    for (model::BucketIndex b = 0; b < schedules_.size(); ++b)
      for (auto due = schedules_[b].at(decided_[b]); due.first_step <= step; due = schedules_[b].at(++decided_[b]))
        updates_.push_back({b, due.generation, due.first_step, due.last_step, due.apply_step});
  }

  // The most urgent bucket of this step: what the next forward needs first of all that has to wait for links.
  void backward_began(std::uint64_t step, TimeUs now_us) {
    forecast_.backward_began(step, now_us);
    most_urgent_.reset();
    for (model::BucketIndex b = 0; b < schedules_.size(); ++b) {
      const auto next = schedules_[b].at(queued_[b]);
      if (next.last_step != step || next.apply_step != step + 1 || model::is_small(setup_.buckets[b].bytes)) continue;
      if (!most_urgent_ || setup_.buckets[b].forward_position < setup_.buckets[*most_urgent_].forward_position)
        most_urgent_ = b;
    }
  }

  // Queues what is complete. Before the first plan buckets go as they become ready, later as forward needs them.
  void queue_ready(model::BucketIndex bucket) {
    const bool planned = setup_.profile || setup_.pinned || planned_on_;
    const std::uint32_t priority = planned ? setup_.buckets[bucket].forward_position : 0;
    for (auto due = schedules_[bucket].at(queued_[bucket]); due.last_step < ready_[bucket];
         due = schedules_[bucket].at(++queued_[bucket]))
      queue_.add({bucket, due.generation, due.apply_step, priority});
  }

  // Plans anew if that is worth it.
  void look(std::uint64_t step) {
    trigger_.looked(step, planned_on_.has_value());
    auto measured = meter_.profile(links_);
    if (!measured) return;
    plan::ReplanReason change = reason_to_plan(*measured);
    if (!trigger_.confirm(change)) return;
    auto made = make_plan(*measured);
    if (!made) return;  // what was measured makes no sense yet; the old plan is still good
    planned_on_ = measured;
    trigger_.decided();
    if (made->plan.hash() == plan_.hash()) return;
    change_to(std::move(*made), next_begin(step), std::move(*measured), std::move(change.reason));
  }

  [[nodiscard]] bool plan_uses_lost() const {
    const auto& parts = plan_.links;
    for (std::size_t l = 0; l < lost_.size(); ++l)
      if (lost_[l] && !parts[l].empty()) return true;
    return false;
  }

  [[nodiscard]] plan::ReplanReason reason_to_plan(const model::Profile& measured) const {
    if (plan_uses_lost()) return {describe_loss(lost_), true};
    if (!planned_on_) return {"the first profile", true};
    const plan::ReplanReason judged = setup_.judge ? setup_.judge->reconsider(plan_) : plan::ReplanReason{};
    if (judged.immediate) return judged;
    std::string reason = describe_move(measured, *planned_on_, lost_);
    return reason.empty() ? judged : plan::ReplanReason{std::move(reason), false};
  }

  [[nodiscard]] Result<plan::GuardedPlan> make_plan(const model::Profile& measured) const {
    const auto make = [&](const plan::Limits& limits) { return plan_without(lost_, measured, limits); };
    if (setup_.judge) return setup_.judge->choose(make, setup_.limits);
    auto plan = make(setup_.limits);
    if (!plan) return tl::unexpected(plan.error());
    return plan::GuardedPlan{std::move(*plan), {}};
  }

  void change_to(plan::GuardedPlan made, std::uint64_t begin, model::Profile profile, std::string reason) {
    model::follow(schedules_, begin, model::cycles_of(made.plan));
    switch_ = {begin, made.plan, std::move(profile), std::move(reason), {}};
    if (setup_.judge && measures_) switch_->verdict = std::move(made.verdict);
    trigger_.resume_after(begin);
    if (measures_) queue_.pace(made.plan.compute_us);
    begins_ = begin;
    plan_ = std::move(made.plan);
  }

  // The end of a cycle that no worker has come to before it hears of the next plan (PlanSwitch): the generation of step
  // `step` + 1, of which nothing can have been launched, is applied by then, wherever flushes move it.
  [[nodiscard]] std::uint64_t next_begin(std::uint64_t step) const {
    const std::uint64_t period = plan_.period_steps;
    const std::uint64_t delay = model::longest_delay(model::cycles_of(plan_));
    const std::uint64_t least = step + 1 + 2 * (period + delay);
    const std::uint64_t cycles = (least - begins_ + period - 1) / period;
    return begins_ + cycles * period;
  }

  Setup setup_;
  std::vector<model::LinkModel> links_;
  std::vector<bool> lost_;    // of each link
  model::Plan plan_;          // the newest
  std::uint64_t begins_ = 0;  // its first cycle, or that after the last flush
  StepMeter meter_;
  bool measures_;
  std::vector<model::UpdateSchedule> schedules_;  // of the buckets
  std::optional<model::Profile> planned_on_;
  std::optional<PlanSwitch> switch_;
  ReplanTrigger trigger_{StepMeter::kComplete};
  std::uint64_t reached_ = 0;
  std::vector<std::uint64_t> decided_;  // of each bucket, generations whose updates were given
  std::vector<std::uint64_t> ready_;    // of each bucket, one more than the newest step that is ready
  std::vector<std::uint64_t> queued_;   // of each bucket, generations that went into the queue
  DueQueue queue_;
  ReadyForecast forecast_;
  std::optional<model::BucketIndex> most_urgent_;
  std::vector<Update> updates_;
};

}  // namespace

Result<std::unique_ptr<Scheduler>> make_knapsack(const Setup& setup) {
  plan::Limits limits = setup.limits;
  limits.joined = joined_buckets(setup);
  if (!setup.profile || setup.pinned) limits.max_staleness_steps = 0;  // synchronous until there is a plan
  auto plan = plan::find_plan(setup.profile ? *setup.profile : unknown_times(setup), limits);
  if (!plan) return tl::unexpected(plan.error().in("policy knapsack"));
  auto policy = std::make_unique<Knapsack>(setup, std::move(*plan));
  if (setup.pinned) {
    auto pinned = pinned_plan(setup);
    if (!pinned) return tl::unexpected(pinned.error());
    policy->pin(*pinned);
  }
  return policy;
}

}  // namespace deft::sched
