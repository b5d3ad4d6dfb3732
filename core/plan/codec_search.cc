#include "core/plan/codec_search.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/plan/planner.h"
#include "core/plan/schedule_builder.h"

namespace deft::plan {
namespace {

constexpr double kEffort = 40'000;  // buckets * timetables: bounds the search
constexpr double kLateEffort = 8;   // a late timetable takes the time of so many fresh ones
constexpr std::size_t kMostTries = 10, kLeastTries = 3;
constexpr std::size_t kMostRefined = 64;  // buckets that are looked at one by one
// Links should be busy for these shares of the time that suffices. A link that is always busy makes training wait when a time varies.
constexpr std::array kRoomyShares = {0.5, 0.65, 0.8};

double enough_time_us(const model::Profile& profile, const PlanLimits& limits) {
  return (1 + std::max(limits.fresh_tolerance, limits.bubble_tolerance)) * Problem(profile).compute_us() *
         limits.capacity;
}

// Updates a step of each bucket.
std::vector<double> rates_of(const model::Plan& plan, std::size_t buckets) {
  std::vector<double> rates;
  for (model::BucketIndex b = 0; b < buckets; ++b)
    rates.push_back(static_cast<double>(plan.cycles.of(b).generations.size()) / plan.cycles.period_steps());
  return rates;
}

// The steps by which updates come late: a sum over the generations of all bytes.
double lateness(const model::Plan& plan, const Problem& problem) {
  double sum = 0;
  for (model::BucketIndex b = 0; b < problem.buckets(); ++b)
    for (const auto& generation : plan.cycles.of(b).generations)
      sum += static_cast<double>(problem.bucket(b).bytes) * generation.staleness();
  return sum;
}

// The timetable with the update ratio, the stale buckets and the parts of `table`, for other times.
std::optional<Timetable> rebuilt(const Timetable& table, const Problem& problem, const PlanLimits& limits) {
  const Problem counted_on = problem.scaled(limits.capacity, 1 + limits.jitter_margin);
  const auto& own = table.plan.cycles.own;
  const auto& cycle = own.empty() ? table.plan.cycles.usual : own.begin()->second;
  const UpdateRatio ratio{static_cast<std::uint32_t>(cycle.generations.size()), cycle.period_steps};
  std::vector<bool> stale(problem.buckets());
  for (const auto& of_bucket : own) stale[of_bucket.first] = true;
  return timed(own.empty() ? build_uniform(counted_on, limits, ratio, table.part_us)
                           : build_mixed(counted_on, limits, stale, ratio, table.part_us),
               problem);
}

}  // namespace

CodecSearch::CodecSearch(const model::Profile& profile, const PlanLimits& limits)
    : profile_(profile),
      limits_(limits),
      prices_(profile, limits),
      enough_us_(enough_time_us(profile, limits)),
      choice_(prices_.options()) {
  limits_.max_staleness_steps = 0;
}

CodecSearch::CodecSearch(const model::Profile& profile, const PlanLimits& limits, Timetable late)
    : profile_(profile),
      limits_(limits),
      prices_(profile, limits, rates_of(late.plan, profile.buckets.size())),
      enough_us_(enough_time_us(profile, limits)),
      choice_(prices_.options()),
      is_late_(true) {
  Codecs codecs = late.plan.codecs;
  fewest_ = Candidate{std::move(codecs), std::move(late)};
}

std::optional<CodecSearch::Candidate> CodecSearch::attempt(const Codecs& codecs) {
  effort_ += static_cast<double>(codecs.size());
  auto table = fresh_timetable(Problem(profile_, codecs), limits_, enough_us_);
  if (!table) return std::nullopt;
  return Candidate{codecs, std::move(*table)};
}

// Nothing if more bits make an update later: lateness costs more.
std::optional<CodecSearch::Candidate> CodecSearch::attempt_late(const Codecs& codecs) {
  effort_ += kLateEffort * static_cast<double>(codecs.size());
  const Problem problem(profile_, codecs);
  const model::Plan& late = fewest_->table.plan;
  auto table = rebuilt(fewest_->table, problem, limits_);
  if (!table || table->plan.max_staleness() > late.max_staleness()) return std::nullopt;
  if (lateness(table->plan, problem) > lateness(late, problem)) return std::nullopt;
  return Candidate{codecs, std::move(*table)};
}

// Nothing unless it is enough.
std::optional<CodecSearch::Candidate> CodecSearch::attempt_in_time(const Codecs& codecs) {
  if (is_late_) {
    auto late = attempt_late(codecs);
    return late && is_enough(*late) ? std::move(late) : std::nullopt;
  }
  if (Problem(profile_, codecs).generation_bound_us() > enough_us_) return std::nullopt;
  auto candidate = attempt(codecs);
  return candidate && is_enough(*candidate) ? std::move(candidate) : std::nullopt;
}

CodecSearch::Codecs CodecSearch::codecs_within(double budget_us) const {
  Codecs codecs;
  for (const std::size_t option : choice_.within(budget_us)) codecs.push_back(static_cast<model::CodecIndex>(option));
  return codecs;
}

// The codecs that take least time if all links share each bucket; or the last codec everywhere, because a bucket takes one link, and what
// is fastest on all of them may be slow there. Lateness costs more than a longer search, so all sizes of parts are tried before it.
std::optional<CodecSearch::Candidate> CodecSearch::with_fewest_bits() {
  const Codecs fastest = codecs_within(0), last = prices_.last_codecs();
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
  for (model::BucketIndex b = 0; b < candidate.codecs.size(); ++b)
    if (candidate.codecs[b] != 0) order.push_back(b);
  std::ranges::stable_sort(order, {}, [&](model::BucketIndex b) { return -prices_.error_of(b, candidate.codecs[b]); });
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
    if (prices_.error_of(codecs) > limits_.codecs.negligible_error) continue;
    auto roomy = attempt_in_time(codecs);
    if (!roomy) continue;
    candidate = std::move(*roomy);
    return;
  }
}

// The candidate of the largest budget that suffices.
CodecSearch::Candidate CodecSearch::with_most_bits(Candidate fewest) {
  const double effort = (is_late_ ? kLateEffort : 1) * static_cast<double>(profile_.buckets.size());
  const auto tries = std::clamp(static_cast<std::size_t>(kEffort / 4 / effort), kLeastTries, kMostTries);
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

Timetable CodecSearch::give_late_bits_back(double most_us) {
  const double error = prices_.error_of(fewest_->codecs);
  enough_us_ = std::max(std::min(enough_us_, most_us), (1 + 1e-9) * fewest_->table.plan.step_us);
  if (error <= limits_.codecs.negligible_error) return timetable_of(*fewest_);
  Timetable found = best();
  return found.plan.codec_error < error ? std::move(found) : timetable_of(*fewest_);
}

Timetable CodecSearch::best() {
  Candidate found = with_most_bits(*fewest_);
  make_room(found);
  return timetable_of(std::move(found));
}

Timetable CodecSearch::timetable_of(Candidate found) const {
  model::Plan& plan = found.table.plan;
  plan.codec_error = prices_.error_of(found.codecs);
  plan.codec_error_bound = prices_.error_bound(std::max(enough_us_, plan.step_us));
  plan.codecs = std::move(found.codecs);
  return std::move(found.table);
}

}  // namespace deft::plan
