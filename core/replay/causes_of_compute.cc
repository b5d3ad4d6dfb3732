// Causes in what the nodes compute: slow processors, uneven batches, noisy neighbours.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "core/replay/causes.h"
#include "core/replay/other_programs.h"
#include "core/replay/quantiles.h"
#include "core/replay/replay.h"
#include "core/replay/worker_steps.h"

namespace deft::replay {
namespace {

constexpr double kSlower = 1.05;             // than the others: below it a node is as they are
constexpr double kNoisy = 0.04;              // the mean deviation of a noisy node's steps, at least ...
constexpr double kNoisier = 3;               // ... and so many times that of the others
constexpr double kPause = 3;                 // a step that is so many times as long is a pause of the machine
constexpr std::size_t kLeastNodes = 3;       // among which the slow one is told
constexpr std::size_t kLeastStepsASide = 5;  // of a change
constexpr double kSteady = 0.8;        // so many steps behind a change are slow: a pause of the machine is no change
constexpr double kLeastUpdate = 0.02;  // of a step's compute: a shorter update does not tell a processor's speed
constexpr double kSameSpeed = 0.4;     // the update grows by less than this share of what the rest grows by

struct NodeStep {
  double compute_us = 0;
  double update_us = 0;     // of that, behind the last gradient: it does not depend on the batch
  bool has_update = false;  // plans may have merged the step with a later one
  TimeUs ended_us = 0;
};
using NodeSteps = std::map<std::uint64_t, NodeStep>;  // by step

// The steps of the node's slowest worker.
NodeSteps steps_of_node(const AlignedNode& node) {
  NodeSteps steps;
  const auto* const group = largest_group(node.trace);
  if (group == nullptr) return steps;
  for (const std::uint32_t worker : recorded_workers(node.trace))
    for (const auto& step : steps_of(node.trace, *group, worker))
      if (NodeStep& slowest = steps[step.number]; step.compute_us() > slowest.compute_us)
        slowest = {step.compute_us(), std::max(0.0, step.rest_us), step.complete(), step.ended_us};
  return steps;
}

// The steps that all nodes have: a damaged file has few of its node's, and in the others' steps another node may seem to be the slow one.
// If there are other nodes enough to compare, a node with few steps does not count, and has none.
std::vector<NodeSteps> common_steps(const JobTrace& job) {
  std::vector<NodeSteps> nodes;
  for (const auto& node : job.nodes) nodes.push_back(steps_of_node(node));
  const auto has_few = [](const NodeSteps& steps) { return steps.size() < kLeastSteps; };
  const auto few = static_cast<std::size_t>(std::ranges::count_if(nodes, has_few));
  const bool leaves_out = nodes.size() - few >= kLeastNodes;
  const std::size_t compared = leaves_out ? nodes.size() - few : nodes.size();
  std::map<std::uint64_t, std::size_t> holders;  // by step: how many of them have it
  for (auto& node : nodes) {
    if (leaves_out && has_few(node)) node.clear();
    for (const auto& entry : node) ++holders[entry.first];
  }
  for (auto& node : nodes) std::erase_if(node, [&](const auto& entry) { return holders[entry.first] < compared; });
  return nodes;
}

struct Ratio {
  std::uint64_t step;
  double times;  // the node's compute over the median of the others'
};

std::vector<Ratio> ratios_of(const std::vector<NodeSteps>& nodes, std::size_t node) {
  std::vector<Ratio> ratios;
  for (const auto& [step, own] : nodes[node]) {
    std::vector<double> others;
    for (std::size_t other = 0; other < nodes.size(); ++other)
      if (const auto at = nodes[other].find(step); other != node && at != nodes[other].end())
        others.push_back(at->second.compute_us);
    if (!others.empty() && median(others) > 0) ratios.push_back({step, own.compute_us / median(others)});
  }
  return ratios;
}

double mean_of(const std::vector<double>& values) {
  return values.empty() ? 0 : std::reduce(values.begin(), values.end()) / static_cast<double>(values.size());
}

double mean_of(const std::vector<Ratio>& ratios, std::size_t from, std::size_t to) {
  double sum = 0;
  for (std::size_t i = from; i < to; ++i) sum += ratios[i].times;
  return sum / static_cast<double>(to - from);
}

std::vector<double> times_of(const std::vector<Ratio>& ratios, std::size_t from, std::size_t to) {
  std::vector<double> times;
  for (std::size_t i = from; i < to; ++i) times.push_back(ratios[i].times);
  return times;
}

// True if nearly all steps from `change` on are slower than those before it.
bool is_steady(const std::vector<Ratio>& ratios, std::size_t change) {
  const auto after = times_of(ratios, change, ratios.size());
  const double middle = (median(times_of(ratios, 0, change)) + median(after)) / 2;
  const auto slow = std::ranges::count_if(after, [&](double times) { return times > middle; });
  return static_cast<double>(slow) >= kSteady * static_cast<double>(after.size());
}

// The index from which on the node is slower than before: where the two means explain most. Empty: it always was.
std::optional<std::size_t> change_in(const std::vector<Ratio>& ratios) {
  std::optional<std::size_t> best;
  double most = 0;
  for (std::size_t i = kLeastStepsASide; i + kLeastStepsASide <= ratios.size(); ++i) {
    const double before = mean_of(ratios, 0, i), after = mean_of(ratios, i, ratios.size());
    const double explained =
        static_cast<double>(i) * static_cast<double>(ratios.size() - i) * (after - before) * (after - before);
    if (after > before * kSlower && explained > most) best = i, most = explained;
  }
  return best && is_steady(ratios, *best) ? best : std::nullopt;
}

double median_of_others(const std::vector<double>& values, std::size_t node) {
  std::vector<double> others;
  for (std::size_t other = 0; other < values.size(); ++other)
    if (other != node) others.push_back(values[other]);
  return median(others);
}

// The job whose nodes are as slow as in these steps.
MeasuredJob with_paces_of(const std::vector<NodeSteps>& nodes, MeasuredJob measured) {
  const double profile_us = measured.profile.compute_us();
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    std::vector<double> compute_us;
    for (const auto& [number, step] : nodes[node]) compute_us.push_back(step.compute_us);
    if (const double us = median(compute_us); us > 0) measured.nodes[node].slowdown = us / profile_us;
  }
  return measured;
}

std::vector<double> slowdowns_of(const MeasuredJob& measured) {
  std::vector<double> slowdowns;
  for (const auto& node : measured.nodes) slowdowns.push_back(node.slowdown);
  return slowdowns;
}

// A larger batch makes forward and backward longer, and the update not. A slow processor makes all of them longer.
bool has_larger_batch(const std::vector<NodeSteps>& nodes, std::size_t node, double slower) {
  std::vector<double> updates_us, computes_us;
  for (const auto& steps : nodes) {
    std::vector<double> update_us, compute_us;
    for (const auto& [number, step] : steps) {
      compute_us.push_back(step.compute_us);
      if (step.has_update) update_us.push_back(step.update_us);
    }
    updates_us.push_back(median(update_us)), computes_us.push_back(median(compute_us));
  }
  const double usual_us = median_of_others(updates_us, node);
  if (usual_us < kLeastUpdate * median_of_others(computes_us, node)) return false;
  return updates_us[node] / usual_us - 1 < kSameSpeed * (slower - 1);
}

// Other programs on its cores make a node slow or unsteady, and not its processors.
void blame_other_programs(const JobTrace& job, std::size_t node, TimeUs from_us, Cause& cause) {
  const auto taken = taken_beyond(shares_of_cores(job, from_us), node);
  if (!taken) return;
  cause.cause = "noisy-neighbour";
  cause.what += ", and other programs take " + percent(*taken) + " of its cores";
}

std::optional<Cause> slow_node(const Evidence& evidence, const std::vector<NodeSteps>& nodes, std::size_t node) {
  const auto ratios = ratios_of(nodes, node);
  if (ratios.size() < kLeastSteps) return std::nullopt;
  const auto change = change_in(ratios);
  const double slower = median(times_of(ratios, change.value_or(0), ratios.size()));
  if (slower < kSlower) return std::nullopt;
  const std::string name = "node" + std::to_string(evidence.job.nodes[node].trace.header.node);
  Cause cause{.cause = "slow-worker",
              .where = name,
              .what = name + " computes " + percent(slower - 1) + " longer than the others"};
  if (change) cause.what += " since step " + std::to_string(ratios[*change].step);
  MeasuredJob slow = with_paces_of(nodes, evidence.measured), mended = slow;
  const double usual = median_of_others(slowdowns_of(slow), node);
  slow.nodes[node].slowdown = slower * usual;
  mended.nodes[node].slowdown = usual;
  if (has_larger_batch(nodes, node, slower)) {
    cause.cause = "uneven-batch";
    cause.what += ", and its updates do not: its batches are larger";
    double sum = 0;
    for (const auto& each : slow.nodes) sum += each.slowdown;
    for (auto& each : mended.nodes) each.slowdown = sum / static_cast<double>(mended.nodes.size());
  } else {
    const TimeUs from_us = change ? nodes[node].at(ratios[*change].step).ended_us : 0;
    blame_other_programs(evidence.job, node, from_us, cause);
  }
  return with_gain(std::move(cause), replayed_us(slow), replayed_us(mended));
}

// By node: what its compute of each step is of its usual one. A node without steps is always as usual.
std::vector<std::vector<double>> factors_of(const std::vector<NodeSteps>& nodes) {
  std::size_t count = 0;
  for (const auto& steps : nodes) count = std::max(count, steps.size());
  std::vector<std::vector<double>> factors(nodes.size());
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    std::vector<double> all_us;
    for (const auto& [number, step] : nodes[node]) all_us.push_back(step.compute_us);
    const double usual_us = median(all_us);
    for (const double us : all_us) factors[node].push_back(std::min(kPause, us / usual_us));
    factors[node].resize(count, 1);
  }
  return factors;
}

