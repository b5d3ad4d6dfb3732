#include "core/replay/measured_job.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "core/base/policy_traits.h"
#include "core/compress/compression_option.h"
#include "core/partition/rebucket.h"
#include "core/replay/believed_links.h"
#include "core/replay/measured_buckets.h"
#include "core/replay/measured_links.h"
#include "core/replay/quantiles.h"
#include "core/replay/worker_cores.h"
#include "core/replay/worker_steps.h"

namespace deft::replay {
namespace {

using trace::TraceGroup;

constexpr double kMostJitter = 0.5;
constexpr std::size_t kVariedSteps = 61;  // that differ, over and over
constexpr double kMostDrawn = 100'000;    // nodes
constexpr double kLeastStep = 0.1;        // of the usual one
constexpr std::size_t kMostReasons = 6;   // that an error names

// The bytes of a launch: its codec leaves the exact ones as they are, and encodes the others. The latter count as float32.
struct CodedBytes {
  double exact = 0, coded = 0;
};

CodedBytes coded_bytes_of(const NodeLaunch& launch, const std::vector<TraceGroup>& groups) {
  const auto group = std::ranges::find(groups, std::uint32_t{launch.order->group}, &TraceGroup::group);
  if (group == groups.end()) return {.coded = static_cast<double>(launch.bytes)};
  CodedBytes bytes;
  model::for_each_piece(
      {launch.order->bucket, launch.order->offset, launch.bytes}, group->buckets.size(),
      [&](model::BucketIndex bucket) { return group->buckets[bucket].bytes; },
      [&](const model::BucketPiece& piece) {
        const TraceGroup::Bucket& bucket = group->buckets[piece.bucket];
        model::CodedShare coded;
        if (const auto& elements = bucket.elements)
          coded = model::coded_share(elements->coded_bytes, bucket.bytes, model::is_half(elements->dtype));
        bytes.exact += static_cast<double>(piece.bytes) * (1 - coded.share);
        bytes.coded += static_cast<double>(piece.bytes) * coded.share * coded.widening;
        return true;
      });
  return bytes;
}

// The name of a codec of the trace. Older versions left it to the options.
std::string codec_name(const trace::TraceHeader& header, std::size_t codec) {
  if (codec < header.codecs.size()) return header.codecs[codec];
  const auto config = config_of(header.options);
  const std::string compression = config ? compress::compression_of(*config) : "none";
  const auto ladder = compress::ladder_of(compression);
  if (ladder && codec <= ladder->size()) return (*ladder)[codec - 1];
  if (!ladder && codec == 1 && compression != "none") return compression;
  return "codec " + std::to_string(codec);
}

// What the launches of each codec took on the wire and on the link's thread. A codec that plans did not choose costs nothing and saves
// nothing.
std::vector<model::CodecCost> codecs_of(const trace::NodeTrace& leader, const std::vector<NodeLaunch>& launches) {
  struct Sum {
    double exact_bytes = 0, coded_bytes = 0, wire_bytes = 0, encode_us = 0, decode_us = 0;
  };
  std::map<model::CodecIndex, Sum> sums;
  for (const NodeLaunch& launch : launches) {
    if (!launch.order || launch.spans.empty()) continue;
    if (launch.order->codec == 0 || launch.order->codec == model::kWithResiduals) continue;
    Sum& sum = sums[launch.order->codec];
    const CodedBytes bytes = coded_bytes_of(launch, leader.groups);
    sum.exact_bytes += bytes.exact;
    sum.coded_bytes += bytes.coded;
    sum.wire_bytes += static_cast<double>(launch.wire_bytes);
    sum.encode_us += launch.stage_us(trace::TransferStage::kEncode);
    sum.decode_us += launch.stage_us(trace::TransferStage::kDecode);
  }
  auto codecs = model::exact_only();
  for (const auto& [codec, sum] : sums) {
    if (sum.coded_bytes <= 0) continue;
    codecs.resize(std::max<std::size_t>(codecs.size(), codec + std::size_t{1}));
    codecs[codec] = {.wire_share = std::clamp((sum.wire_bytes - sum.exact_bytes) / sum.coded_bytes, 1e-6, 1.0),
                     .encode_us_per_byte = sum.encode_us / sum.coded_bytes,
                     .decode_us_per_byte = sum.decode_us / sum.coded_bytes};
  }
  for (std::size_t i = 1; i < codecs.size(); ++i) codecs[i].name = codec_name(leader.header, i);
  return codecs;
}

// A newer version may have more options.
void name_unknown_options(const std::map<std::string, std::string>& options, std::vector<std::string>& problems) {
  for (const auto& option : options) {
    const std::string& name = option.first;
    const auto is_it = [&name](const OptionSpec& spec) { return spec.scope == Scope::kAgreed && spec.name == name; };
    if (std::ranges::none_of(option_table(), is_it))
      problems.push_back("the option " + name + " of the traced job is unknown here, and does not count");
  }
}

// The header of a trace has the settings with which it began, and that of a dump those with which it ended. Older versions do not record
// which policy was in force when.
void name_changed_settings(const trace::NodeTrace& leader, std::vector<std::string>& problems) {
  const auto changes = std::ranges::count(leader.records, trace::TraceKind::kSettings, &trace::TraceRecord::kind);
  if (changes > 0)
    problems.push_back("the job's settings were changed meanwhile (deft set or deft tune, " + std::to_string(changes) +
                       " times): steps before and after that are taken together");
}

OwnBucketing own_bucketing(std::string_view policy) {
  const PolicyTraits* const traits = find_policy(policy);
  return traits == nullptr ? OwnBucketing::kUniform : traits->bucketing;
}

void name_stages_of_host(const std::vector<WorkerStep>& steps, std::vector<std::string>& problems) {
  const auto count = std::ranges::count_if(steps, &WorkerStep::is_of_host);
  if (count > 0)
    problems.push_back("gradients of " + std::to_string(count) +
                       " steps came after the next forward had begun: the stages are those of the host, which runs "
                       "ahead of its GPU, so forward and backward are not told apart well");
}

// Gives `job` the policy and the sizes that were in force in most of its steps.
void take_policy(const PolicyInForce& most, bool is_chosen, MeasuredJob& job) {
  const auto config = config_of(job.options);
  const bool has_own_sizes =
      config && sched::LaunchSizes{config->bytes("partition_bytes"), config->bytes("credit_bytes")} == most.sizes;
  if (is_chosen) {
    job.options["policy"] = "auto";
    job.in_force = most.choice;
    if (!has_own_sizes) job.in_force->sizes = most.sizes;
    return;
  }
  const std::string before = policy_of(job.options);
  if (own_bucketing(before) != own_bucketing(most.choice.policy)) job.other_buckets.clear();  // they were cut before
  job.options["policy"] = most.choice.policy;
  if (has_own_sizes) return;
  job.options["partition_bytes"] = std::to_string(most.sizes.partition_bytes);
  job.options["credit_bytes"] = std::to_string(most.sizes.credit_bytes);
}

void measure_policy(const trace::NodeTrace& leader, const TraceGroup& group, const std::vector<WorkerStep>& steps,
                    MeasuredJob& job, std::vector<std::string>& problems) {
  const auto policies = policies_in_force(leader, group);
  const PolicyInForce* const most = in_force_in_most(policies, steps);
  if (most == nullptr) return name_changed_settings(leader, problems);
  const bool is_chosen = policy_of(job.options) == "auto" || std::ranges::any_of(policies, &PolicyInForce::is_own);
  take_policy(*most, is_chosen, job);
  job.decisions = decisions(policies, steps);
  job.steps_us.clear();
  for (const WorkerStep& step : steps)
    if (const auto* const policy = in_force_at(policies, step.number); policy != nullptr && policy->is_same(*most))
      job.steps_us.push_back(step.whole_us);
  if (job.steps_us.size() < steps.size())
    problems.push_back("the policy changed in the traced steps: replay has " + to_text(*most) + ", as " +
                       std::to_string(job.steps_us.size()) + " of " + std::to_string(steps.size()) + " steps had");
}

bool all_handed_in(const std::vector<WorkerStep>& steps) {
  for (std::size_t b = 0; b < steps.front().ready_us.size(); ++b)
    if (std::ranges::none_of(steps, [&](const WorkerStep& step) { return step.ready_us[b] > 0; })) return false;
  return true;
}

// The policy `auto` decides it in the same way (core/sched/policy_chooser.h).
bool overlap_forward(const std::vector<WorkerStep>& steps) {
  double in_forward_us = 0, all_us = 0;
  for (const WorkerStep& step : steps) in_forward_us += step.waited_in_forward_us, all_us += step.waited_us;
  return all_us - in_forward_us <= in_forward_us;
}

// True if launches without a codec of the job brought fewer bytes to their link than they have.
bool has_own_codecs(const std::vector<NodeLaunch>& launches) {
  return std::ranges::any_of(launches, [](const NodeLaunch& launch) {
    return launch.order && launch.order->codec == 0 && !launch.spans.empty() && launch.wire_bytes < launch.bytes &&
           launch.order->half == static_cast<std::uint8_t>(model::AllReduceHalf::kBoth);
  });
}

// If all gradients have one codec, the leader takes links for what they carry of gradients, and not of codes.
bool tells_wire_rates(const MeasuredJob& measured) {
  if (measured.profile.codecs.size() == 1) return true;
  const auto config = config_of(measured.options);
  return config && compress::ladder_of(compress::compression_of(*config)).has_value();
}

LocalSums local_sums_of(const trace::NodeTrace& leader, const std::vector<NodeLaunch>& launches) {
  LocalSums sums{.workers = leader.header.ranks.size()};
  double bytes = 0, us = 0, parts = 0;
  for (const NodeLaunch& launch : launches) {
    const double sum_us = launch.stage_us(trace::TransferStage::kSum);
    if (!launch.order || sum_us <= 0) continue;
    bytes += static_cast<double>(launch.bytes), us += sum_us, parts += 1;
  }
  if (sums.workers > 1 && bytes > 0) sums.part_bytes = bytes / parts, sums.us_per_byte = us / bytes;
  return sums;
}

BusiestHost busiest_host_of(const JobTrace& job) {
  std::map<std::string, BusiestHost> hosts;
  for (std::size_t node = 0; node < job.nodes.size(); ++node) {
    const trace::TraceHeader& header = job.nodes[node].trace.header;
    BusiestHost& host = hosts.try_emplace(header.host, BusiestHost{0, 0, 0}).first->second;
    host.nodes += 1, host.workers += header.ranks.size();
    host.on_cores = std::max(host.on_cores, compute_on_cores(job, node));
  }
  return std::ranges::max_element(hosts, {}, [](const auto& host) { return host.second.workers; })->second;
}

// Nodes may have other NICs each. Then no option of the whole job can name a link.
std::vector<std::string> common_links(const JobTrace& job) {
  const auto& links = job.leader()->trace.header.links;
  const bool are_common =
      std::ranges::all_of(job.nodes, [&](const AlignedNode& node) { return node.trace.header.links == links; });
  return are_common ? links : std::vector<std::string>();
}

// A node is as slow as its slowest worker.
struct NodePace {
  double slowdown = 1, spread = 0;
};

NodePace pace_of(const AlignedNode& node, double profile_us) {
  NodePace slowest{.slowdown = 0, .spread = 0};
  const TraceGroup* const group = largest_group(node.trace);
  if (group == nullptr) return {};
  for (const std::uint32_t worker : recorded_workers(node.trace)) {
    std::vector<double> compute_us;
    for (const WorkerStep& step : steps_of(node.trace, *group, worker)) compute_us.push_back(step.compute_us());
    if (compute_us.empty()) continue;
    const double slowdown = median(compute_us) / profile_us;
    if (slowdown > slowest.slowdown) slowest = {slowdown, spread(compute_us)};
  }
  if (slowest.slowdown <= 0) return {};
  return slowest;
}

// The buckets of a step vary independently in the simulator. So each varies more than the step as a whole.
double jitter_factor(const model::Profile& profile) {
  double sum = 0, squares = 0;
  for (const auto& bucket : profile.buckets)
    for (const double us : {bucket.forward_us, bucket.backward_us}) sum += us, squares += us * us;
  return sum / std::sqrt(squares);
}

void vary_steps_as_a_whole(MeasuredJob& changed) {
  for (std::size_t node = 0; node < changed.nodes.size(); ++node) {
    changed.nodes[node].jitter = 0;
    if (node < changed.spreads.size() && changed.spreads[node] > 0)
      changed.nodes[node].factors = varied_steps(changed.spreads[node], node + 1);
  }
}

std::vector<model::ProfileBucket> other_buckets_of(const trace::NodeTrace& leader, const TensorTimes& times) {
  const auto& options = leader.header.options;
  const auto config = config_of(options);
  if (!config || !config->text("bucketing").empty()) return {};
  const bool by_tensor = own_bucketing(policy_of(options)) == OwnBucketing::kByTensor;
  const std::string other = by_tensor ? "uniform:" + std::to_string(config->bytes("bucket_bytes")) : "tensor";
  return buckets_cut_by(times, other, config->bytes("partition_bytes"));
}

// Appends to the error the faults of the traces, which may be its cause.
Error because_of(Error error, const std::vector<std::string>& problems) {
  for (std::size_t i = 0; i < std::min(problems.size(), kMostReasons); ++i)
    error.what += (i == 0 ? ". In the traces: " : "; ") + problems[i];
  if (problems.size() > kMostReasons) error.what += "; and " + std::to_string(problems.size() - kMostReasons) + " more";
  return error;
}

// The steps of the leader's first worker, if replay can do with them.
Result<std::vector<WorkerStep>> usable_steps(const trace::NodeTrace& leader, const TraceGroup& group) {
  auto steps = steps_of(leader, group, 0);
  if (steps.size() < kLeastSteps)
    return fail(ErrorKind::kInvalid,
                "the trace has " + std::to_string(steps.size()) +
                    " whole steps after the first ones, and replay needs " + std::to_string(kLeastSteps),
                "trace more steps");
  if (!all_handed_in(steps))
    return fail(ErrorKind::kInvalid, "some gradients were handed in in none of the traced steps", "trace more steps");
  return steps;
}

void measure_buckets(const trace::NodeTrace& leader, const TraceGroup& group, const std::vector<WorkerStep>& steps,
                     MeasuredJob& measured) {
  measured.rest_us = rest_of(steps);
  measured.profile.buckets = buckets_of(steps, group, measured.rest_us);
  measured.tensors =
      std::make_shared<const TensorTimes>(tensor_times(leader, group, measured.profile.buckets, measured.rest_us));
  measured.other_buckets = other_buckets_of(leader, *measured.tensors);
}

void measure_nodes(const JobTrace& job, MeasuredJob& measured) {
  const double compute_us = measured.profile.compute_us(), factor = jitter_factor(measured.profile);
  for (const auto& node : job.nodes) {
    const NodePace pace = pace_of(node, compute_us);
    measured.spreads.push_back(pace.spread);
    measured.nodes.push_back({.slowdown = pace.slowdown, .jitter = std::min(kMostJitter, pace.spread * factor)});
  }
}

Result<MeasuredJob> measured_from(const JobTrace& job, std::vector<std::string>& problems) {
  if (job.leader() == nullptr)
    return fail(ErrorKind::kInvalid, "the trace of node 0, which led the job, is missing",
                "put its file into the folder, too");
  const trace::NodeTrace& leader = job.leader()->trace;
  const TraceGroup* const group = largest_group(leader);
  if (group == nullptr)
    return fail(ErrorKind::kInvalid, "the trace of node 0 has no gradients", "trace some steps of the training");
  const auto steps = usable_steps(leader, *group);
  if (!steps) return tl::unexpected(steps.error());
  MeasuredJob measured;
  measured.options = leader.header.options;
  name_unknown_options(measured.options, problems);
  name_stages_of_host(*steps, problems);
  measured.profile.model = leader.header.job;
  measured.profile.source = "trace";
  measured.overlaps_forward = overlap_forward(*steps);
  measure_buckets(leader, *group, *steps, measured);
  measured.profile.links = measured_links(job, problems);
  const auto launches = launches_of(leader);
  measured.profile.codecs = codecs_of(leader, launches);
  if (tells_wire_rates(measured)) measured.believed_links = believed_links(leader, *steps, measured.profile.links);
  if (auto ok = model::check_profile(measured.profile); !ok) return tl::unexpected(ok.error().in("the traced job"));
  for (const WorkerStep& step : *steps) measured.steps_us.push_back(step.whole_us);
  measure_policy(leader, *group, *steps, measured, problems);
  measured.memories = step_memories(job, problems);
  measured.has_own_codecs = has_own_codecs(launches);
  measured.node_count = job.node_count();
  measured.links = common_links(job);
  measured.local_sums = local_sums_of(leader, launches);
  measured.busiest_host = busiest_host_of(job);
  measured.core_waits = core_waits_of(job, measured.profile.links);
  measure_nodes(job, measured);
  return measured;
}

}  // namespace

std::vector<double> varied_steps(double spread, std::uint64_t seed, double nodes) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(1, spread);
  std::vector<double> factors(kVariedSteps);
  const auto drawn = static_cast<std::size_t>(std::clamp(nodes, 1.0, kMostDrawn));
  for (double& factor : factors) {
    factor = kLeastStep;
    for (std::size_t i = 0; i < drawn; ++i) factor = std::max(factor, normal(random));
  }
  return factors;
}

