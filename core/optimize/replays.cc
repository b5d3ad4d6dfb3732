#include "core/optimize/replays.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "core/base/policy_traits.h"

namespace deft::optimize {
namespace {

constexpr std::size_t kFinalists = 3;  // that are replayed as a whole

// Settings of one kind have the same price beside time: the same gradients are rounded, and the same links are given up.
bool is_same_kind(const Settings& a, const Settings& b) {
  return a.compression == b.compression && a.codec_min_bytes == b.codec_min_bytes && a.links == b.links;
}

}  // namespace

std::vector<std::string> links_of(const replay::MeasuredJob& measured) {
  std::vector<std::string> links;
  for (const auto& link : measured.profile.links) links.push_back(link.name);
  return links;
}

Result<replay::Prediction> predicted(const replay::MeasuredJob& measured, const Settings& settings,
                                     const SearchLimits& limits, bool briefly,
                                     const std::function<bool()>& is_stopped) {
  if (settings.codec_min_bytes > 0) {
    const auto less_coded = replay::with_codec_floor(measured, settings.codec_min_bytes);
    if (!less_coded) return tl::unexpected(less_coded.error());
    Settings others = settings;
    others.codec_min_bytes = 0;
    return predicted(*less_coded, others, limits, briefly, is_stopped);
  }
  const std::string bucketing =
      settings.bucket_bytes > 0 ? "uniform:" + std::to_string(settings.bucket_bytes) : "profile";
  auto changed = replay::with_buckets(replay::cut_by(measured, settings.policy), bucketing);
  if (!changed) return tl::unexpected(changed.error());
  changed->options["partition_bytes"] = std::to_string(settings.partition_bytes);
  changed->options["credit_bytes"] = std::to_string(settings.credit_bytes);
  replay::WhatIf what_if{
      .policy = settings.policy, .memory = limits.memory, .briefly = briefly, .is_stopped = is_stopped};
  for (const std::string& link : links_of(*changed))
    if (!settings.links.empty() && std::ranges::find(settings.links, link) == settings.links.end())
      what_if.link_speed[link] = 0;
  if (!settings.compression.empty()) {
    const auto codec = std::ranges::find(limits.codecs, settings.compression, &model::CodecCost::name);
    if (codec == limits.codecs.end())
      return fail(ErrorKind::kInvalid, "no codec is called '" + settings.compression + "'");
    what_if.codec = *codec;
  }
  return replay::replay(*changed, what_if);
}

bool delays_updates(const std::string& policy) {
  const PolicyTraits* const traits = find_policy(policy);
  return traits != nullptr && traits->delays_updates;
}

double Replays::us(const Settings& settings) {
  if (const auto known = known_.find(settings); known != known_.end()) return known->second.us;
  const bool is_brief = limits_.speedups.brief_replays && !delays_updates(settings.policy);
  const auto us = replayed(settings, is_brief);
  if (!us) return 0;
  known_[settings] = {*us, !is_brief};
  return *us;
}

Candidate Replays::best_as_a_whole(const Candidate& first) {
  std::vector<Candidate> finalists;
  for (const auto& [settings, known] : known_)
    if (known.us > 0 && is_same_kind(settings, first.settings)) finalists.push_back({settings, known.us});
  const auto end = finalists.begin() + static_cast<std::ptrdiff_t>(std::min(finalists.size(), kFinalists));
  std::ranges::partial_sort(finalists, end, {}, [](const Candidate& c) { return std::tie(c.us, c.settings); });
  finalists.erase(end, finalists.end());
  Candidate best{first.settings, 0};
  for (const Candidate& finalist : finalists) {
    const bool is_whole = known_.at(finalist.settings).is_whole;
    const double us = is_whole ? finalist.us : replayed(finalist.settings, false).value_or(0);
    if (us > 0 && (best.us <= 0 || us < best.us)) best = {finalist.settings, us};
  }
  return best;
}

std::optional<double> Replays::replayed(const Settings& settings, bool briefly) {
  if (!have_time()) return std::nullopt;
  const auto prediction = predicted(measured_, settings, limits_, briefly, [this] { return !have_time(); });
  if (!prediction && prediction.error().kind == ErrorKind::kUnavailable) return std::nullopt;
  ++count_;
  const bool counts =
      prediction && (!delays_updates(settings.policy) || !replay::makes_fewer_updates(*prediction, updates_));
  const double us = counts ? prediction->step_us_p50 : 0;
  if (limits_.tried) limits_.tried(settings, us);
  return us;
}

}  // namespace deft::optimize