double noise_of(const std::vector<double>& factors) {
  double sum = 0;
  for (const double factor : factors) sum += std::abs(factor - 1);
  return factors.empty() ? 0 : sum / static_cast<double>(factors.size());
}

double replayed_mean_us(MeasuredJob measured, const std::vector<std::vector<double>>& factors) {
  for (std::size_t node = 0; node < measured.nodes.size(); ++node)
    measured.nodes[node].jitter = 0, measured.nodes[node].factors = factors[node];
  const auto prediction = replay(measured, {});
  return prediction ? prediction->step_us_mean : 0;
}

// Every node as long as all of them in the mean.
std::vector<std::vector<double>> evened(const std::vector<std::vector<double>>& factors) {
  std::vector<std::vector<double>> even = factors;
  for (std::size_t step = 0; step < factors.front().size(); ++step) {
    double sum = 0;
    for (const auto& node : factors) sum += node[step];
    for (auto& node : even) node[step] = sum / static_cast<double>(factors.size());
  }
  return even;
}

}  // namespace

std::vector<Cause> slow_workers(const Evidence& evidence) {
  std::vector<Cause> causes;
  const auto nodes = common_steps(evidence.job);
  for (std::size_t node = 0; nodes.size() > 1 && node < nodes.size(); ++node)
    if (auto slow = slow_node(evidence, nodes, node)) causes.push_back(*std::move(slow));
  return causes;
}

