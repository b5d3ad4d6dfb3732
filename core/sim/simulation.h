// The simulator drives a Scheduler exactly as the leader does, with a virtual clock.
//
//   auto setup = setup_for(profile, "bytescheduler");
//   auto scheduler = sched::make_scheduler(setup);
//   auto outcome = simulate(**scheduler, profile, {.steps = 200});
//   outcome->step_us;
//
// Compute runs bucket by bucket: forward in forward order, in which each bucket waits for its updates, then backward in the
// reverse order. A link takes one launch at a time, in the scheduler's order, as soon as all nodes have the gradients. A small
// launch may overtake others.
//
// The simulator gives the scheduler the profile before step 0, and again whenever it wants one. A scheduler that is wrapped by
// sched::measured (profile_meter.h) measures instead, as in training. No node begins a step before the leader does, because
// the scheduler then decides which updates are due. Equal nodes without jitter and factors are simulated as one, so thousands of them cost
// as much as one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/model/events.h"
#include "core/model/profile.h"
#include "core/sched/scheduler.h"

namespace deft::sim {

// How a node differs from the profile.
struct NodeSpeed {
  double slowdown = 1;               // its compute takes so many times as long as the profile says
  double jitter = 0;                 // the relative standard deviation of each bucket's forward and backward
  std::vector<double> factors = {};  // of the compute of successive steps, over and over; empty: no step differs
};

struct Options {
  std::uint64_t steps = 200;
  std::uint64_t warmup_steps = 50;         // the first steps, which are not measured; fewer than `steps`
  double contention = 0;                   // if n links are busy at once, each is 1 + contention * (n - 1) times slower
  std::vector<NodeSpeed> nodes = {{}};     // the first node is the leader, whose events the scheduler sees
  std::uint64_t seed = 1;                  // seed of the jitter
  bool record = false;                     // true: keeps the timeline
  std::uint64_t max_events = 400'000'000;  // a run that needs more fails; so many take some minutes
  std::function<bool()> is_stopped =
      {};  // asked now and then: a run whose answer is true fails. Empty: nobody stops it
  std::vector<model::LinkIndex> priority_links =
      {};  // links on which small launches overtake others (core/link/link.h)
  struct Loss {
    std::uint64_t step = 0;  // the link is lost when the leader begins this step
    model::LinkIndex link = 0;
  };
  bool overlaps_forward = true;   // false: a step's forward begins when all updates that are due before it are complete
  std::vector<Loss> losses = {};  // never all links; earlier launches of a lost link still end
  std::vector<model::LinkModel> believed_links = {};  // what the scheduler takes each link for; empty: for what it is
};

// The steady state, measured over whole periods after the warm-up.
struct Outcome {
  double step_us = 0;
  double compute_us = 0;
  double bubble_us = 0;                   // the time in which the leader's compute waits
  double updates_per_step = 0;            // the mean over the buckets
  std::uint64_t max_staleness_steps = 0;  // steps between the newest gradient of an update and the step that sees it
  std::uint64_t max_merged_steps = 0;
  std::uint64_t period_steps = 0;  // the pattern of updates repeats after so many steps; 0: it does not repeat
  double bytes_per_step = 0;       // of gradients
  double wire_bytes_per_step = 0;  // that they took encoded
  double launches_per_step = 0;
  std::uint64_t events = 0;
  std::uint64_t pieces = 0;              // of buckets that were sent, in all steps
  std::vector<double> forward_began_us;  // [step]: when the leader's forward began, behind its waits
  model::Timeline timeline;              // the leader's; empty unless Options::record
};

// Runs `options.steps` steps. kInvalid for impossible options, kExhausted beyond max_events, kUnavailable if it is stopped, and kInternal
// for a bug of the scheduler: a stall, bytes that are sent twice, or an update that comes too late.
Result<Outcome> simulate(sched::Scheduler& scheduler, const model::Profile& profile, const Options& options);

// The setup of a scheduler for the buckets and links of `profile`.
sched::Setup setup_for(const model::Profile& profile, std::string_view policy);

}  // namespace deft::sim
