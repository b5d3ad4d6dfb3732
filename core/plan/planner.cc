#include "core/plan/planner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "core/plan/codec_search.h"
#include "core/plan/schedule_builder.h"

namespace deft::plan {
namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();
constexpr double kWaitingAccepted = 1.03;    // of compute, where none within the tolerance is found
constexpr double kRounding = 1e-6;           // of compute: not waiting but arithmetic
constexpr std::uint32_t kLongestCycle = 64;  // steps: every rate has one within 2 % below it
constexpr double kRateGrid = 0.006;          // ratios closer than this are one: the shortest cycle stands for them
constexpr double kPartsOfACycle = 40'000;    // generations * buckets: bounds the time of one candidate
constexpr double kEffort = 400'000;          // generations * buckets of all candidates: bounds the search
constexpr std::size_t kPatience = 10;  // ratios that fail one after the other before the search takes long strides
constexpr double kStride = 0.9;
constexpr std::uint32_t kShortCycle = 6;  // steps: ratios so simple are never strode over
constexpr std::uint32_t kPlainCycle = 3;  // steps: ratios so plain are tried with parts of every size
// The longest part, as shares of compute. Two of them tell if a ratio is worth more tries. Two more are usual. The last two are for
// plain cycles, and for synchronous plans, in which urgent buckets wait for every part that is on its way.
constexpr std::array kPartShares = {0.04, 0.5, 0.15, 8.0, 0.015, 0.005};
constexpr std::size_t kTelling = 2;
constexpr std::size_t kUsual = 4;
constexpr std::array<std::size_t, 2> kAnyFresh = {0, 5};  // find nearly every synchronous plan that is fast enough

std::uint32_t merged_steps(UpdateRatio ratio) { return (ratio.steps + ratio.generations - 1) / ratio.generations; }

// Update ratios up to `fastest` updates a step, the fastest first.
std::vector<UpdateRatio> ratios(double fastest, const PlanLimits& limits, std::size_t buckets) {
  if (limits.max_staleness_steps == 0) return {{1, 1}};
  const auto most = static_cast<std::uint32_t>(std::max(1.0, kPartsOfACycle / static_cast<double>(buckets)));
  const std::uint32_t longest = std::max(kLongestCycle, limits.max_merged_steps);
  std::map<int, UpdateRatio> grid;  // by the rate's place on a logarithmic grid; whole numbers of steps have their own
  for (std::uint32_t steps = 1; steps <= longest; ++steps)
    for (std::uint32_t u = 1; u <= std::min(steps, most); ++u) {
      const UpdateRatio ratio{u, steps};
      if (merged_steps(ratio) <= limits.max_merged_steps && ratio.rate() <= fastest)
        grid.emplace(static_cast<int>(-std::log(ratio.rate()) / kRateGrid), ratio);
    }
  std::vector<UpdateRatio> out;
  for (const auto& [place, ratio] : grid) out.push_back(ratio);
  if (out.empty()) out.push_back({1, limits.max_merged_steps});
  return out;
}

struct Candidate {
  Timetable table;
  int waiting = 2;  // 0: none to speak of, 1: accepted, 2: more
};

double mean_staleness(const model::Plan& plan) {
  double sum = 0;
  const auto& generations = plan.cycles.usual.generations;
  for (const auto& generation : generations) sum += generation.staleness();
  return sum / static_cast<double>(generations.size());
}

// Merit of two candidates whose rates count as equal.
bool better(const Candidate& a, const Candidate& b) {
  const auto merit = [](const Candidate& c) {
    const model::UpdateCycle& usual = c.table.plan.cycles.usual;
    const double parts = static_cast<double>(c.table.parts()) / static_cast<double>(usual.generations.size());
    const double step_us = c.waiting == 0 ? 0 : std::floor(c.table.plan.step_us / c.table.plan.compute_us * 1000);
    const double steps_per_update = c.waiting == 0 ? 0 : 1 / c.table.plan.updates_per_step();
    return std::make_tuple(c.waiting, step_us, steps_per_update, c.table.plan.max_staleness(),
                           mean_staleness(c.table.plan), parts, usual.period_steps);
  };
  return merit(a) < merit(b);
}

class Search {
 public:
  // Ends with the first timetable whose step takes at most `enough_us`.
  Search(const Problem& problem, const PlanLimits& limits, double enough_us = 0)
      : problem_(problem),
        limits_(limits),
        counted_on_(problem.scaled(limits.capacity, 1 + limits.jitter_margin)),
        enough_us_(enough_us) {}

  std::optional<Timetable> run();