std::vector<std::string> uncompared_nodes(const JobTrace& job) {
  std::vector<std::string> notes;
  if (job.nodes.size() < 2) return notes;
  for (const auto& node : job.nodes)
    if (const auto steps = steps_of_node(node).size(); steps < kLeastSteps)
      notes.push_back("node" + std::to_string(node.trace.header.node) + " has " + std::to_string(steps) +
                      " whole steps in its trace, too few to compare its compute");
  std::size_t common = 0;
  for (const auto& steps : common_steps(job)) common = std::max(common, steps.size());
  if (notes.empty() && common < kLeastSteps)
    notes.push_back("the traces of the nodes have " + std::to_string(common) +
                    " whole steps in common, too few to compare their compute");
  return notes;
}

std::vector<Cause> unsteady_workers(const Evidence& evidence) {
  const auto nodes = common_steps(evidence.job);
  if (nodes.size() < 2) return {};
  const auto factors = factors_of(nodes);
  if (factors.front().size() < kLeastSteps) return {};
  std::vector<double> noise;
  for (const auto& node : factors) noise.push_back(noise_of(node));
  const auto noisiest = static_cast<std::size_t>(std::ranges::max_element(noise) - noise.begin());
  if (noise[noisiest] < kNoisy || change_in(ratios_of(nodes, noisiest))) return {};
  const double now_us = replayed_mean_us(evidence.measured, factors);
  const double error_us = std::abs(now_us - mean_of(evidence.measured.steps_us));
  const auto cause_of = [&](Cause cause, const std::vector<std::vector<double>>& mended) {
    cause.error_us = error_us;
    return std::vector{with_gain(std::move(cause), now_us, replayed_mean_us(evidence.measured, mended))};
  };
  if (noise[noisiest] >= kNoisier * median_of_others(noise, noisiest)) {
    auto mended = factors;
    mended[noisiest].assign(mended[noisiest].size(), 1.0);
    const std::string name = "node" + std::to_string(evidence.job.nodes[noisiest].trace.header.node);
    Cause cause{.cause = "noisy-neighbour",
                .where = name,
                .what = "the steps of " + name + " vary by " + percent(noise[noisiest]) + ", those of the others less"};
    blame_other_programs(evidence.job, noisiest, 0, cause);
    return cause_of(std::move(cause), mended);
  }
  return cause_of({.cause = "uneven-batch",
                   .where = "",
                   .what = "in each step another node computes longest: batches differ in length"},
                  evened(factors));
}

}  // namespace deft::replay
