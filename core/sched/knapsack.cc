// Our policy: follows a cyclic plan (core/plan/planner.h), which list scheduling has found; the name is DeFT's. It begins
// synchronously, with the fewest bits that cost no accuracy. It plans once it has a profile, and plans again when the profile has
// moved away from the plan, when a link is lost, or when the setup's guard would choose otherwise by now. A plan that the user
// gives begins with step 1 (workers hear of it before the first update) and stays; after the loss of a link it takes longer.
#include <algorithm>
#include <string>
#include <utility>

#include "core/model/buckets.h"
#include "core/plan/planner.h"
#include "core/sched/due_queue.h"
#include "core/sched/launch_codecs.h"
#include "core/sched/policies.h"
#include "core/sched/profile_watch.h"
#include "core/sched/ready_forecast.h"
#include "core/sched/update_ledger.h"

namespace deft::sched {
namespace {

// The last codec that costs no accuracy. Until there is a profile nobody knows whether the links could carry more bits, and on a slow
// network a step of exact gradients takes several times as long. The user's own plan has no codecs.
model::CodecIndex first_codec(const Setup& setup) {
  std::size_t found = 0;
  if (setup.pinned || setup.codec != 0) return 0;
  for (std::size_t codec = 1; codec < setup.codecs.size() && codec <= setup.limits.codecs.last; ++codec)
    if (setup.codecs[codec].error <= setup.limits.codecs.negligible_error) found = codec;
  return static_cast<model::CodecIndex>(found);
}

// The usual cycle: one update a step, applied before the next forward.
model::Plan synchronous_plan(const Setup& setup) {
  model::Plan plan;
  for (const auto& bucket : setup.buckets) plan.bucket_bytes.push_back(bucket.bytes);
  const model::CodecIndex codec = first_codec(setup);
  if (codec == 0) return plan;
  for (const auto& bucket : setup.buckets)
    plan.codecs.push_back(model::coded_share(bucket).share > 0 ? codec : model::CodecIndex{0});
  return plan;
}

tl::unexpected<Error> beyond(const model::UpdateCycles& cycles, const std::string& what, const std::string& fix) {
  return fail(ErrorKind::kInvalid, "the plan '" + model::to_text(cycles) + "' " + what, fix);
}

Result<void> check_limits(const model::Plan& plan, const plan::PlanLimits& limits) {
  const auto& cycles = plan.cycles;
  if (const auto needed = model::slots_needed(cycles); needed > limits.max_generations)
    return beyond(
        cycles, "needs an arena of " + std::to_string(needed) + " slots, of " + std::to_string(limits.max_generations),
        "delay less, or merge more steps in each update");
  if (limits.max_staleness_steps == 0 && plan.max_merged() > 1)
    return beyond(cycles, "merges steps, and every step is to be updated before the next",
                  "raise DEFT_MAX_STALENESS_STEPS above 0, or merge none");
  if (plan.max_staleness() > limits.max_staleness_steps)
    return beyond(cycles,
                  "applies updates " + std::to_string(plan.max_staleness()) + " steps late, and the limit is " +
                      std::to_string(limits.max_staleness_steps),
                  "raise DEFT_MAX_STALENESS_STEPS, or delay less");
  if (plan.max_merged() > limits.max_merged_steps)
    return beyond(cycles,
                  "merges " + std::to_string(plan.max_merged()) + " steps, and the limit is " +
                      std::to_string(limits.max_merged_steps),
                  "raise DEFT_MAX_MERGED_STEPS, or merge less");
  return {};
}

// `setup.pinned` as a plan for `setup.buckets`. kInvalid if `setup.limits` forbid that cycle.
Result<model::Plan> pinned_plan(const Setup& setup) {
  model::Plan plan;
  plan.cycles = *setup.pinned;
  for (const auto& bucket : setup.buckets) plan.bucket_bytes.push_back(bucket.bytes);
  if (auto ok = check_limits(plan, setup.limits); !ok) return tl::unexpected(ok.error());
  if (auto ok = model::check_cycles(plan.cycles, setup.buckets.size()); !ok)
    return tl::unexpected(ok.error().in("the plan '" + model::to_text(*setup.pinned) + "'"));
  return plan;
}

// Makes the plans, and lets the guard choose among them. Begun plans may be ready at once or in some steps.
class PlanMaker {
 public:
  // A plan that was asked for, and for what.
  struct Answer {
    Result<plan::GuardedPlan> made;
    model::Profile profile;
    plan::ReplanReason reason;
  };

  explicit PlanMaker(const Setup& setup)
      : limits_(setup.limits), is_pinned_(setup.pinned.has_value()), guard_(setup.guard), runner_(setup.plan_runner) {
    limits_.joined.clear();
    for (const auto& bucket : setup.buckets) limits_.joined.push_back(bucket.joined);
  }

  // A plan for `remaining`, which is `profile` without lost links. It replaces a plan that is not ready yet.
  void begin(const model::Profile& profile, model::Profile remaining, plan::ReplanReason reason);
  // The plan that was begun last, if it is ready. It is given once.
  std::optional<Answer> take();
  [[nodiscard]] bool is_busy() const { return asked_.has_value(); }

