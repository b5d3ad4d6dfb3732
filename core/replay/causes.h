// Looks for what makes a traced job slow. Replay tells for each suspicion what mending it would win.
//
//   const Evidence evidence{*job, *measured, now->step_us_p50};
//   for (const Cause& cause : slow_workers(evidence)) ... cause.gain_us
//
// A finder looks at the trace for a suspicion, changes a copy of the measured job as if it were mended, and replays both. A
// suspicion that wins nothing is none: a slow NIC may be hidden behind compute. The finders are independent of each other.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/replay/job_trace.h"
#include "core/replay/launches.h"
#include "core/replay/measured_job.h"
#include "core/replay/time_shares.h"

namespace deft::replay {

struct Cause {
  std::string cause;   // slow-link, slow-worker, uneven-batch, noisy-neighbour, server, late-gradient, small-parts, ...
  std::string where;   // node1, node1/eth0, bucket7; empty: the job
  std::string what;    // a sentence without a full stop
  double gain_us = 0;  // of a step, if it is mended
  double share = 0;    // of the step as it was replayed; of the mean traced step if nothing was replayed
  std::map<std::string, std::string> options = {};  // of Deft, that mend it; empty: options do not
  double error_us = 0;  // by which the replay of the traced job errs; 0: the gain was measured and not replayed
};

struct Evidence {
  const JobTrace& job;
  const MeasuredJob& measured;
  double step_us = 0;                     // as replayed
  std::vector<NodeLaunch> launches = {};  // of the leader
};

// A NIC that has carried nothing although parts of another size would use it (causes_of_parts.cc).
std::vector<Cause> idle_links(const Evidence& evidence);

// A node that computes longer than the others, from some step on or always: it is slow, or has larger batches
// (causes_of_compute.cc, as the next one).
std::vector<Cause> slow_workers(const Evidence& evidence);
// A node whose steps vary more than those of the others; or all nodes vary, so that each step waits for another one. The gain is of
// the mean step, because the usual one may hide it.
std::vector<Cause> unsteady_workers(const Evidence& evidence);
// Names the nodes whose traces have too few steps for that, or says that all of them have too few steps in common.
std::vector<std::string> uncompared_nodes(const JobTrace& job);
// A node's NIC, or one direction between two nodes, below the rate of the others.
std::vector<Cause> slow_links(const Evidence& evidence);
// A parameter server that answers later than the others of its link.
std::vector<Cause> slow_parameter_servers(const Evidence& evidence);
// Fewer parameter servers than nodes: each carries more than a node's NIC.
std::vector<Cause> few_servers(const Evidence& evidence);
// Encoding, or the daemons' own work, on the critical path. Nothing is replayed: all of it is the gain.
std::vector<Cause> costly_stages(const Evidence& evidence, const TimeShares& shares);

// Parts and buckets of another size would be faster (causes_of_parts.cc, as the next ones).
std::vector<Cause> wrong_sizes(const Evidence& evidence);
// A smaller credit would let urgent gradients go first.
std::vector<Cause> large_credit(const Evidence& evidence);
// A large gradient that backward makes last: it would hide if it came first.
std::vector<Cause> late_gradients(const Evidence& evidence);

// The step time of this job by replay, in microseconds; 0 if it cannot be replayed.
double replayed_us(const MeasuredJob& measured);
// The cause, with what a step wins that takes `after_us` instead of `before_us`.
Cause with_gain(Cause cause, double before_us, double after_us);
// "31 %".
std::string percent(double share);

}  // namespace deft::replay
