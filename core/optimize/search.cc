#include "core/optimize/search.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <utility>

#include "core/base/config.h"
#include "core/base/policy_traits.h"
#include "core/model/link_names.h"
#include "core/optimize/climber.h"
#include "core/optimize/codec_floors.h"
#include "core/optimize/proposals.h"
#include "core/optimize/replays.h"
#include "core/replay/quantiles.h"
#include "core/replay/replay.h"

namespace deft::optimize {
namespace {

constexpr std::uint64_t kKb = 1024;
constexpr std::size_t kMostBuckets = 1000;  // of a trace that are a start for other policies

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

// A running job keeps its links.
bool may_leave_out_links(const replay::MeasuredJob& measured, const SearchLimits& limits) {
  return !limits.keeps_buckets && why_links_stay(measured).empty();
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
Candidate on_fewer_links(const Climber& climber, Replays& replays, const std::vector<Candidate>& candidates,
                         const SearchLimits& limits, Candidate best, std::vector<std::string> links) {
  while (links.size() > 1) {
    Candidate next = best;
    for (const auto& some : fewer(links)) {
      const auto here = on_links(replays, candidates, limits, best, some);
      Candidate found = climber.best_of(here, best, kLeastGain);
      if (found.us < next.us) next = std::move(found);
    }
    if (next.settings == best.settings) return best;
    best = std::move(next);
    links = best.settings.links;
  }
  return best;
}

// With a codec that leaves as many small tensors exact as make no step longer.
Candidate with_fewer_encoded(Replays& replays, const Candidate& encoded, const replay::MeasuredJob& measured) {
  Candidate best = encoded;
  for (const std::uint64_t bytes : codec_floors(measured, encoded.settings.codec_min_bytes)) {
    Candidate fewer = encoded;
    fewer.settings.codec_min_bytes = bytes;
    fewer.us = replays.us(fewer.settings);
    if (fewer.us > 0 && fewer.us < encoded.us * (1 + kLeastClimb) && fewer.us < best.us * (1 + kLeastClimb))
      best = std::move(fewer);
  }
  return best;
}

// The time that the searches share: each has an equal part of it.
class SharedTime {
 public:
  SharedTime(Replays& replays, std::size_t searches)
      : replays_(replays), searches_(static_cast<double>(searches)), left_(searches_) {}
  void begin_next() { replays_.leave(kForWholeReplays + (1 - kForWholeReplays) * --left_ / searches_); }
  // With whole replays, in all the time that is left.
  void end() { replays_.leave(0); }

 private:
  Replays& replays_;
  const double searches_;
  double left_;
};

// The best settings with the traced links and codec; then, if they win kLeastGain beside those, with fewer links, and with codecs.
class BestOfEachKind {
 public:
  BestOfEachKind(Replays& replays, const replay::MeasuredJob& job, const SearchLimits& limits, Found& found)
      : climber_(replays, job, limits), replays_(replays), job_(job), limits_(limits), found_(found) {}

  Result<void> with_all_links(const Candidate& traced) {
    candidates_ = first_candidates(replays_, job_, traced.settings, limits_);
    if (candidates_.size() > limits_.climbed) candidates_.resize(limits_.climbed);
    return take(climber_.best_of(candidates_, traced, 0));
  }
  Result<void> with_fewer_links() {
    return take(on_fewer_links(climber_, replays_, candidates_, limits_, bests_.back(), links_of(job_)));
  }
  Result<void> with_codec(const model::CodecCost& codec) {
    const auto encoded = changed(replays_, candidates_, [&](Settings& settings) { settings.compression = codec.name; });
    Candidate best = climber_.best_of(encoded, bests_.back(), kLeastGain);
    const bool rounds = codec.wire_share < 1 && best.settings.compression == codec.name;
    return take(rounds ? with_fewer_encoded(replays_, best, job_) : std::move(best));
  }
  [[nodiscard]] const std::vector<Candidate>& bests() const { return bests_; }

 private:
  // Asks the passes about the settings that are new. Codecs are tried with the settings that were found without a codec.
  Result<void> take(const Candidate& best) {
    if (!bests_.empty() && best.settings == bests_.back().settings) return {};
    const auto with_passes = after_passes(climber_, replays_, job_, limits_, best, found_);
    if (!with_passes) return tl::unexpected(with_passes.error());
    bests_.insert(bests_.end(), with_passes->begin(), with_passes->end());
    if (best.settings.compression.empty()) candidates_.push_back(bests_.back());
    return {};
  }

  Climber climber_;
  Replays& replays_;
  const replay::MeasuredJob& job_;
  const SearchLimits& limits_;
  Found& found_;
  std::vector<Candidate> candidates_, bests_;
};

Result<std::vector<Candidate>> best_of_each_kind(Replays& replays, const replay::MeasuredJob& job,
                                                 const Candidate& traced, const SearchLimits& limits, Found& found) {
  const bool tries_links = may_leave_out_links(job, limits);
  SharedTime time(replays, 1 + (tries_links ? 1 : 0) + limits.codecs.size());
  BestOfEachKind search(replays, job, limits, found);
  time.begin_next();
  auto ok = search.with_all_links(traced);
  if (ok && tries_links) {
    time.begin_next();
    ok = search.with_fewer_links();
  }
  for (std::size_t i = 0; ok && i < limits.codecs.size(); ++i) {
    time.begin_next();
    ok = search.with_codec(limits.codecs[i]);
  }
  time.end();
  if (!ok) return tl::unexpected(ok.error());
  return search.bests();
}

// Each of them but the first must win kLeastGain beside the ones before it, by whole replays. Its `us` is 0 if there was no time for any.
Candidate best_as_a_whole(Replays& replays, const std::vector<Candidate>& candidates) {
  Candidate best = replays.best_as_a_whole(candidates.front());
  for (const Candidate& candidate : std::span(candidates).subspan(1))
    if (Candidate whole = replays.best_as_a_whole(candidate); whole.us > 0 && whole.us <= best.us * (1 - kLeastGain))
      best = std::move(whole);
  return best;
}

// `found` has the traced settings, and what they take.
Result<void> look_for_better(Replays& replays, const replay::MeasuredJob& job, const SearchLimits& limits,
                             Found& found) {
  const auto bests = best_of_each_kind(replays, job, {found.traced, found.traced_us}, limits, found);
  if (!bests) return tl::unexpected(bests.error());
  if (bests->back().settings == found.traced) return {};
  const Candidate best = best_as_a_whole(replays, *bests);
  found.ran_out_of_time = best.us <= 0 && !replays.have_time();
  if (best.us > 0 && best.us < found.traced_us) found.settings = best.settings, found.step_us = best.us;
  return {};
}

// What replay gets wrong of the traced job, which takes `replayed_us` by replay: a share.
double error_of(const replay::MeasuredJob& measured, double replayed_us) {
  const double measured_us = replay::median(measured.steps_us);
  return measured_us > 0 ? std::abs(replayed_us / measured_us - 1) : 0;
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
                          settings.compression == traced.compression &&
                          settings.codec_min_bytes == traced.codec_min_bytes && settings.links == traced.links;
  return only_sizes ? std::max(kLeastPromiseOfSizes, error) : std::max(kLeastPromise, error + kFurtherError);
}

bool Found::worth_it() const { return step_us > 0 && step_us < traced_us * (1 - least_promise()); }

bool Found::worth_trying() const { return step_us > 0 && step_us < traced_us * (1 - std::max(kLeastGain, error)); }

std::string why_links_stay(const replay::MeasuredJob& measured) {
  if (measured.profile.links.size() < 2) return "the job has used no other link";
  if (measured.links.empty()) return "its nodes call their links by different names";
  for (const std::string& link : measured.links)
    if (link.find_first_of(" ,#=") != std::string::npos) return "no option can name its link '" + link + "'";
  return "";
}

std::vector<std::string> exact_policies() {
  std::vector<std::string> policies;
  for (const auto& traits : kPolicyTraits)
    if (is_exact(traits) && traits.id != PolicyId::kAuto) policies.emplace_back(traits.name);
  return policies;
}

double replayed_us(const replay::MeasuredJob& measured, const Settings& settings,
                   const std::vector<model::CodecCost>& codecs, bool briefly, const std::function<bool()>& is_stopped) {
  const auto prediction = predicted(measured, settings, {.policies = {}, .codecs = codecs}, briefly, is_stopped);
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
  const replay::MeasuredJob job = job_within(measured, limits);
  const std::function<bool()> is_over = [&] { return time_left() <= 0; };
  Found found{.traced = *traced, .settings = *traced};
  const auto now = predicted(job, *traced, limits, false, is_over);
  if (!now && now.error().kind == ErrorKind::kUnavailable) return found.ran_out_of_time = true, found;
  if (!now) return tl::unexpected(now.error());
  if (now->step_us_p50 <= 0) return fail(ErrorKind::kInvalid, "the traced job cannot be replayed");
  found.traced_us = found.step_us = now->step_us_p50;
  found.error = error_of(
      measured, limits.memory.is_as_traced() ? found.traced_us : replayed_us(measured, *traced, {}, false, is_over));
  Replays replays(job, limits, now->updates_per_step, time_left);
  replays.know(*traced, found.traced_us);
  if (auto ok = look_for_better(replays, job, limits, found); !ok) return tl::unexpected(ok.error());
  found.replays = replays.count();
  return found;
}

}  // namespace deft::optimize