  [[nodiscard]] plan::ReplanReason reconsider(const model::Plan& in_force) const {
    return guard_ && !is_busy() ? guard_->reconsider(in_force) : plan::ReplanReason{};
  }
  [[nodiscard]] bool is_guarded() const { return guard_ != nullptr; }
  [[nodiscard]] bool is_pinned() const { return is_pinned_; }  // the user's plan is followed, and no other is made

 private:
  struct Asked {
    model::Profile profile;
    plan::ReplanReason reason;
    std::optional<Result<plan::GuardedPlan>> made;  // without a runner
  };

  plan::PlanLimits limits_;
  bool is_pinned_;
  std::shared_ptr<plan::ConvergenceGuard> guard_;
  std::shared_ptr<plan::PlanRunner> runner_;
  std::optional<Asked> asked_;
};

void PlanMaker::begin(const model::Profile& profile, model::Profile remaining, plan::ReplanReason reason) {
  plan::ConvergenceGuard::Choice choice = [limits = limits_](const auto& make) -> Result<plan::GuardedPlan> {
    auto plan = make(limits);
    if (!plan) return tl::unexpected(plan.error());
    return plan::GuardedPlan{*std::move(plan)};
  };
  if (guard_) choice = guard_->prepare(limits_);
  auto work = [choice = std::move(choice), remaining = std::move(remaining)] {
    return choice([&](const plan::PlanLimits& limits) { return plan::find_plan(remaining, limits); });
  };
  asked_ = Asked{profile, std::move(reason), std::nullopt};
  if (runner_) return runner_->begin(std::move(work));
  asked_->made = work();
}

std::optional<PlanMaker::Answer> PlanMaker::take() {
  if (!asked_) return std::nullopt;
  auto made = asked_->made ? std::move(asked_->made) : runner_->take();
  if (!made) return std::nullopt;
  if (*made && guard_) guard_->follow(**made);
  Answer answer{*std::move(made), std::move(asked_->profile), std::move(asked_->reason)};
  asked_.reset();
  return answer;
}

class Knapsack final : public Scheduler {
 public:
  explicit Knapsack(const Setup& setup)
      : buckets_(setup.buckets),
        codecs_(setup),
        maker_(setup),
        plan_(synchronous_plan(setup)),
        watch_(setup.links.size()),
        ledger_(setup.buckets.size(), setup.reports_updates),
        queue_(setup, codecs_),
        forecast_(setup.buckets.size()) {
    codecs_.follow(0, plan_.codecs);
  }

  void pin(model::Plan plan) { change_to({std::move(plan), {}}, 1, "the option plan"); }

  void stage_began(Stage stage, std::uint64_t step, TimeUs now_us, TimeUs) override {
    reach(step);
    if (stage == Stage::kBackward) backward_began(step, now_us);
  }
  void bucket_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us) override {
    reach(step);
    forecast_.ready(bucket, step, now_us);
    ledger_.ready(bucket, step, [&](const model::UpdateWindow& complete) { add(bucket, complete); });
  }
  void part_finished(const Launch& launch, TimeUs now_us) override { queue_.finish(launch, now_us); }
  void link_measured(model::LinkIndex link, const model::LinkModel& measured) override {
    queue_.measured(link, measured);
  }
  void link_lost(model::LinkIndex link) override {
    queue_.remove(link);
    watch_.link_lost(link);
  }

  [[nodiscard]] bool wants_profile(std::uint64_t step) const override {
    if (maker_.is_pinned()) return plan_.compute_us <= 0;  // so that parts get their length
    return maker_.is_busy() || (step >= begins_ && watch_.is_due(step));
  }
  void profile_measured(const model::Profile& profile, std::uint64_t step, TimeUs) override;

  std::vector<Launch> take_launches(TimeUs now_us) override {
    std::vector<Launch> launches;
    queue_.expect_urgent(most_urgent_ ? forecast_.ready_us(*most_urgent_) : std::nullopt);
    queue_.take(now_us, launches);
    return launches;
  }
  std::vector<Update> take_updates() override { return ledger_.take_updates(); }

  // The plan in force begins anew at `step`, before whatever plan follows.
  void flushed(std::uint64_t step, TimeUs) override {
    ledger_.cut(step);
    begins_ = std::max(begins_, step);
    for (model::BucketIndex b = 0; b < buckets_.size(); ++b)
      ledger_.visit_complete(b, [&](const model::UpdateWindow& complete) { add(b, complete); });
    queue_.update_due_steps(ledger_.schedules());
  }

  std::optional<PlanSwitch> take_switch() override { return std::exchange(switch_, std::nullopt); }

 private:
  void reach(std::uint64_t step) {
    if (reached_ > step) return;
    reached_ = step + 1;
    ledger_.reach(step);
  }
  void backward_began(std::uint64_t step, TimeUs now_us);
  void add(model::BucketIndex bucket, const model::UpdateWindow& complete);
  void look_for_reason(const model::Profile& profile, std::uint64_t step);
  void follow(PlanMaker::Answer answer, std::uint64_t step);
  void change_to(plan::GuardedPlan made, std::uint64_t begin, std::string reason);
  [[nodiscard]] std::uint64_t next_begin(std::uint64_t step) const;

