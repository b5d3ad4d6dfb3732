// The scheduler: a pure state machine. Events go in; launches come out. It does no I/O, reads no clock and starts no
// thread. The daemon's engine (on the leader) drives it with real events and the simulator with virtual ones.
//
//   auto scheduler = make_scheduler(setup);
//   if ((*scheduler)->wants_profile(step)) (*scheduler)->profile_measured(profile, step, now_us);
//   (*scheduler)->bucket_ready(bucket, step, now_us);
//   for (const Launch& launch : (*scheduler)->take_launches(now_us)) links[launch.link].push(launch);
//   ...
//   (*scheduler)->part_finished(launch, now_us);   // then take_launches again
//
// The order of the launches of one link is the order in which every node starts them (invariant 2). Each bucket of each
// generation is covered exactly once by the launches' byte ranges (invariant 1).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/model/buckets.h"
#include "core/model/events.h"
#include "core/model/plan.h"
#include "core/model/profile.h"
#include "core/model/update_schedule.h"
#include "core/plan/convergence_guard.h"
#include "core/plan/limits.h"

namespace deft::sched {

using model::Stage;

// One part of one bucket on one link: bytes [offset, offset + bytes) of the bucket. Where a policy merges buckets they may
// run on over those behind it, which then are ready, too, of the same generation, and next to it in memory of one type.
struct Launch {
  std::uint64_t id = 0;  // counts up from 0
  model::LinkIndex link = 0;
  model::BucketIndex bucket = 0;
  std::uint64_t generation = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// When a generation of a bucket is applied: before the forward of `apply_step`, and after its launches have finished.
// Steps, not times, so that all replicas stay equal (invariant 3). The driver waits for both.
struct Update {
  model::BucketIndex bucket = 0;
  std::uint64_t generation = 0;
  std::uint64_t first_step = 0;  // the gradients of first_step..last_step are summed in this generation
  std::uint64_t last_step = 0;
  std::uint64_t apply_step = 0;  // synchronous policies: last_step + 1
};

// From `step` on another plan decides. Chosen so far ahead that every worker hears of it before: between the decision and
// that step a generation is applied of which nothing was launched before the decision.
struct PlanSwitch {
  std::uint64_t step = 0;
  model::Plan plan;
  std::string reason;
  std::vector<model::LinkModel> links = {};     // what the links cost when it was made; empty: not measured
  std::optional<plan::Decision> decision = {};  // of the guard, if the setup has one
};

// From `step` on these buckets go together.
struct BucketFusion {
  std::uint64_t step = 0;
  std::vector<model::BucketIndex> starts;  // the first of each group, ascending, the first 0
  std::string reason;
};

struct Setup {
  std::string policy = "fifo";
  std::vector<model::Bucket> buckets;
  std::vector<model::LinkModel> links;
  std::uint64_t partition_bytes = 1 << 20;    // largest launch of the policies that cut equal parts
  std::uint64_t credit_bytes = 4 << 20;       // bytescheduler: bytes in flight on each link
  bool reports_updates = true;                // false: take_updates gives none, where workers date updates themselves
  plan::Limits limits;                        // of the knapsack policies
  std::optional<model::UpdateCycles> pinned;  // knapsack: follow this from step 1 on instead of plans of its own
  std::shared_ptr<plan::ConvergenceGuard> guard;  // knapsack: decides which plans are followed; none: all are
};

class Scheduler {
 public:
  virtual ~Scheduler() = default;

  // A stage of a step began. `waited_us`: how long the worker has waited for updates since the stage before this one.
  // Policies that plan by stages use it; the others ignore it.
  virtual void stage_began(Stage stage, std::uint64_t step, TimeUs now_us, TimeUs waited_us) = 0;

  // The gradients of `bucket` in `step` are in the arena of all local workers. Once for each bucket and step.
  virtual void bucket_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us) = 0;

  // A launch that take_launches gave is done.
  virtual void part_finished(const Launch& launch, TimeUs now_us) = 0;

  // A better estimate of a link's cost, from what it really did.
  virtual void link_measured(model::LinkIndex link, const model::LinkModel& measured) = 0;

  // What a step takes the slowest worker of the job, waiting left out; grows and falls. Policies that plan by stages use it.
  virtual void slowest_step_measured(double us) { static_cast<void>(us); }

  // The times of the job's steps and links are known, before anything of `step` is. `profile` counts buckets in forward
  // order, the other way round: its bucket i is buckets[buckets.size() - 1 - i]. The one way in which a policy learns times:
  // in training ProfileMeter sends it after the first steps, in a simulation the simulator before step 0. Until then a
  // policy works without times.
  virtual void profile_measured(const model::Profile& profile, std::uint64_t step, TimeUs now_us) {
    static_cast<void>(profile), static_cast<void>(step), static_cast<void>(now_us);
  }
  // Whether the policy would use a profile before `step`. Drivers ask once a step; policies without times never want one.
  [[nodiscard]] virtual bool wants_profile(std::uint64_t step) const { return static_cast<void>(step), false; }

  // The link is out of use: no policy chooses it any more. What was launched on it before still ends, as part_finished.
  // Never the last one.
  virtual void link_lost(model::LinkIndex link) = 0;

  // All launches that are due now, in order; each is given once.
  virtual std::vector<Launch> take_launches(TimeUs now_us) = 0;

  // All update points decided since the last call, each given once. Those that apply before the forward of a step have
  // been given by the time stage_began(kForward, that step) returns. Each gradient of each bucket is in exactly one.
  virtual std::vector<Update> take_updates() = 0;

  // All workers end the generation under way with step `step` - 1 and apply all updates before the forward of `step`.
  // Known before anything of `step` is. Synchronous policies do that in every step.
  virtual void flushed(std::uint64_t step, TimeUs now_us) { static_cast<void>(step), static_cast<void>(now_us); }

  // A change of plan that workers must hear of, given once, before the launches that it allows. Policies without plans
  // of several steps have none.
  virtual std::optional<PlanSwitch> take_switch() { return std::nullopt; }

  // A change of what a policy merges, given once, for people: the launches say it all.
  virtual std::optional<BucketFusion> take_fusion() { return std::nullopt; }
};

// Buckets and links that can be: an error names the first that cannot.
Result<void> check_setup(const Setup& setup);

// A scheduler for `setup.policy`; an unknown policy or an impossible setup is an error that names it.
Result<std::unique_ptr<Scheduler>> make_scheduler(const Setup& setup);

}  // namespace deft::sched
