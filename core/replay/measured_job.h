// What a trace says about a job, in the terms of the simulator: its model, its links, its nodes.
//
//   auto measured = measure(*job);
//   measured->profile        // times of the leader's first worker; links as they were in this training
//   measured->nodes          // how much slower each node computes, and how much its steps vary
//   measured->steps_us       // the steps themselves
//
// Medians count, because replay predicts the usual step. (The planner's meters take the lower third, to plan without
// disturbances.) Backward is measured for each bucket, and forward as a whole, so it is divided in the proportion of the
// backward times. The rest of a step (the optimizer, the next batch) counts before the first bucket's forward.
//
// Throughputs of links are those of bytes on the wire: encoded gradients count what they travel as, and half an all-reduce half.
// A link serves one transfer after the other. The time of a transfer counts from the moment when the last node had brought its
// gradients, so a slow worker does not make a link slow (dPRO, section 4.2: a RECV begins at the earliest with its SEND).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/replay/job_trace.h"
#include "core/replay/launches.h"
#include "core/replay/step_memory.h"
#include "core/sim/simulation.h"

namespace deft::replay {

struct MeasuredJob {
  model::Profile profile;
  std::vector<sim::NodeSpeed> nodes;  // of the traced nodes; the leader is the first
  std::vector<double> steps_us;       // of the leader, forward to forward, in order
  double rest_us = 0;                 // of its first bucket's forward: the optimizer, the next batch
  std::vector<StepMemory> memories;   // of the workers that have told
  std::map<std::string, std::string> options;
  std::vector<std::string> problems;  // what could not be measured
};

// kInvalid, saying what is missing, unless the leader's trace has kLeastSteps whole steps in which every bucket was sent.
inline constexpr std::size_t kLeastSteps = 4;
Result<MeasuredJob> measure(const JobTrace& job);

}  // namespace deft::replay
