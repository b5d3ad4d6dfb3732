// The scheduler is a pure state machine: events go in, and launches come out. It does no I/O, reads no clock and starts no
// thread. The leader drives it with real events, and the simulator with virtual events.
//
//   auto scheduler = make_scheduler(setup);
//   if ((*scheduler)->wants_profile(step)) (*scheduler)->profile_measured(profile, step, now_us);
//   (*scheduler)->bucket_ready(bucket, step, now_us);
//   for (const Launch& launch : (*scheduler)->take_launches(now_us)) links[launch.link].push(launch);
//   ...
//   (*scheduler)->part_finished(launch, now_us);   // then take_launches again
//
// Every node starts the launches of a link in the order in which take_launches gives them (invariant 2). The byte ranges of the
// launches cover each bucket of each generation exactly once (invariant 1).
//
// Times are in microseconds of the driver's clock and never decrease. One thread calls all functions of a scheduler. A driver
// that breaks the rules of this interface has a bug; a scheduler need not notice it.
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
#include "core/plan/plan_limits.h"
#include "core/plan/plan_runner.h"
#include "core/sched/policy_change.h"
#include "core/sched/settings_change.h"

namespace deft::sched {

using model::AllReduceHalf;
using model::Stage;

// One part of one bucket on one link: bytes [offset, offset + bytes) of the bucket. If the policy merges buckets, the bytes may
// go on over the buckets behind it. Those are then ready, too, belong to the same generation, and lie next to it in memory of
// the same type.
struct Launch {
  std::uint64_t id = 0;  // counts up from 0
  model::LinkIndex link = 0;
  model::BucketIndex bucket = 0;
  std::uint64_t generation = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  // Links that know priorities send a lower one first, 0 before all others (core/link/work_request.h).
  std::uint32_t priority = 0;
  model::CodecIndex codec = 0;                // of Setup::codecs
  AllReduceHalf half = AllReduceHalf::kBoth;  // after both, or after the all-gather, the gradients are complete
};

// The bytes that a launch costs its link, in bytes of whole all-reduces: a half moves half as much.
constexpr std::uint64_t link_bytes(const Launch& launch) {
  return launch.half == AllReduceHalf::kBoth ? launch.bytes : (launch.bytes + 1) / 2;
}

// The update of a bucket by one generation. It is applied before the forward of `apply_step`, and after the launches of the
// generation have finished; the driver waits for both. The date is a step and no time, so all replicas stay equal (invariant 3).
struct Update {
  model::BucketIndex bucket = 0;
  std::uint64_t generation = 0;
  std::uint64_t first_step = 0;  // the generation is the sum of the gradients of first_step to last_step
  std::uint64_t last_step = 0;
  std::uint64_t apply_step = 0;  // last_step + 1 under a synchronous policy
};

// A change of the plan: from `step` on `plan` is in force. The step lies so far ahead that every worker hears of the plan
// before: until then a generation is applied of which nothing had been launched when the policy decided.
struct PlanSwitch {
  std::uint64_t step = 0;
  model::Plan plan;
  std::string reason;
  std::vector<model::LinkModel> links = {};     // the costs that the plan was made for; empty: they were not measured
  std::optional<plan::Decision> decision = {};  // the guard's, if the setup has a guard
};

// A change of the buckets that go together, from `step` on.
struct BucketFusion {
  std::uint64_t step = 0;
  // The first bucket of each transfer: ascending, and the first is 0. Empty: the merging policy before this one is gone.
  std::vector<model::BucketIndex> starts;
  std::string reason;
};

class PolicySelector;

// Everything that a scheduler must know when it is made.
struct Setup {
  std::string policy = "fifo";
  std::vector<model::Bucket> buckets;
  std::vector<model::LinkModel> links;
  std::uint64_t partition_bytes = 1 << 20;  // the largest launch of the policies that cut equal parts
  std::uint64_t credit_bytes = 4 << 20;     // bytescheduler: the most bytes in flight on each link
  bool has_user_sizes = false;              // the user has set one of these two, so `auto` keeps them
  std::string no_halves;                    // why launches cannot be halves of an all-reduce; empty: they can
  std::uint64_t fused_bytes = 0;            // fifo: neighbours go as one launch, up to so many bytes
  bool small_overtake = false;              // on every link small transfers pass the others (core/link/link.h)
  bool reports_updates = true;              // false: take_updates gives none, because workers date updates themselves
  std::string merge_groups = "2";           // mergecomp: the most groups of its search, `exact`, or even:GROUPS
  std::vector<model::CodecCost> codecs = model::exact_only();  // of the job; the first is exact
  model::CodecIndex codec = 0;                                 // of launches, unless a plan chooses among `codecs`
  model::CodecCost codec_cost = {};                            // of that codec; without one, nothing
  plan::PlanLimits limits;                                     // knapsack: the limits of its plans
  std::optional<model::UpdateCycles> pinned;  // knapsack: the cycles to follow from step 1 on, instead of its own plans
  std::shared_ptr<plan::ConvergenceGuard> guard;  // knapsack: decides which plans are followed; nullptr: all are
  std::shared_ptr<plan::PlanRunner> plan_runner;  // knapsack: makes plans meanwhile; nullptr: they are made at once
  std::shared_ptr<PolicySelector> selector;       // auto: compares policies; nullptr: it stays as it begins
  std::optional<bool> overlaps_forward = {};      // auto: forward overlaps with communication; empty: it measures that
};

class Scheduler {
 public:
  virtual ~Scheduler() = default;