 private:
  [[nodiscard]] double part_us(std::size_t i) const { return kPartShares[i] * counted_on_.compute_us(); }
  [[nodiscard]] bool spent() const { return effort_ > kEffort; }
  [[nodiscard]] bool has_enough() const { return best_ && best_->table.plan.step_us <= enough_us_; }
  // Builds one plan and keeps it if it is the best yet. Candidate::waiting is the time that it made the training wait.
  int attempt(UpdateRatio ratio, std::size_t share);
  int attempt_all(UpdateRatio ratio);

  const Problem& problem_;
  PlanLimits limits_;
  Problem counted_on_;
  double enough_us_;
  std::optional<Candidate> best_;
  double effort_ = 0;
};

int Search::attempt(UpdateRatio ratio, std::size_t share) {
  effort_ += static_cast<double>(ratio.generations) * static_cast<double>(problem_.buckets());
  auto table = timed(build_uniform(counted_on_, limits_, ratio, part_us(share)), problem_);
  if (!table) return 2;
  const double step_share = table->plan.step_us / (problem_.compute_us() * limits_.capacity);
  const int waiting = step_share <= 1 + kRounding + limits_.bubble_tolerance ? 0
                      : step_share <= kWaitingAccepted                       ? 1
                                                                             : 2;
  Candidate candidate{std::move(*table), waiting};
  if (!best_ || better(candidate, *best_)) best_ = std::move(candidate);
  return waiting;
}

int Search::attempt_all(UpdateRatio ratio) {
  int least = 2;
  if (enough_us_ > 0) {
    for (const std::size_t i : kAnyFresh)
      if (!has_enough()) least = std::min(least, attempt(ratio, i));
    return least;
  }
  const bool synchronous = limits_.max_staleness_steps == 0;
  const bool plain = ratio.steps <= kPlainCycle;
  for (std::size_t i = 0; i < kPartShares.size(); ++i) {
    const bool promising = i < kTelling || (least == 0 && i < kUsual);
    if (promising || synchronous || (plain && least > 0)) least = std::min(least, attempt(ratio, i));
  }
  return least;
}

std::optional<Timetable> Search::run() {
  const double fastest = std::min(1.0, counted_on_.compute_us() / counted_on_.generation_bound_us());
  const auto list = ratios(fastest, limits_, problem_.buckets());
  double found = 0;  // the rate of the fastest ratio without waiting
  double below = 1;  // look only at rates up to this
  std::size_t failed = 0;
  for (const UpdateRatio ratio : list) {
    if (found > 0 && (ratio.rate() < found * (1 - limits_.rate_tolerance) || spent())) break;
    if (ratio.rate() > below && ratio.steps > kShortCycle && ratio.rate() != list.back().rate()) continue;
    if (attempt_all(ratio) == 0) {
      if (found == 0) found = ratio.rate();
    } else if (found == 0 && ++failed > kPatience) {
      below = ratio.rate() * kStride;
    }
  }
  if (!best_) {  // overloaded, and a backlog as long as the cap allows does not fit into the arena
    limits_.max_staleness_steps = std::min(limits_.max_staleness_steps, limits_.max_generations - 2);
    attempt_all({1, 1});
  }
  return best_ ? std::optional(std::move(best_->table)) : std::nullopt;
}

// True if freshness is worth more than the last of the waiting, and lateness is allowed at all.
bool prefers_fresh(const PlanLimits& limits) {
  return limits.max_staleness_steps > 0 &&
         (limits.fresh_tolerance > 0 || limits.least_stale_gain > 0 || limits.stale_share < 1);
}

// Gives up nothing if updates are in time then, else bits, else freshness.
class Preference {
 public:
  Preference(const model::Profile& profile, const PlanLimits& limits)
      : profile_(profile),
        limits_(limits),
        exact_(profile),
        enough_us_((1 + std::max(limits.fresh_tolerance, has_codecs() ? limits.bubble_tolerance : 0)) *
                   exact_.compute_us() * limits.capacity) {}

  std::optional<Timetable> run() {
    if (!has_codecs() && !prefers_fresh(limits_)) return Search(exact_, limits_).run();
    std::optional<Timetable> found;
    // With codecs an exact plan that cannot be in time is not looked for.
    if (!has_codecs() || exact_.generation_bound_us() <= enough_us_) found = fresh_timetable(exact_, limits_);
    if (is_enough(found)) return found;
    std::optional<CodecSearch> codecs;
    bool is_coded = false;
    if (has_codecs()) {
      auto coded = codecs.emplace(profile_, limits_).run();
      is_coded = coded && improves(*coded, found);
      if (is_coded) found = std::move(coded);
    }
    if (is_enough(found)) return found;
    if (limits_.max_staleness_steps > 0) {
      auto late = stale(found);
      const double most_us = found ? (1 - limits_.least_stale_gain) * found->plan.step_us : kUnlimited;
      if (late && late->plan.is_late() && late->plan.step_us <= most_us)
        return late_with_bits_back(*std::move(late), most_us);
      if (late && !late->plan.is_late() && improves(*late, found)) found = std::move(late);
    }
    return is_coded ? with_bits_back(*codecs, *std::move(found)) : std::move(found);
  }