std::string policy_of(const std::map<std::string, std::string>& options) {
  const auto given = options.find("policy");
  return given == options.end() ? "fifo" : given->second;
}

Result<Config> config_of(const std::map<std::string, std::string>& options) {
  std::vector<std::string> flags;
  for (const OptionSpec& spec : option_table()) {
    const auto given = options.find(std::string(spec.name));
    if (spec.scope == Scope::kAgreed && given != options.end() && !given->second.empty())
      flags.push_back("--" + given->first + "=" + given->second);
  }
  auto config = Config::load(flags, {}, Audience::kAll);
  if (!config) return tl::unexpected(config.error().in("the options in the trace"));
  return config;
}

Result<MeasuredJob> with_buckets(const MeasuredJob& measured, std::string_view bucketing) {
  MeasuredJob changed = measured;
  changed.profile.buckets.clear();
  if (measured.tensors && bucketing.starts_with("uniform"))
    changed.profile.buckets = buckets_cut_by(*measured.tensors, bucketing, 0);  // uniform buckets need no size of parts
  if (changed.profile.buckets.empty()) {
    auto profile = partition::rebucket(measured.profile, bucketing);
    if (!profile) return tl::unexpected(profile.error());
    changed.profile = *std::move(profile);
  }
  changed.other_buckets.clear();
  vary_steps_as_a_whole(changed);
  return changed;
}