  // A stage of a step began. `waited_us` is the time that the worker has waited for updates since its last stage. Only policies
  // that plan by stages use it.
  virtual void stage_began(Stage stage, std::uint64_t step, TimeUs now_us, TimeUs waited_us) = 0;

  // The gradients of `bucket` of `step` lie in the arenas of all local workers. Called once for each bucket and step.
  virtual void bucket_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us) = 0;

  // A launch that take_launches gave is done.
  virtual void part_finished(const Launch& launch, TimeUs now_us) = 0;

  // There is a better estimate of the cost of `link`, from its real transfers.
  virtual void link_measured(model::LinkIndex link, const model::LinkModel& measured) = 0;

  // The time of a step of the slowest worker of the job, without its waiting. It may grow and fall. Only policies that plan by
  // stages use it.
  virtual void slowest_step_measured(double us) { static_cast<void>(us); }

  // The codecs of the job take other times than Setup::codecs and Setup::codec_cost say. `costs` has all of them, by the index that a
  // launch has. Policies see them in their next profile.
  virtual void codecs_measured(std::span<const model::CodecCost> costs) { static_cast<void>(costs); }

  // The times of the job's steps and links are known. Called before any other event of `step`. `profile` has the buckets in
  // forward order, which is the reverse of ours: its bucket i is buckets[buckets.size() - 1 - i]. A policy learns times in no
  // other way. In training ProfileMeter calls this after the first steps, in a simulation the simulator calls it before step 0.
  // Until then a policy works without times.
  virtual void profile_measured(const model::Profile& profile, std::uint64_t step, TimeUs now_us) {
    static_cast<void>(profile), static_cast<void>(step), static_cast<void>(now_us);
  }
  // True if the policy would use a profile before `step`. Drivers ask once a step. Policies that need no times say false.
  [[nodiscard]] virtual bool wants_profile(std::uint64_t step) const { return static_cast<void>(step), false; }

  // The link is lost, and no later launch goes to it. Earlier launches of the link still end with part_finished. The last link
  // is never lost.
  virtual void link_lost(model::LinkIndex link) = 0;

  // All launches that should start now, in order. Each is given once.
  virtual std::vector<Launch> take_launches(TimeUs now_us) = 0;

  // All updates that were decided since the last call. Each is given once. An update that applies before the forward of a step
  // is decided when stage_began(kForward, that step) returns. Each gradient of each bucket belongs to exactly one update.
  virtual std::vector<Update> take_updates() = 0;

  // All workers end the generation under way with step `step` - 1, and apply all updates before the forward of `step`. Called
  // before any other event of `step`. Synchronous policies do that in every step anyway.
  virtual void flushed(std::uint64_t step, TimeUs now_us) { static_cast<void>(step), static_cast<void>(now_us); }

  // A change of the plan that workers must hear of. It is given once, before the launches that it allows. Policies without
  // plans have none.
  virtual std::optional<PlanSwitch> take_switch() { return std::nullopt; }

  // A change of the buckets that the policy merges. It is given once and is for people alone; the launches say everything.
  virtual std::optional<BucketFusion> take_fusion() { return std::nullopt; }

  // The user wants other settings from the next step on. kInvalid, with what to do, if the job cannot have them; it then keeps
  // all that it has.
  virtual Result<void> change_settings(const SettingsChange& change) { return check_change(change); }
  // kInvalid if change_settings() would refuse them.
  [[nodiscard]] virtual Result<void> check_change(const SettingsChange& change) const;
  // A change of the policy, or a decision to keep it. It is given once and is for people alone.
  virtual std::optional<PolicyChange> take_policy_change() { return std::nullopt; }
};

// kInvalid if a bucket or link of `setup` is impossible; the error names the first one.
Result<void> check_setup(const Setup& setup);

// A scheduler for `setup.policy`. kInvalid for an unknown policy or an impossible setup; the error names it.
Result<std::unique_ptr<Scheduler>> make_scheduler(const Setup& setup);

// The same for an exact policy (is_exact in policy_traits.h), and it can change to another exact policy while it runs.
Result<std::unique_ptr<Scheduler>> make_switching(const Setup& setup);

}  // namespace deft::sched
