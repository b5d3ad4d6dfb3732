#include "core/optimize/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <span>
#include <utility>

#include "core/base/config.h"
#include "core/base/policy_traits.h"
#include "core/model/link_names.h"
#include "core/optimize/replays.h"
#include "core/replay/quantiles.h"
#include "core/replay/replay.h"

namespace deft::optimize {
namespace {

constexpr double kLeastClimb = 0.001;  // a change that wins less is none
constexpr std::uint64_t kKb = 1024;
constexpr std::uint64_t kFirstBuckets = 2048 * kKb;  // where the ladder of bucket sizes is entered
constexpr std::size_t kMostBuckets = 1000;           // of a trace that are a start for other policies
constexpr std::uint64_t kLeastFloor = 64 * kKb, kMostFloor = 16'384 * kKb;  // of tensors that a codec encodes

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
bool uses_sizes(const std::string& policy, std::size_t links, const SearchLimits& limits) {
  if (!limits.speedups.used_sizes_only || links > 1) return true;
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
  const std::size_t links = best.settings.links.empty() ? measured.profile.links.size() : best.settings.links.size();
  const std::size_t end = uses_sizes(best.settings.policy, links, limits) ? kLadders.size() : 1;
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
      const bool sizes = uses_sizes(policy, measured.profile.links.size(), limits);
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

// The same candidates after a change of each of them. The job may not run with some.
std::vector<Candidate> changed(Replays& replays, std::vector<Candidate> candidates,
                               const std::function<void(Settings&)>& change) {
  for (Candidate& candidate : candidates) {
    change(candidate.settings);
    candidate.us = replays.us(candidate.settings);
  }
  std::erase_if(candidates, [](const Candidate& candidate) { return candidate.us <= 0; });
  return candidates;
}

// Some links keep policies from running at all, or from being good. So all policies are candidates, also with the sizes of the best.
std::vector<Candidate> on_links(Replays& replays, std::vector<Candidate> candidates, const SearchLimits& limits,
                                const Candidate& best, const std::vector<std::string>& links) {
  candidates.push_back(best);
  for (const std::string& policy : limits.policies) {
    candidates.push_back(best);
    candidates.back().settings.policy = policy;
  }
  candidates = changed(replays, std::move(candidates), [&](Settings& settings) { settings.links = links; });
  std::ranges::stable_sort(candidates, {}, &Candidate::us);
  if (candidates.size() > limits.climbed) candidates.resize(limits.climbed);
  return candidates;
}

// A running job keeps its links. An option can name a link only if all nodes call it so, and if no sign of its name means something else in
// that option or in a flag file.
bool may_leave_out_links(const replay::MeasuredJob& measured, const SearchLimits& limits) {
  const auto is_plain = [](const std::string& link) { return link.find_first_of(" ,#=") == std::string::npos; };
  return !limits.keeps_buckets && measured.profile.links.size() > 1 && !measured.links.empty() &&
         std::ranges::all_of(measured.links, is_plain);
}

// All but one of the links, and those of one backend alone: all links of another one may be what a policy cannot use.
std::set<std::vector<std::string>> fewer(const std::vector<std::string>& links) {
  std::set<std::vector<std::string>> sets;
  for (const std::string& link : links) {
    std::vector<std::string> others = links, alike = links;
    std::erase(others, link);
    std::erase_if(alike, [&](const auto& other) { return model::backend_of(other) != model::backend_of(link); });
    sets.insert(others);
    if (alike != links) sets.insert(alike);
  }
  return sets;
}

// The best with fewer links, then with fewer of these, and so on; or `best`.
Candidate on_fewer_links(Replays& replays, const std::vector<Candidate>& candidates,
                         const replay::MeasuredJob& measured, const SearchLimits& limits, Candidate best) {
  std::vector<std::string> links = links_of(measured);
  while (links.size() > 1) {
    Candidate next = best;
    for (const auto& some : fewer(links)) {
      const auto here = on_links(replays, candidates, limits, best, some);
      Candidate found = best_of(replays, here, measured, limits, best, kLeastGain);
      if (found.us < next.us) next = std::move(found);
    }
    if (next.settings == best.settings) return best;
    best = std::move(next);
    links = best.settings.links;
  }
  return best;
}

// Floors for the tensors that a codec encodes, each of which leaves more of them exact than the one before. Empty if the trace does not
// tell what a codec may encode.
std::vector<std::uint64_t> codec_floors(const replay::MeasuredJob& measured) {
  const auto config = replay::config_of(measured.options);
  if (!config || !measured.tensors) return {};
  std::vector<std::uint64_t> floors;
  std::uint64_t before = config->bytes("compression_min_bytes");
  for (std::uint64_t floor = kLeastFloor; floor <= kMostFloor; floor *= 4) {
    const auto is_left_out = [&](const trace::TraceGroup::Tensor& tensor) {
      return tensor.elements && tensor.elements->coded_bytes > 0 && tensor.bytes >= before && tensor.bytes < floor;
    };
    if (!std::ranges::any_of(measured.tensors->group.tensors, is_left_out)) continue;
    floors.push_back(floor);
    before = floor;
  }
  return floors;
}

// With a codec that leaves as many small tensors exact as make no step longer.
Candidate with_fewer_encoded(Replays& replays, const Candidate& encoded, const replay::MeasuredJob& measured) {
  Candidate best = encoded;
  for (const std::uint64_t bytes : codec_floors(measured)) {
    Candidate fewer = encoded;
    fewer.settings.codec_min_bytes = bytes;
    fewer.us = replays.us(fewer.settings);
    if (fewer.us > 0 && fewer.us < encoded.us * (1 + kLeastClimb) && fewer.us < best.us * (1 + kLeastClimb))
      best = std::move(fewer);
  }
  return best;
}

// The best with this codec, or `best`.
Candidate with_codec(Replays& replays, const std::vector<Candidate>& candidates, const replay::MeasuredJob& measured,
                     const SearchLimits& limits, const Candidate& best, const model::CodecCost& codec) {
  const auto encode = [&](Settings& settings) { settings.compression = codec.name; };
  const auto encoded = changed(replays, candidates, encode);
  Candidate found = best_of(replays, encoded, measured, limits, best, kLeastGain);
  const bool rounds = codec.wire_share < 1 && found.settings.compression == codec.name;
  return rounds ? with_fewer_encoded(replays, found, measured) : found;
}

// The time that the searches share: each has an equal part of it.
class SharedTime {
 public:
  SharedTime(Replays& replays, std::size_t searches)
      : replays_(replays), searches_(static_cast<double>(searches)), left_(searches_) {}
  void begin_next() { replays_.leave(--left_ / searches_); }

 private:
  Replays& replays_;
  const double searches_;
  double left_;
};

// The best settings with the traced links and codec; then, where they win kLeastGain beside those, with fewer links, and with a codec.
Result<std::vector<Candidate>> best_of_each_kind(Replays& replays, const replay::MeasuredJob& job,
                                                 const Candidate& traced, const SearchLimits& limits, Found& found) {
  const bool tries_links = may_leave_out_links(job, limits);
  SharedTime time(replays, 1 + (tries_links ? 1 : 0) + limits.codecs.size());
  time.begin_next();
  auto candidates = first_candidates(replays, job, traced.settings, limits);
  if (candidates.size() > limits.climbed) candidates.resize(limits.climbed);
  std::vector<Candidate> bests = {best_of(replays, candidates, job, limits, traced, 0)};
  if (limits.passes) {
    auto with_passes = after_passes(replays, job, limits, bests.back(), found.passes);
    if (!with_passes) return tl::unexpected(with_passes.error());
    bests.back() = *std::move(with_passes);
  }
  candidates.push_back(bests.back());
  const auto take = [&](Candidate best) {
    if (best.settings != bests.back().settings) bests.push_back(std::move(best));
  };
  if (tries_links) {
    time.begin_next();
    take(on_fewer_links(replays, candidates, job, limits, bests.back()));
    candidates.push_back(bests.back());
  }
  for (const model::CodecCost& codec : limits.codecs) {
    time.begin_next();
    take(with_codec(replays, candidates, job, limits, bests.back(), codec));
  }
  return bests;
}

// Each of them but the first must win kLeastGain beside the ones before it, by whole replays.
Candidate best_as_a_whole(Replays& replays, const std::vector<Candidate>& candidates) {
  Candidate best = replays.best_as_a_whole(candidates.front());
  for (const Candidate& candidate : std::span(candidates).subspan(1))
    if (Candidate whole = replays.best_as_a_whole(candidate); whole.us <= best.us * (1 - kLeastGain))
      best = std::move(whole);
  return best;
}

}  // namespace

std::map<std::string, std::string> Settings::options(const Settings& traced) const {
  std::map<std::string, std::string> options;
  if (policy != traced.policy) options["policy"] = policy;
  if (bucket_bytes != traced.bucket_bytes) options["bucketing"] = "uniform:" + std::to_string(bucket_bytes);
  if (partition_bytes != traced.partition_bytes) options["partition_bytes"] = std::to_string(partition_bytes);
  if (credit_bytes != traced.credit_bytes) options["credit_bytes"] = std::to_string(credit_bytes);
  if (compression != traced.compression) options["compression"] = compression;
  if (codec_min_bytes != traced.codec_min_bytes) options["compression_min_bytes"] = std::to_string(codec_min_bytes);
  if (links != traced.links) options["links"] = model::links_option(links);
  return options;
}

double Found::least_promise() const {
  const bool only_sizes = settings.policy == traced.policy && settings.bucket_bytes == traced.bucket_bytes &&
                          settings.compression == traced.compression && settings.links == traced.links;
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
  const auto bests = best_of_each_kind(replays, job, {*traced, found.traced_us}, limits, found);
  if (!bests) return tl::unexpected(bests.error());
  if (bests->back().settings != *traced)
    if (const Candidate best = best_as_a_whole(replays, *bests); best.us < found.traced_us)
      found.settings = best.settings, found.step_us = best.us;
  found.replays = replays.count();
  return found;
}

}  // namespace deft::optimize