 private:
  [[nodiscard]] bool has_codecs() const { return profile_.codecs.size() > 1 && limits_.codecs.last > 0; }
  [[nodiscard]] bool is_enough(const std::optional<Timetable>& table) const {
    return table && table->plan.step_us <= enough_us_;
  }
  static bool improves(const Timetable& table, const std::optional<Timetable>& on) {
    return !on || table.plan.step_us < on->plan.step_us;
  }

  // A fresh plan with the fewest bits waits nevertheless. So it takes only the bits that this step needs.
  static Timetable with_bits_back(CodecSearch& codecs, Timetable fewest) {
    if (fewest.plan.codec_error <= 0) return fewest;
    auto found = codecs.give_bits_back();
    const bool as_fast = found && found->plan.step_us <= (1 + 2e-9) * fewest.plan.step_us;
    return as_fast && found->plan.codec_error < fewest.plan.codec_error ? *std::move(found) : std::move(fewest);
  }

  // A late plan gave up freshness for time on the links. If time is left, buckets get more bits, if that lowers the error.
  Timetable late_with_bits_back(Timetable late, double most_us) const {
    if (late.plan.codecs.empty()) return late;
    CodecSearch search(profile_, limits_, std::move(late));
    return search.give_late_bits_back(most_us);
  }

  // With as few bits as are allowed, if any are.
  std::optional<Timetable> stale(std::optional<Timetable> fresh) {
    const std::vector<model::CodecIndex> codecs = fresh ? fresh->plan.codecs : std::vector<model::CodecIndex>{};
    const double error = fresh ? fresh->plan.codec_error : 0, bound = fresh ? fresh->plan.codec_error_bound : 0;
    const Problem problem(profile_, codecs);
    std::optional<Timetable> found = std::move(fresh);
    if (auto mixed = stale_timetable(problem, limits_); mixed && improves(*mixed, found)) found = std::move(mixed);
    if (!is_enough(found) && limits_.stale_share >= 1) found.reset();
    if (!found) found = Search(problem, limits_).run();
    if (!found) return found;
    found->plan.codecs = codecs, found->plan.codec_error = error, found->plan.codec_error_bound = bound;
    return found;
  }

  const model::Profile& profile_;
  const PlanLimits& limits_;
  Problem exact_;
  double enough_us_;
};

}  // namespace

Result<void> check_limits(const PlanLimits& limits) {
  const auto refuse = [](const char* what) { return fail(ErrorKind::kInvalid, what); };
  if (limits.max_merged_steps == 0 || limits.max_merged_steps > 1024)
    return refuse("max_merged_steps is not 1 to 1024");
  if (limits.max_staleness_steps > 1024) return refuse("max_staleness_steps is above 1024");
  if (limits.max_generations < 2) return refuse("max_generations is below 2");
  if (!(limits.jitter_margin >= 0 && limits.jitter_margin <= 1)) return refuse("jitter_margin is not 0 to 1");
  if (!(limits.bubble_tolerance >= 0 && limits.bubble_tolerance <= 1)) return refuse("bubble_tolerance is not 0 to 1");
  if (!(limits.fresh_tolerance >= 0 && limits.fresh_tolerance <= 1)) return refuse("fresh_tolerance is not 0 to 1");
  if (!(limits.least_stale_gain >= 0 && limits.least_stale_gain <= 1)) return refuse("least_stale_gain is not 0 to 1");
  if (!(limits.stale_share >= 0 && limits.stale_share <= 1)) return refuse("stale_share is not 0 to 1");
  if (!(limits.capacity >= 1 && limits.capacity <= 1000)) return refuse("capacity is not 1 to 1000");
  return {};
}

std::optional<Timetable> fresh_timetable(const Problem& problem, const PlanLimits& limits, double enough_us) {
  PlanLimits all_fresh = limits;
  all_fresh.max_staleness_steps = 0;
  return Search(problem, all_fresh, enough_us).run();
}

Result<Timetable> find_timetable(const model::Profile& profile, const PlanLimits& limits) {
  if (auto ok = model::check_profile(profile); !ok) return tl::unexpected(ok.error());
  if (auto ok = check_limits(limits); !ok) return tl::unexpected(ok.error());
  auto table = Preference(profile, limits).run();
  if (!table) return fail(ErrorKind::kInternal, "no plan was found");
  table->plan.bucket_bytes = Problem(profile).bucket_bytes();
  return std::move(*table);
}

Result<model::Plan> find_plan(const model::Profile& profile, const PlanLimits& limits) {
  auto table = find_timetable(profile, limits);
  if (!table) return tl::unexpected(table.error());
  return std::move(table->plan);
}

}  // namespace deft::plan
