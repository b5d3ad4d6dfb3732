#include "core/optimize/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "core/base/config.h"
#include "core/base/policy_traits.h"
#include "core/optimize/replays.h"
#include "core/replay/quantiles.h"
#include "core/replay/replay.h"

namespace deft::optimize {
namespace {

constexpr double kLeastClimb = 0.001;  // a change that wins less is none
constexpr std::uint64_t kKb = 1024;
constexpr std::uint64_t kFirstBuckets = 2048 * kKb;  // where the ladder of bucket sizes is entered
constexpr std::size_t kMostBuckets = 1000;           // of a trace that are a start for other policies

using Field = std::uint64_t Settings::*;
struct Ladder {
  Field field;
  std::uint64_t least, most;
};
// Buckets are the first, because climb() may leave them out.
constexpr std::array kLadders = {Ladder{&Settings::bucket_bytes, 64 * kKb, 65'536 * kKb},
                                 Ladder{&Settings::partition_bytes, 64 * kKb, 16'384 * kKb},
                                 Ladder{&Settings::credit_bytes, 256 * kKb, 65'536 * kKb}};

// The job as it is to run: buckets may be cut anew afterwards, unless they are kept.
replay::MeasuredJob job_within(const replay::MeasuredJob& measured, const SearchLimits& limits) {
  replay::MeasuredJob job = measured;
  if (limits.keeps_buckets) job.other_buckets.clear();
  return job;
}

Result<Settings> traced_settings(const replay::MeasuredJob& measured) {
  const auto config = replay::config_of(measured.options);
  if (!config) return tl::unexpected(config.error());
  return Settings{.policy = config->text("policy"),
                  .bucket_bytes = 0,
                  .partition_bytes = config->bytes("partition_bytes"),
                  .credit_bytes = config->bytes("credit_bytes")};
}

Error why_not_replayed(const replay::MeasuredJob& measured) {
  const auto prediction = replay::replay(measured, {});
  return prediction ? Error{ErrorKind::kInvalid, "the traced job cannot be replayed", {}, {}} : prediction.error();
}

// True if another size of parts or credit changes what the policy sends. On one link a policy that keeps the order of readiness
// neither cuts nor waits.
bool uses_sizes(const std::string& policy, const replay::MeasuredJob& measured, const SearchLimits& limits) {
  if (!limits.speedups.used_sizes_only || measured.profile.links.size() > 1) return true;
  const PolicyTraits* const traits = find_policy(policy);
  return traits == nullptr || traits->urgent_first;
}

// False: the ladder ends.
bool take_step(Settings& settings, const Ladder& ladder, bool up) {
  std::uint64_t& value = settings.*ladder.field;
  value = value == 0 ? kFirstBuckets : up ? value * 2 : value / 2;
  return value >= ladder.least && value <= ladder.most;
}

// Some sizes together, in one direction, as long as that helps. True: it did.
bool climb(Replays& replays, Candidate& best, std::span<const Ladder> ladders, bool up) {
  bool better = false;
  while (true) {
    Settings next = best.settings;
    for (const Ladder& ladder : ladders)
      if (!take_step(next, ladder, up)) return better;
    const double us = replays.us(next);
    if (us <= 0 || us > best.us * (1 - kLeastClimb)) return better;
    best = {std::move(next), us};
    better = true;
  }
}

void climb(Replays& replays, Candidate& best, const replay::MeasuredJob& measured, const SearchLimits& limits) {
  const std::size_t end = uses_sizes(best.settings.policy, measured, limits) ? kLadders.size() : 1;
  const auto ladders = std::span(kLadders).first(end).subspan(limits.keeps_buckets ? 1 : 0);
  bool better = true;
  while (better) {
    better = false;
    for (std::size_t count = 1; count <= 2; ++count)  // neighbours on the list depend on each other
      for (std::size_t first = 0; first + count <= ladders.size(); ++first)
        for (const bool up : {true, false}) better = climb(replays, best, ladders.subspan(first, count), up) || better;
  }
}

// The bucket sizes of the coarse grid; 0: those of the trace.
std::vector<std::uint64_t> first_buckets(const replay::MeasuredJob& measured, const SearchLimits& limits) {
  if (limits.keeps_buckets) return {0};
  if (!limits.speedups.coarse_first) return {0, 128 * kKb, 512 * kKb, 2048 * kKb, 8192 * kKb};
  if (measured.profile.buckets.size() > kMostBuckets) return {8192 * kKb, 2048 * kKb, 512 * kKb, 128 * kKb};
  return {8192 * kKb, 2048 * kKb, 512 * kKb, 0, 128 * kKb};
}

// Every policy with the traced sizes and with a coarse grid of others: a policy that is bad with the traced sizes may be the best with
// its own, and a climb from far away ends in a local minimum.
std::vector<Candidate> first_candidates(Replays& replays, const replay::MeasuredJob& measured, const Settings& traced,
                                        const SearchLimits& limits) {
  std::vector<Candidate> candidates;
  const auto add = [&](const Settings& settings) {
    if (const double us = replays.us(settings); us > 0) candidates.push_back({settings, us});
  };
  add(traced);
  for (const std::uint64_t bucket_bytes : first_buckets(measured, limits))
    for (const auto& policy : limits.policies) {
      const bool sizes = uses_sizes(policy, measured, limits);
      std::vector<std::uint64_t> parts = {traced.partition_bytes}, credits = {traced.credit_bytes};
      if (sizes) parts.insert(parts.end(), {128 * kKb, 512 * kKb, 2048 * kKb}), credits.push_back(1024 * kKb);
      for (const std::uint64_t partition_bytes : parts)
        for (const std::uint64_t credit_bytes : credits)
          if (const Settings other{policy, bucket_bytes, partition_bytes, credit_bytes}; other != traced) add(other);
    }
  std::ranges::stable_sort(candidates, {}, &Candidate::us);
  return candidates;
}

// The best of the candidates after a climb from each of them, or `best`. One must be faster by this share.
Candidate best_of(Replays& replays, const std::vector<Candidate>& candidates, const replay::MeasuredJob& measured,
                  const SearchLimits& limits, Candidate best, double least_gain) {
  const double least_us = best.us * (1 - least_gain);
  for (Candidate candidate : candidates) {
    climb(replays, candidate, measured, limits);
    if (candidate.us > 0 && candidate.us < std::min(best.us, least_us)) best = std::move(candidate);
  }
  return best;
}

// What the passes propose and climbs from there find, as long as that makes steps shorter.
Result<Candidate> after_passes(Replays& replays, const replay::MeasuredJob& measured, const SearchLimits& limits,
                               Candidate best, std::map<std::string, PassResult>& results) {
  while (true) {
    const auto proposals = limits.passes(best.settings, best.us);
    if (!proposals) return tl::unexpected(proposals.error());
    std::vector<Candidate> candidates;
    for (const Proposal& proposal : *proposals) {
      const double us = replays.us(proposal.settings);
      PassResult& result = results[proposal.pass];
      ++result.proposals;
      if (us <= 0) continue;
      result.best_us = result.best_us > 0 ? std::min(result.best_us, us) : us;
      candidates.push_back({proposal.settings, us});
    }
    Candidate next = best_of(replays, candidates, measured, limits, best, kLeastClimb);
    if (next.settings == best.settings) return best;
    best = std::move(next);
  }
}

// The same candidates with a codec.
std::vector<Candidate> encoded(Replays& replays, std::vector<Candidate> candidates, const std::string& codec) {
  for (Candidate& candidate : candidates) {
    candidate.settings.compression = codec;
    candidate.us = replays.us(candidate.settings);
  }
  std::erase_if(candidates, [](const Candidate& candidate) { return candidate.us <= 0; });
  return candidates;
}

}  // namespace

std::map<std::string, std::string> Settings::options(const Settings& traced) const {
  std::map<std::string, std::string> options;
  if (policy != traced.policy) options["policy"] = policy;
  if (bucket_bytes != traced.bucket_bytes) options["bucketing"] = "uniform:" + std::to_string(bucket_bytes);
  if (partition_bytes != traced.partition_bytes) options["partition_bytes"] = std::to_string(partition_bytes);
  if (credit_bytes != traced.credit_bytes) options["credit_bytes"] = std::to_string(credit_bytes);
  if (compression != traced.compression) options["compression"] = compression;
  return options;
}

double Found::least_promise() const {
  const bool only_sizes = settings.policy == traced.policy && settings.bucket_bytes == traced.bucket_bytes &&
                          settings.compression == traced.compression;
  return only_sizes ? std::max(kLeastPromiseOfSizes, error) : std::max(kLeastPromise, error + kFurtherError);
}

bool Found::worth_it() const { return step_us > 0 && step_us < traced_us * (1 - least_promise()); }

bool Found::worth_trying() const { return step_us > 0 && step_us < traced_us * (1 - std::max(kLeastGain, error)); }

std::vector<std::string> exact_policies() {
  std::vector<std::string> policies;
  for (const auto& traits : kPolicyTraits)
    if (is_exact(traits) && traits.id != PolicyId::kAuto) policies.emplace_back(traits.name);
  return policies;
}

double replayed_us(const replay::MeasuredJob& measured, const Settings& settings,
                   const std::vector<model::CodecCost>& codecs, bool briefly) {
  const auto prediction = predicted(measured, settings, {.policies = {}, .codecs = codecs}, briefly);
  return prediction ? prediction->step_us_p50 : 0;
}

Result<Found> search(const replay::MeasuredJob& measured, const SearchLimits& limits,
                     const std::function<double()>& time_left) {
  const auto traced = traced_settings(measured);
  if (!traced) return tl::unexpected(traced.error());
  if (limits.keeps_buckets && delays_updates(traced->policy))
    return fail(ErrorKind::kInvalid,
                "the job's policy is " + traced->policy + ", so it takes no settings while it runs",
                "look for settings of a new start: leave out --running");
  const double now_us = replayed_us(measured, *traced), measured_us = replay::median(measured.steps_us);
  if (now_us <= 0) return tl::unexpected(why_not_replayed(measured));
  const replay::MeasuredJob job = job_within(measured, limits);
  const auto now = predicted(job, *traced, limits, false);
  if (!now) return tl::unexpected(now.error());
  Found found{.traced = *traced, .settings = *traced, .traced_us = now->step_us_p50, .step_us = now->step_us_p50};
  if (measured_us > 0) found.error = std::abs(now_us / measured_us - 1);
  Replays replays(job, limits, now->updates_per_step, time_left);
  replays.know(*traced, found.traced_us);
  double phases_left = static_cast<double>(limits.codecs.size());  // which share the time
  const double phases = phases_left + 1;
  replays.leave(phases_left / phases);
  auto candidates = first_candidates(replays, job, *traced, limits);
  if (candidates.size() > limits.climbed) candidates.resize(limits.climbed);
  Candidate best = best_of(replays, candidates, job, limits, {*traced, found.traced_us}, 0);
  if (limits.passes) {
    auto with_passes = after_passes(replays, job, limits, best, found.passes);
    if (!with_passes) return tl::unexpected(with_passes.error());
    best = *std::move(with_passes);
  }
  candidates.push_back(best);
  const Candidate exact = best;
  for (const model::CodecCost& codec : limits.codecs) {
    replays.leave(--phases_left / phases);
    best = best_of(replays, encoded(replays, candidates, codec.name), job, limits, best, kLeastGain);
  }
  if (best.settings != *traced) best = replays.best_as_a_whole(best);
  if (best.settings.compression != exact.settings.compression)
    if (const Candidate whole = replays.best_as_a_whole(exact); best.us > whole.us * (1 - kLeastGain)) best = whole;
  if (best.us < found.traced_us) found.settings = best.settings, found.step_us = best.us;
  found.replays = replays.count();
  return found;
}

}  // namespace deft::optimize
