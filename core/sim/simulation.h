// The simulator: drives a Scheduler exactly as the daemon's engine does, by a virtual clock.
//
//   auto setup = setup_for(profile, "bytescheduler");
//   auto scheduler = sched::make_scheduler(setup);
//   auto outcome = simulate(**scheduler, profile, {.steps = 200});
//   outcome->step_us;
//
// Compute runs bucket by bucket: forward in forward order, each bucket waiting for its updates, then backward the other
// way round. A link takes one launch at a time, in the order of the scheduler, as soon as all nodes have the gradients;
// a small launch may overtake others.
// The simulator gives the scheduler the profile before step 0, and again whenever it wants one. A scheduler that is wrapped
// by sched::measured (profile_meter.h) measures instead, as in training.
// No node begins a step before the leader, who knows which updates are due.
// Nodes that are alike and keep time exactly are one: thousands cost as much as one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/model/events.h"
#include "core/model/profile.h"
#include "core/sched/scheduler.h"

namespace deft::sim {

struct Node {
  double slowdown = 1;  // its compute takes this many times the profile's
  double jitter = 0;    // relative standard deviation of each bucket's forward and backward
};

struct Options {
  std::uint64_t steps = 200;
  std::uint64_t warmup_steps = 50;         // not measured; less than steps
  double contention = 0;                   // with n links busy at once each is 1 + contention * (n - 1) times slower
  std::vector<Node> nodes = {{}};          // the first is the leader, whose events the scheduler sees
  std::uint64_t seed = 1;                  // of the jitter
  bool record = false;                     // keep the timeline
  std::uint64_t max_events = 400'000'000;  // an error where more would be needed: some minutes
  std::vector<model::LinkIndex> priority_links = {};  // links on which small launches pass others (core/link/link.h)
  struct Loss {
    std::uint64_t step = 0;  // lost as the leader begins it
    model::LinkIndex link = 0;
  };
  std::vector<Loss> losses = {};  // what was launched on a lost link before still ends; never all links
};

// The steady state, measured over whole periods behind the warm-up.
struct Outcome {
  double step_us = 0;
  double compute_us = 0;
  double bubble_us = 0;                   // time in which the leader's compute waits
  double updates_per_step = 0;            // mean over the buckets
  std::uint64_t max_staleness_steps = 0;  // steps between the newest gradient of an update and the one that sees it
  std::uint64_t max_merged_steps = 0;
  std::uint64_t period_steps = 0;  // after which the pattern of updates repeats; 0: it does not
  double bytes_per_step = 0;
  std::uint64_t events = 0;
  model::Timeline timeline;  // of the leader; empty unless Options::record
};

// An error is a fault of the scheduler (a stall, bytes sent twice, an update that comes too late) or of the options.
Result<Outcome> simulate(sched::Scheduler& scheduler, const model::Profile& profile, const Options& options);

// What a scheduler needs for the profile's buckets and links.
sched::Setup setup_for(const model::Profile& profile, std::string_view policy);

}  // namespace deft::sim