Result<MeasuredJob> with_codec_floor(const MeasuredJob& measured, std::uint64_t min_bytes) {
  auto group = measured.tensors ? with_codec_floor(measured.tensors->group, min_bytes) : std::nullopt;
  if (!group) return fail(ErrorKind::kInvalid, "the trace does not tell which tensors codecs may encode");
  MeasuredJob changed = measured;
  for (auto* buckets : {&changed.profile.buckets, &changed.other_buckets}) count_coded_bytes(*group, *buckets);
  auto tensors = std::make_shared<TensorTimes>(*measured.tensors);
  tensors->group = *std::move(group);
  changed.tensors = std::move(tensors);
  return changed;
}

MeasuredJob cut_by(const MeasuredJob& measured, std::string_view policy) {
  MeasuredJob changed = measured;
  changed.other_buckets.clear();
  const bool cuts_alike = own_bucketing(policy) == own_bucketing(policy_of(measured.options));
  if (measured.other_buckets.empty() || cuts_alike) return changed;
  changed.profile.buckets = measured.other_buckets;
  vary_steps_as_a_whole(changed);
  return changed;
}

Result<MeasuredJob> measure(const JobTrace& job) {
  std::vector<std::string> problems;
  auto measured = measured_from(job, problems);
  if (measured) {
    measured->problems = std::move(problems);
    return measured;
  }
  problems.insert(problems.begin(), job.problems.begin(), job.problems.end());
  return tl::unexpected(because_of(measured.error(), problems));
}

}  // namespace deft::replay
