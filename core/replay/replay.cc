#include "core/replay/replay.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/base/numbers.h"
#include "core/base/policy_traits.h"
#include "core/base/text.h"
#include "core/compress/compression_option.h"
#include "core/model/link_names.h"
#include "core/replay/traced_codec.h"
#include "core/sched/scheduler.h"
#include "core/select/simulating_selector.h"

namespace deft::replay {
namespace {

struct Steps {
  std::uint64_t all, warmup;
};
constexpr Steps kSteps = {160, 60};  // a plan is in force after some dozen steps
constexpr Steps kFewSteps = {28, 4};
constexpr std::uint32_t kMostNodes = 100'000;
constexpr std::size_t kMostSimulated = 64;  // nodes, each by itself
constexpr std::uint32_t kMostPasses = 1'000'000;
constexpr double kMostTimes = 1e6;
constexpr double kMostMistaken = 1e3;  // times the rate of a link, whatever a trace says
constexpr double kNoticeable = 0.002;  // of compute: for less nothing is simulated once more
constexpr const char* kHowMany = "give a number above 0, and at most 1000000";

// What the busiest NIC of a link carries in a direction, over the bytes that `nodes` nodes reduce. In an all-reduce each node sends and
// receives 2 (n - 1) / n of them. Through parameter servers it sends and receives each byte once, and a server its share of all nodes'.
double busiest_share(const std::string& link, std::size_t nodes) {
  if (nodes < 2) return 0;
  const auto n = static_cast<double>(nodes);
  if (!model::has_servers(link)) return 2 * (n - 1) / n;
  return std::max(1.0, n / static_cast<double>(std::ranges::count(link, '+') + 1));
}

double speed_of(const WhatIf& what_if, const std::string& link) {
  const auto speed = what_if.link_speed.find(link);
  return speed == what_if.link_speed.end() ? 1 : speed->second;
}

bool leaves_out_all(const model::Profile& profile, const WhatIf& what_if) {
  const auto is_left_out = [&](const model::ProfileLink& link) { return speed_of(what_if, link.name) <= 0; };
  return !profile.links.empty() && std::ranges::all_of(profile.links, is_left_out);
}

Result<void> check_memory(const MeasuredJob& measured, const MemoryWhatIf& what_if) {
  if (!(what_if.batch > 0 && what_if.batch <= kMostTimes))
    return fail(ErrorKind::kInvalid, "a batch cannot be " + number_text(what_if.batch) + " times as large", kHowMany);
  if (what_if.passes < 1 || what_if.passes > kMostPasses)
    return fail(ErrorKind::kInvalid, "a step cannot have " + std::to_string(what_if.passes) + " passes",
                "give 1 to " + std::to_string(kMostPasses));
  if (what_if.recomputed.empty()) return {};
  if (measured.memories.empty() || !measured.memories.front().has_times())
    return fail(ErrorKind::kInvalid, "the trace does not tell what repeating a layer's forward takes");
  const std::size_t layers = measured.memories.front().layers.size();
  for (const LayerRange& range : what_if.recomputed)
    if (range.first > range.last || range.last >= layers)
      return fail(ErrorKind::kInvalid, "the model has " + std::to_string(layers) + " layers");
  return {};
}

Result<void> check(const MeasuredJob& measured, const WhatIf& what_if) {
  for (const auto& [name, speed] : what_if.link_speed) {
    const auto& links = measured.profile.links;
    if (std::ranges::find(links, name, &model::ProfileLink::name) == links.end()) {
      const std::string known = joined(links, " ", &model::ProfileLink::name);
      return fail(ErrorKind::kInvalid, "the trace has no link '" + name + "'", "its links: " + known);
    }
    if (!(speed >= 0 && speed <= kMostTimes))
      return fail(ErrorKind::kInvalid, "link '" + name + "' cannot be " + number_text(speed) + " times as fast",
                  "give a number from 0, which leaves the link out, to 1000000");
  }
  if (leaves_out_all(measured.profile, what_if))
    return fail(ErrorKind::kInvalid, "all links are left out", "keep one of them");
  if (what_if.nodes && (*what_if.nodes < 1 || *what_if.nodes > kMostNodes))
    return fail(ErrorKind::kInvalid, "nodes is " + std::to_string(*what_if.nodes),
                "give 1 to " + std::to_string(kMostNodes));
  if (what_if.nodes && measured.node_count < 2 && *what_if.nodes > 1)
    return fail(ErrorKind::kInvalid, "the traced job ran on one node, so its links are not known",
                "trace a job on two nodes");
  if (!(what_if.compute_speed > 0 && what_if.compute_speed <= kMostTimes))
    return fail(ErrorKind::kInvalid, "compute cannot be " + number_text(what_if.compute_speed) + " times as fast",
                kHowMany);
  return check_memory(measured, what_if.memory);
}

// All gradients that may be encoded are encoded so. What this takes beyond the traced codec makes compute longer, by the share
// `in_compute`.
void encode(const model::CodecCost& codec, double in_compute, model::Profile& profile) {
  const model::CodecCost traced = profile.codecs.back();
  profile.codecs = model::exact_only();
  if (codec.wire_share >= 1) return;
  profile.codecs.push_back(codec);
  for (auto& bucket : profile.buckets) {
    const model::CodedShare coded = bucket.coded_share();
    const double more_us = codec.thread_us_per_byte(coded) - traced.thread_us_per_byte(coded);
    bucket.backward_us += in_compute * std::max(0.0, more_us) * static_cast<double>(bucket.bytes);
  }
}

// How the job's options encode its gradients under a policy.
struct Coding {
  bool is_planned = false;   // plans choose among codecs
  bool was_planned = false;  // in the traced job
};

Result<Coding> coding_of(const MeasuredJob& measured, const std::string& policy) {
  const auto compression_under = [&](const std::string& name) -> Result<std::string> {
    auto options = measured.options;
    options["policy"] = name;
    const auto config = config_of(options);
    if (!config) return tl::unexpected(config.error());
    return compress::compression_of(*config);
  };
  const auto traced = compression_under(policy_of(measured.options)), now = compression_under(policy);
  if (!traced) return tl::unexpected(traced.error());
  if (!now) return tl::unexpected(now.error());
  const Coding coding{compress::ladder_of(*now).has_value(), compress::ladder_of(*traced).has_value()};
  if (coding.is_planned && !find_policy(policy)->delays_updates)
    return fail(ErrorKind::kInvalid,
                "compression " + *now + " lets plans choose codecs, and the policy " + policy + " makes no plans",
                "ask what if all gradients had one codec: --compression none");
  return coding;
}

// The codecs among which a launch's may be. In-process links carry none that plans choose.
std::vector<model::CodecCost> usable_codecs(const MeasuredJob& measured, const WhatIf& what_if, const Coding& coding) {
  if (!coding.is_planned) return coding.was_planned ? model::exact_only() : measured.profile.codecs;
  const bool carry_codes = std::ranges::none_of(measured.profile.links, [&](const model::ProfileLink& link) {
    return model::runs_in_workers(link.name) && speed_of(what_if, link.name) > 0;
  });
  if (!carry_codes) return model::exact_only();
  return measured.plan_codecs.empty() ? measured.profile.codecs : measured.plan_codecs;
}

// Takes the links out of the profile that the job is to run without. Codecs have a number for each link.
void leave_out_links(const WhatIf& what_if, model::Profile& profile) {
  for (std::size_t link = profile.links.size(); link-- > 0;) {
    if (speed_of(what_if, profile.links[link].name) > 0) continue;
    const auto at = static_cast<std::ptrdiff_t>(link);
    profile.links.erase(profile.links.begin() + at);
    for (auto& codec : profile.codecs)
      if (link < codec.link_shares.size()) codec.link_shares.erase(codec.link_shares.begin() + at);
  }
}

// If workers wait within forward, each layer is updated when its gradient has come, and not all of them before forward. An update takes
// time for its bytes.
void update_by_bucket(double update_us, model::Profile& profile) {
  auto& buckets = profile.buckets;
  const double moved_us = std::min(update_us, buckets.front().forward_us);
  const auto all_bytes = static_cast<double>(profile.bytes());
  buckets.front().forward_us -= moved_us;
  for (auto& bucket : buckets) bucket.forward_us += moved_us * static_cast<double>(bucket.bytes) / all_bytes;
}

// True if forward overlaps with communication, as it does in the traced job. If only one of the two policies is made for overlap, then
// that one overlaps, as it does in training unless an option says otherwise.
bool overlaps_forward(const MeasuredJob& measured, const std::string& policy) {
  const PolicyTraits* const traced = find_policy(policy_of(measured.options));
  const PolicyTraits* const now = find_policy(policy);
  if (traced == nullptr || now == nullptr || traced->overlaps_forward == now->overlaps_forward)
    return measured.overlaps_forward;
  return now->overlaps_forward;
}

model::Profile profile_of(const MeasuredJob& measured, const WhatIf& what_if, const std::string& policy,
                          const Coding& coding) {
  const StepMemory* const memory = measured.memories.empty() ? nullptr : measured.memories.data();
  model::Profile profile = with_memory(measured.profile, measured.rest_us, memory, what_if.memory);
  if (!measured.overlaps_forward && overlaps_forward(measured, policy)) update_by_bucket(measured.rest_us, profile);
  for (auto& link : profile.links) {
    const bool has_other_nodes = what_if.nodes && *what_if.nodes != measured.node_count;
    const double share =
        has_other_nodes ? busiest_share(link.name, *what_if.nodes) / busiest_share(link.name, measured.node_count) : 1;
    const double faster = speed_of(what_if, link.name);
    link.bytes_per_us = std::min(*link.bytes_per_us * faster / std::max(share, 1e-6), model::kMaxBytesPerUs);
    if (share <= 0) link.latency_us = 0;  // one node sends nothing
  }
  for (auto& bucket : profile.buckets) {
    bucket.forward_us /= what_if.compute_speed;
    bucket.backward_us /= what_if.compute_speed;
  }
  if (what_if.codec)
    encode(*what_if.codec, measured.codec_in_compute, profile);
  else
    profile.codecs = usable_codecs(measured, what_if, coding);
  leave_out_links(what_if, profile);
  return profile;
}

// Nodes beyond the traced ones are like those in turn. If there are many, all that are like one are simulated as their slowest, step by
// step: all nodes together would take hours.
std::vector<sim::NodeSpeed> nodes_of(const MeasuredJob& measured, const WhatIf& what_if) {
  const std::size_t traced = measured.nodes.size(), count = what_if.nodes ? *what_if.nodes : traced;
  std::vector<sim::NodeSpeed> nodes;
  for (std::size_t i = 0; i < std::min(count, std::max(traced, kMostSimulated)); ++i)
    nodes.push_back(measured.nodes[i % traced]);
  if (count > nodes.size()) {
    nodes.resize(traced);
    for (std::size_t i = 0; i < traced; ++i) {
      const std::size_t alike = count / traced + (i < count % traced ? 1 : 0) - 1;
      const double spread = i < measured.spreads.size() ? measured.spreads[i] : 0;
      nodes.push_back(measured.nodes[i]);
      if (alike > 0 && spread > 0)
        nodes.back().jitter = 0, nodes.back().factors = varied_steps(spread, traced + i, static_cast<double>(alike));
    }
  }
  if (what_if.straggler) return nodes;
  const double fastest = std::ranges::min(nodes, {}, &sim::NodeSpeed::slowdown).slowdown;
  for (auto& node : nodes) node.slowdown = fastest;
  return nodes;
}

bool has_priority_channel(const model::ProfileLink& link) { return model::backend_of(link.name) == "gloo"; }

// The leader decides it in the same way for `auto`.
bool has_priority_channels(const model::Profile& profile) {
  return std::ranges::all_of(profile.links, has_priority_channel);
}

// The leader's reason against halves. Empty: launches can be halves of an all-reduce.
std::string why_no_halves(const MeasuredJob& measured, const model::Profile& profile) {
  if (profile.codecs.size() > 1) return "gradients are encoded, which halves cannot do";
  if (measured.has_own_codecs) return "tensors have codecs of their own, which halves cannot do";
  for (const model::ProfileLink& link : profile.links)
    if (!model::has_halves(link.name)) return "link " + link.name + " has none";
  return "";
}

// The traced policy `auto` is replayed as what it had in force: it may have tried others, or gone back to it.
void take_in_force(const sched::PolicyChoice& choice, sched::Setup& setup) {
  setup.policy = choice.policy;
  setup.fused_bytes = choice.fused_bytes;
  if (!choice.sizes) return;
  setup.partition_bytes = choice.sizes->partition_bytes;
  setup.credit_bytes = choice.sizes->credit_bytes;
}

// The job's options, as a scheduler needs them.
Result<sched::Setup> setup_of(const MeasuredJob& measured, const WhatIf& what_if, const model::Profile& profile,
                              const std::string& policy, const Coding& coding) {
  const auto config = config_of(measured.options);
  if (!config) return tl::unexpected(config.error());
  auto setup = sim::setup_for(profile, policy);
  setup.partition_bytes = config->bytes("partition_bytes");
  setup.credit_bytes = config->bytes("credit_bytes");
  setup.merge_groups = config->text("merge_groups");
  setup.codecs = profile.codecs;
  if (what_if.codec || !coding.is_planned)
    setup.codec = static_cast<model::CodecIndex>(profile.codecs.size() - 1), setup.codec_cost = profile.codecs.back();
  setup.no_halves = why_no_halves(measured, profile);
  setup.small_overtake = has_priority_channels(profile);
  setup.selector = select::make_selector(select::When::kAtOnce, setup.small_overtake);
  setup.overlaps_forward = overlaps_forward(measured, policy);
  if (policy == "auto" && policy_of(measured.options) == policy && measured.in_force)
    take_in_force(*measured.in_force, setup);
  setup.limits = plan::training_limits();
  setup.limits.max_staleness_steps = static_cast<std::uint32_t>(config->integer("max_staleness_steps"));
  setup.limits.max_merged_steps = static_cast<std::uint32_t>(config->integer("max_merged_steps"));
  setup.limits.stale_share = static_cast<double>(config->integer("max_stale_percent")) / 100;
  return setup;
}

// The steps of the leader after the warm-up, from forward to forward.
std::vector<double> simulated_steps_us(const std::vector<double>& forward_began_us, std::uint64_t warmup) {
  std::vector<double> steps_us;
  for (std::size_t step = warmup + 1; step < forward_began_us.size(); ++step)
    steps_us.push_back(forward_began_us[step] - forward_began_us[step - 1]);
  std::ranges::sort(steps_us);
  return steps_us;
}

// What the leader takes the links for, if the policy is the traced one: meters err in other ways if parts follow each other in another way.
// Links that are so many times as fast are taken for as many times as fast.
std::vector<model::LinkModel> links_as_believed(const MeasuredJob& measured, const model::Profile& profile,
                                                const std::string& policy) {
  auto believed = measured.believed_links;
  const bool are_traced =
      profile.links.size() == measured.profile.links.size() && profile.links.size() == believed.size();
  if (policy != policy_of(measured.options) || !are_traced) return {};
  for (std::size_t link = 0; link < believed.size(); ++link) {
    const double traced = *measured.profile.links[link].bytes_per_us, now = *profile.links[link].bytes_per_us;
    const double share = std::clamp(believed[link].bytes_per_us / traced, 1 / kMostMistaken, kMostMistaken);
    believed[link].bytes_per_us = std::min(share * now, model::kMaxBytesPerUs);
  }
  return believed;
}

sim::Options options_of(const MeasuredJob& measured, const model::Profile& profile, const std::string& policy,
                        const Steps& steps, const WhatIf& what_if) {
  sim::Options options{.steps = steps.all, .warmup_steps = steps.warmup, .is_stopped = what_if.is_stopped};
  options.overlaps_forward = overlaps_forward(measured, policy);
  for (model::LinkIndex link = 0; link < profile.links.size(); ++link)
    if (has_priority_channel(profile.links[link])) options.priority_links.push_back(link);
  options.believed_links = links_as_believed(measured, profile, policy);
  return options;
}

Result<sim::Outcome> simulated(const sched::Setup& setup, const model::Profile& profile, sim::Options options,
                               const std::vector<sim::NodeSpeed>& nodes) {
  auto scheduler = sched::make_scheduler(setup);
  if (!scheduler) return tl::unexpected(scheduler.error());
  options.nodes = nodes;
  return sim::simulate(**scheduler, profile, options);
}

// Fewer parts than in the trace leave the workers more of their cores. True: the nodes compute noticeably faster for it.
bool with_waits_of(const sim::Outcome& outcome, const Steps& steps, const WhatIf& what_if, MeasuredJob measured,
                   std::vector<sim::NodeSpeed>& nodes) {
  const double parts = static_cast<double>(outcome.pieces) / static_cast<double>(steps.all);
  const auto before = measured.nodes;
  measured.nodes = with_fewer_waits(std::move(measured.nodes), measured.core_waits, parts);
  bool is_noticeable = false;
  for (std::size_t node = 0; node < before.size(); ++node)
    is_noticeable = is_noticeable || measured.nodes[node].slowdown < before[node].slowdown * (1 - kNoticeable);
  if (is_noticeable) nodes = nodes_of(measured, what_if);
  return is_noticeable;
}

// Daydream's way (Zhu et al., ATC 2020, section 5), to compare with: all links together are one channel, which sends the buckets in the
// order of backward. Each takes its size over the bandwidth. The next step begins when all are sent and the slowest node has computed.
// `codec`: of all gradients.
double coarse_step_us(const model::Profile& profile, model::CodecIndex codec,
                      const std::vector<sim::NodeSpeed>& nodes) {
  const double slowdown = std::ranges::max(nodes, {}, &sim::NodeSpeed::slowdown).slowdown;
  double ready_us = slowdown * profile.forward_us();
  double sent_us = 0;
  for (std::size_t i = 0; i < profile.buckets.size(); ++i) {
    const auto& bucket = profile.buckets[model::produced(profile, i)];
    double bytes_per_us = 0;
    for (model::LinkIndex link = 0; link < profile.links.size(); ++link)
      bytes_per_us += *profile.links[link].bytes_per_us / profile.codecs[codec].bytes_share(bucket.coded_share(), link);
    ready_us += slowdown * bucket.backward_us;
    if (bytes_per_us > 0) sent_us = std::max(sent_us, ready_us) + static_cast<double>(bucket.bytes) / bytes_per_us;
  }
  return std::max(ready_us, sent_us);
}

double at_share(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  return sorted[static_cast<std::size_t>(std::lround(share * static_cast<double>(sorted.size() - 1)))];
}

double mean_of(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

bool makes_fewer_updates(const Prediction& prediction, double updates) {
  constexpr double kNoise = 0.005;
  return prediction.updates_per_step < updates * (1 - kNoise);
}

Result<Prediction> replay(const MeasuredJob& traced_job, const WhatIf& what_if) {
  if (auto ok = check(traced_job, what_if); !ok) return tl::unexpected(ok.error());
  const std::string policy = what_if.policy.empty() ? policy_of(traced_job.options) : what_if.policy;
  const MeasuredJob measured = cut_by(traced_job, policy);
  const auto coding = what_if.codec ? Coding{} : coding_of(measured, policy);
  if (!coding) return tl::unexpected(coding.error());
  const model::Profile profile = profile_of(measured, what_if, policy, *coding);
  const auto setup = setup_of(measured, what_if, profile, policy, *coding);
  if (!setup) return tl::unexpected(setup.error());
  const Steps& steps = what_if.briefly ? kFewSteps : kSteps;
  const sim::Options options = options_of(measured, profile, policy, steps, what_if);
  auto nodes = nodes_of(measured, what_if);
  auto outcome = simulated(*setup, profile, options, nodes);
  if (outcome && with_waits_of(*outcome, steps, what_if, measured, nodes))
    outcome = simulated(*setup, profile, options, nodes);
  if (!outcome) return tl::unexpected(outcome.error());
  const auto steps_us = simulated_steps_us(outcome->forward_began_us, steps.warmup);
  auto sorted = measured.steps_us;
  std::ranges::sort(sorted);
  return Prediction{.policy = policy,
                    .step_us_p10 = at_share(steps_us, 0.1),
                    .step_us_p50 = at_share(steps_us, 0.5),
                    .step_us_p90 = at_share(steps_us, 0.9),
                    .step_us_mean = mean_of(steps_us),
                    .compute_us = outcome->compute_us,
                    .coarse_step_us = coarse_step_us(profile, setup->codec, nodes),
                    .measured_step_us_p50 = at_share(sorted, 0.5),
                    .measured_step_us_mean = mean_of(sorted),
                    .updates_per_step = outcome->updates_per_step};
}

}  // namespace deft::replay
