#include "core/plan/codec_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/plan/planner.h"

namespace deft::plan {
namespace {

constexpr double kEffort = 40'000;  // buckets * timetables: bounds the search
constexpr std::size_t kMostTries = 10, kLeastTries = 3;
constexpr std::size_t kMostRefined = 64;  // buckets that are looked at one by one
// Of the time that suffices, what links with room would take. A link that is always busy makes training wait when a time varies.
constexpr std::array kRoomyShares = {0.5, 0.65, 0.8};

}  // namespace

CodecSearch::CodecSearch(const model::Profile& profile, const PlanLimits& limits)
    : profile_(profile),
      limits_(limits),
      buckets_(profile.buckets.size()),
      last_(std::min(limits.codecs.last, profile.codecs.size() - 1)),
      exact_(profile),
      enough_us_((1 + std::max(limits.fresh_tolerance, limits.bubble_tolerance)) * exact_.compute_us() *
                 limits.capacity),
      choice_(options()) {
  limits_.max_staleness_steps = 0;
  for (const auto& bucket : profile.buckets) bytes_ += static_cast<double>(bucket.bytes);
}

// Of the profile's error an encoding leaves out so much: weighted by what may be encoded of all bytes.
double CodecSearch::error_of(model::BucketIndex bucket, model::CodecIndex codec) const {
  const auto& of = profile_.buckets[buckets_ - 1 - bucket];
  return static_cast<double>(of.bytes) * of.coded_share().share * profile_.codecs[codec].error;
}

double CodecSearch::error_of(const Codecs& codecs) const {
  double error = 0;
  for (model::BucketIndex b = 0; b < buckets_; ++b) error += error_of(b, codecs[b]);
  return error / bytes_;
}

// time_of(bucket of the profile, codec) gives microseconds.
template <typename TimeOf>
CodecSearch::Options CodecSearch::options_by(const TimeOf& time_of) const {
  Options options(buckets_);
  for (std::size_t b = 0; b < buckets_; ++b) {
    const std::size_t of_profile = buckets_ - 1 - b;
    for (std::size_t i = 0; i <= last_; ++i) {
      const auto codec = static_cast<model::CodecIndex>(i);
      options[b].push_back({time_of(of_profile, codec), error_of(static_cast<model::BucketIndex>(b), codec)});
      if (profile_.buckets[of_profile].coded_share().share == 0) break;  // other codecs are the same
    }
  }
  return options;
}

// The time of a bucket if all links share it.
CodecSearch::Options CodecSearch::options() const {
  return options_by([this](std::size_t bucket, model::CodecIndex codec) {
    double speed = 0;
    for (std::size_t link = 0; link < profile_.links.size(); ++link) {
      const double us = profile_.cost(bucket, link, codec).us(profile_.buckets[bucket].bytes);
      speed += 1 / std::max(us * (1 + limits_.jitter_margin), 1e-9);
    }
    return 1 / speed;
  });
}

// Any prices of the links' time that sum to 1 give a bound: a bucket goes to the link on which it costs least (Problem::generation_bound_us).
CodecSearch::Options CodecSearch::bounding_options() const {
  std::vector<double> price(profile_.links.size());
  double sum = 0;
  for (std::size_t link = 0; link < price.size(); ++link) {
    double total_us = 0;
    for (std::size_t b = 0; b < buckets_; ++b) total_us += profile_.comm_us(b, link);
    sum += price[link] = 1 / std::max(total_us, 1e-9);
  }
  return options_by([&](std::size_t bucket, model::CodecIndex codec) {
    double least_us = std::numeric_limits<double>::infinity();
    for (std::size_t link = 0; link < price.size(); ++link)
      least_us =
          std::min(least_us, price[link] / sum * profile_.cost(bucket, link, codec).us(profile_.buckets[bucket].bytes));
    return least_us;
  });
}

std::optional<CodecSearch::Candidate> CodecSearch::attempt(const Codecs& codecs) {
  effort_ += static_cast<double>(buckets_);
  auto table = fresh_timetable(Problem(profile_, codecs), limits_, enough_us_);
  if (!table) return std::nullopt;
  return Candidate{codecs, std::move(*table)};
}

// Nothing unless it is enough.
std::optional<CodecSearch::Candidate> CodecSearch::attempt_in_time(const Codecs& codecs) {
  if (Problem(profile_, codecs).generation_bound_us() > enough_us_) return std::nullopt;
  auto candidate = attempt(codecs);
  return candidate && is_enough(*candidate) ? std::move(candidate) : std::nullopt;
}

CodecSearch::Codecs CodecSearch::codecs_within(double budget_us) const {
  Codecs codecs;
  for (const std::size_t option : choice_.within(budget_us)) codecs.push_back(static_cast<model::CodecIndex>(option));
  return codecs;
}

CodecSearch::Codecs CodecSearch::last_codecs() const {
  Codecs codecs(buckets_, static_cast<model::CodecIndex>(last_));
  for (std::size_t b = 0; b < buckets_; ++b)
    if (profile_.buckets[buckets_ - 1 - b].coded_share().share == 0) codecs[b] = 0;
  return codecs;
}

// The codecs that take least time if all links share each bucket; or the last codec everywhere, because a bucket takes one link, and what
// is fastest on all of them may be slow there. Lateness costs more than a longer search, so all sizes of parts are tried before it.
std::optional<CodecSearch::Candidate> CodecSearch::with_fewest_bits() {
  const Codecs fastest = codecs_within(0), last = last_codecs();
  auto found = attempt(fastest);
  for (const Codecs* codecs : {&last, &fastest}) {
    if (found && is_enough(*found)) break;
    if (codecs == &fastest && fastest == last) break;  // it has just been tried
    auto table = fresh_timetable(Problem(profile_, *codecs), limits_);
    if (table && (!found || table->plan.step_us < found->table.plan.step_us))
      found = Candidate{*codecs, std::move(*table)};
  }
  return found;
}

// Gives buckets back bits that they need not give up, the largest error first.
void CodecSearch::refine(Candidate& candidate) {
  std::vector<model::BucketIndex> order;
  for (model::BucketIndex b = 0; b < buckets_; ++b)
    if (candidate.codecs[b] != 0) order.push_back(b);
  std::ranges::stable_sort(order, {}, [&](model::BucketIndex b) { return -error_of(b, candidate.codecs[b]); });
  if (order.size() > kMostRefined) order.resize(kMostRefined);
  for (const auto bucket : order)
    while (candidate.codecs[bucket] != 0 && effort_ < kEffort) {
      Codecs codecs = candidate.codecs;
      --codecs[bucket];
      auto better = attempt_in_time(codecs);
      if (!better) break;
      candidate = std::move(*better);
    }
}

// Gives up bits that cost no accuracy until the links have room.
void CodecSearch::make_room(Candidate& candidate) {
  for (const double share : kRoomyShares) {
    Codecs codecs = codecs_within(share * enough_us_);
    std::ranges::transform(codecs, candidate.codecs, codecs.begin(), [](auto a, auto b) { return std::max(a, b); });
    if (error_of(codecs) > limits_.codecs.negligible_error) continue;
    auto roomy = attempt_in_time(codecs);
    if (!roomy) continue;
    candidate = std::move(*roomy);
    return;
  }
}

// Of the largest budget that suffices.
CodecSearch::Candidate CodecSearch::with_most_bits(Candidate fewest) {
  const auto tries =
      std::clamp(static_cast<std::size_t>(kEffort / 4 / static_cast<double>(buckets_)), kLeastTries, kMostTries);
  Candidate found = std::move(fewest);
  double least_us = choice_.least_us(), most_us = std::max(least_us, enough_us_);
  for (std::size_t i = 0; i < tries; ++i) {
    const double budget_us = i == 0 ? most_us : (least_us + most_us) / 2;
    auto candidate = attempt_in_time(codecs_within(budget_us));
    if (candidate) {
      found = std::move(*candidate), least_us = budget_us;
      if (i == 0) break;
    } else {
      most_us = budget_us;
    }
  }
  refine(found);
  return found;
}

std::optional<Timetable> CodecSearch::run() {
  fewest_ = with_fewest_bits();
  if (!fewest_) return std::nullopt;
  return is_enough(*fewest_) ? best() : timetable_of(*fewest_);
}

std::optional<Timetable> CodecSearch::give_bits_back() {
  if (!fewest_ || is_enough(*fewest_)) return std::nullopt;
  enough_us_ = (1 + 1e-9) * fewest_->table.plan.step_us;
  return best();
}

Timetable CodecSearch::best() {
  Candidate found = with_most_bits(*fewest_);
  make_room(found);
  return timetable_of(std::move(found));
}

Timetable CodecSearch::timetable_of(Candidate found) const {
  model::Plan& plan = found.table.plan;
  plan.codec_error = error_of(found.codecs);
  plan.codec_error_bound = CodecChoice(bounding_options()).error_bound(std::max(enough_us_, plan.step_us)) / bytes_;
  plan.codecs = std::move(found.codecs);
  return std::move(found.table);
}

}  // namespace deft::plan
