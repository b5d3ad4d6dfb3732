// Measures a traced job in the terms of the simulator: its model, its links, its nodes.
//
//   auto measured = measure(*job);
//   measured->profile        // times of the leader's first worker; links as they were in this training
//   measured->nodes          // how much slower each node computes, and how much its steps vary
//   measured->steps_us       // the steps themselves
//
// Medians count, because replay predicts the usual step. (The planner's meters take the lower third, to plan without
// disturbances.) Backward is measured for each bucket, and forward as a whole, so it is divided in the proportion of the
// backward times. The rest of a step (the optimizer, the next batch) counts before the first bucket's forward.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/config.h"
#include "core/base/status.h"
#include "core/replay/core_waits.h"
#include "core/replay/job_trace.h"
#include "core/replay/launches.h"
#include "core/replay/measured_buckets.h"
#include "core/replay/policies_in_force.h"
#include "core/replay/step_memory.h"
#include "core/sim/simulation.h"

namespace deft::replay {

// The time in which the leader's daemon added up the gradients of its local workers.
struct LocalSums {
  std::size_t workers = 1;
  double part_bytes = 0;   // of a worker's gradients, in the mean
  double us_per_byte = 0;  // of them; 0: there were no sums
};

// The machine with most workers. Emulated nodes share one.
struct BusiestHost {
  std::size_t nodes = 1, workers = 1;
  double on_cores = 1;  // the share of compute in which they keep a core each (worker_cores.h)
};

struct MeasuredJob {
  model::Profile profile;
  std::vector<sim::NodeSpeed> nodes;  // of the traced nodes; the leader is the first
  std::uint32_t node_count = 1;       // of the job, traced or not
  std::vector<std::string> links;     // of the job, if all traced nodes call them so; else empty
  std::vector<double> spreads;        // of their steps' compute: the relative standard deviation
  std::vector<double> steps_us;       // of the leader, forward to forward, in order
  bool has_own_codecs = false;        // of tensors; DEFT_COMPRESSION did not choose them
  bool overlaps_forward = true;       // workers wait for updates in the course of forward, and not before it
  double rest_us = 0;                 // of its first bucket's forward: the optimizer, the next batch
  std::vector<StepMemory> memories;   // of the workers that have told
  LocalSums local_sums = {};
  BusiestHost busiest_host = {};
  // What the leader took the profile's links for (believed_links.h). Empty: not known.
  std::vector<model::LinkModel> believed_links = {};
  CoreWaits core_waits = {};  // with which replay corrects the nodes, if there are fewer parts than in the trace
  // The choice of `auto` that was in force in most of the traced steps. Empty: the trace does not tell, or the job had another policy. Its
  // sizes are empty if they are those of the options. If the policy changed, steps_us has only the steps under this choice.
  std::optional<sched::PolicyChoice> in_force = {};
  std::vector<std::string> decisions = {};  // about the policy, for people (policies_in_force.h)
  double codec_in_compute = 0;  // so much of another codec's time makes compute longer (who knows the machine sets it)
  std::map<std::string, std::string> options;
  // Plans choose among these if the options leave that to them. The first is exact. Empty: the trace's codecs (price_plan_codecs()).
  std::vector<model::CodecCost> plan_codecs = {};
  // The buckets of policies that cut in another way than the traced one (OwnBucketing); empty: no policy has other buckets.
  std::vector<model::ProfileBucket> other_buckets = {};
  std::shared_ptr<const TensorTimes> tensors = {};  // as traced; null: not known, so buckets are cut by their bytes
  std::vector<std::string> problems;                // what could not be measured
};

// kInvalid unless the leader's trace has kLeastSteps whole steps, and every bucket was handed in in one of them. The error names what is
// missing, and the faults of the traces.
inline constexpr std::size_t kLeastSteps = 4;
Result<MeasuredJob> measure(const JobTrace& job);

// The same job with other buckets: uniform ones by what the trace tells of tensors (measured_buckets.h), and else by the shares of bytes
// (core/partition/rebucket.h). Its steps vary as a whole, and alike whatever the buckets. If each
// bucket varied by itself, many small ones would seem to make a job steadier. kInvalid for an unknown bucketing.
Result<MeasuredJob> with_buckets(const MeasuredJob& measured, std::string_view bucketing);

// The same job, whose codecs leave tensors of fewer bytes as they are (the option compression_min_bytes). They may not be fewer than those
// of the traced job. kInvalid if the trace does not tell what codecs may encode.
Result<MeasuredJob> with_codec_floor(const MeasuredJob& measured, std::uint64_t min_bytes);

// Successive steps as shares of the usual step: those of the slowest of `nodes` alike nodes whose steps vary by `spread`.
std::vector<double> varied_steps(double spread, std::uint64_t seed, double nodes = 1);

// The policy of a traced job; `fifo` if the trace does not name it.
std::string policy_of(const std::map<std::string, std::string>& options);
// The traced options on which nodes agree. A trace may come from anywhere, so no other option of it counts: flag_file would read a
// file. kInvalid for a value that cannot be.
Result<Config> config_of(const std::map<std::string, std::string>& options);

// The same job with the buckets into which `policy` cuts it, unless an option of the job or with_buckets() has cut it.
MeasuredJob cut_by(const MeasuredJob& measured, std::string_view policy);

}  // namespace deft::replay