  std::vector<model::Bucket> buckets_;
  LaunchCodecs codecs_;
  PlanMaker maker_;
  model::Plan plan_;          // the newest
  std::uint64_t begins_ = 0;  // its first cycle, or that after the last flush
  ProfileWatch watch_;
  UpdateLedger ledger_;
  DueQueue queue_;
  ReadyForecast forecast_;
  std::optional<PlanSwitch> switch_;
  std::uint64_t reached_ = 0;  // one more than the newest step
  std::optional<model::BucketIndex> most_urgent_;
};

// The most urgent bucket of this step: the bucket that the next forward needs first of all that have to wait for links.
void Knapsack::backward_began(std::uint64_t step, TimeUs now_us) {
  forecast_.backward_began(step, now_us);
  most_urgent_.reset();
  for (model::BucketIndex b = 0; b < buckets_.size(); ++b) {
    const auto next = ledger_.next(b);
    if (next.last_step != step || next.apply_step != step + 1) continue;
    if (codecs_.is_small(b, codecs_.of(b, next.first_step), buckets_[b].bytes)) continue;
    if (!most_urgent_ || buckets_[b].forward_position < buckets_[*most_urgent_].forward_position) most_urgent_ = b;
  }
}

// Of one date the bucket goes first that forward needs first.
void Knapsack::add(model::BucketIndex bucket, const model::UpdateWindow& complete) {
  const std::uint32_t priority = buckets_[bucket].forward_position;
  queue_.add({bucket, complete.generation, complete.apply_step, priority, codecs_.of(bucket, complete.first_step)});
}

void Knapsack::profile_measured(const model::Profile& profile, std::uint64_t step, TimeUs) {
  forecast_.learn(profile);
  if (maker_.is_pinned()) return queue_.pace(plan_.compute_us = profile.compute_us());
  if (step >= begins_ && watch_.is_due(step)) look_for_reason(profile, step);
  if (auto answer = maker_.take()) follow(*std::move(answer), step);
}

// While a plan is being made, only a lost link asks for another one.
void Knapsack::look_for_reason(const model::Profile& profile, std::uint64_t step) {
  auto reason = watch_.look(profile, step, [this] { return maker_.reconsider(plan_); });
  if (!reason || (maker_.is_busy() && !reason->immediate)) return;
  watch_.decided(profile);
  maker_.begin(profile, watch_.remaining(profile), *std::move(reason));
}

void Knapsack::follow(PlanMaker::Answer answer, std::uint64_t step) {
  if (!answer.made) return watch_.forget();  // no plan fits this profile; the old plan stays
  plan::GuardedPlan& made = *answer.made;
  queue_.pace(made.plan.compute_us);
  // A plan with the same dates is announced for what people ask about: the first plan, a lost link, a loss that has risen.
  if (made.plan.hash() == plan_.hash() && made.plan.codecs == plan_.codecs && !answer.reason.immediate) {
    plan_ = std::move(made.plan);  // with the times that are expected now
    return;
  }
  // Before the first step there is no worker that would have to hear of the plan.
  change_to(std::move(made), reached_ == 0 ? 0 : next_begin(step), std::move(answer.reason.reason));
  for (std::size_t l = 0; l < answer.profile.links.size(); ++l) switch_->links.push_back(answer.profile.link_model(l));
}

void Knapsack::change_to(plan::GuardedPlan made, std::uint64_t begin, std::string reason) {
  ledger_.follow(begin, made.plan.cycles);
  switch_ = PlanSwitch{begin, made.plan, std::move(reason)};
  if (maker_.is_guarded() && !maker_.is_pinned()) switch_->decision = std::move(made.decision);
  watch_.resume_after(begin);
  begins_ = begin;
  codecs_.follow(begin, made.plan.codecs);
  plan_ = std::move(made.plan);
}

// The end of a cycle that no worker has come to before it hears of the next plan (PlanSwitch): the generation of step
// `step` + 1, of which nothing can have been launched, is applied by then, wherever flushes move it.
std::uint64_t Knapsack::next_begin(std::uint64_t step) const {
  const std::uint64_t period = plan_.cycles.period_steps();
  const std::uint64_t delay = model::longest_delay(plan_.cycles);
  const std::uint64_t least = step + 1 + 2 * (period + delay);
  const std::uint64_t cycles = (least - begins_ + period - 1) / period;
  return begins_ + cycles * period;
}

}  // namespace

Result<std::unique_ptr<Scheduler>> make_knapsack(const Setup& setup) {
  auto policy = std::make_unique<Knapsack>(setup);
  if (setup.pinned) {
    auto pinned = pinned_plan(setup);
    if (!pinned) return tl::unexpected(pinned.error());
    policy->pin(*std::move(pinned));
  }
  return policy;
}

}  // namespace deft::sched
