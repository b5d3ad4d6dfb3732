#include "core/plan/planner.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>
#include <vector>

#include "core/plan/bucket_groups.h"
#include "core/plan/schedule_builder.h"

namespace deft::plan {
namespace {

constexpr std::uint32_t kLongestCycle = 8;                      // steps
constexpr std::array kPartShares = {0.04, 0.015, 0.15, 0.005};  // of compute, the longest part
constexpr std::size_t kRates = 4;                               // tried for one set of stale buckets, the fastest first
constexpr double kEffort = 1'000'000;                           // steps * buckets of all builds: bounds the search
constexpr double kStepsOfABuild = 20;
constexpr double kSetStep = 0.01;      // of all bytes: by so much sets of stale groups differ
constexpr std::size_t kSetStride = 3;  // sets, if even the largest one waits

// Buckets that tensors join: they have the same dates.
struct Block {
  std::vector<std::size_t> buckets;
  double bytes = 0;
  double size = 0;  // by which it becomes stale
};

std::vector<Block> blocks_by_size(const Problem& problem, const PlanLimits& limits, const std::vector<double>& sizes) {
  std::vector<Block> blocks;
  for (std::size_t b = 0; b < problem.buckets(); ++b) {
    const bool joined = b > 0 && b < limits.joined.size() && limits.joined[b];
    if (!joined) blocks.emplace_back();
    blocks.back().buckets.push_back(b);
    blocks.back().bytes += static_cast<double>(problem.bucket(b).bytes);
    blocks.back().size = joined || sizes.empty() ? blocks.back().bytes : sizes[b];
  }
  std::stable_sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) { return a.size > b.size; });
  return blocks;
}

class StaleSearch {
 public:
  // `sizes`: of the largest tensor of each bucket; empty: of the bucket.
  StaleSearch(const Problem& problem, const PlanLimits& limits, std::vector<double> sizes = {})
      : problem_(problem),
        limits_(limits),
        sizes_(std::move(sizes)),
        counted_on_(problem.scaled(limits.capacity, 1 + limits.jitter_margin)),
        enough_us_((1 + limits.fresh_tolerance) * problem.compute_us() * limits.capacity) {}

  // Tries more and more blocks as stale ones.
  std::optional<Timetable> run();
  // The same of hundreds of groups: bisects. More stale bytes hardly ever wait longer.
  std::optional<Timetable> run_by_bisection();

 private:
  [[nodiscard]] std::uint32_t longest_cycle() const { return std::min(kLongestCycle, limits_.max_merged_steps); }
  [[nodiscard]] std::vector<UpdateRatio> ratios(const std::vector<bool>& stale) const;
  [[nodiscard]] std::vector<std::vector<bool>> stale_sets(const std::vector<Block>& blocks) const;
  bool attempt_all(const std::vector<bool>& stale, bool is_hopeless_tried);
  bool attempt(const std::vector<bool>& stale, UpdateRatio ratio);

  const Problem& problem_;
  const PlanLimits& limits_;
  const std::vector<double> sizes_;
  Problem counted_on_;
  double enough_us_;
  double effort_ = 0;
  std::optional<Timetable> best_;
};

// The ratios that the links can carry for these stale buckets beside the fresh ones, the fastest first. None if the fresh ones alone
// are too much.
std::vector<UpdateRatio> StaleSearch::ratios(const std::vector<bool>& stale) const {
  double fresh_us = 0, stale_us = 0;  // of all links together
  for (std::size_t b = 0; b < problem_.buckets(); ++b) (stale[b] ? stale_us : fresh_us) += counted_on_.shared_us(b);
  const double room_us = counted_on_.compute_us() * (1 + limits_.fresh_tolerance) - fresh_us;
  std::vector<UpdateRatio> out;
  for (std::uint32_t steps = 1; steps <= longest_cycle(); ++steps)
    for (std::uint32_t u = 1; u <= steps; ++u)
      if (std::gcd(u, steps) == 1 && stale_us * u <= room_us * steps) out.push_back({u, steps});
  std::sort(out.begin(), out.end(), [](UpdateRatio a, UpdateRatio b) { return a.rate() > b.rate(); });
  if (out.size() > kRates) out.resize(kRates);
  return out;
}

// Builds the plans of one ratio and keeps the plan that waits least. True: it waits little enough.
bool StaleSearch::attempt(const std::vector<bool>& stale, UpdateRatio ratio) {
  std::optional<Timetable> found;
  for (const double share : kPartShares) {
    effort_ += kStepsOfABuild * static_cast<double>(problem_.buckets());
    auto table = timed(build_mixed(counted_on_, limits_, stale, ratio, share * counted_on_.compute_us()), problem_);
    if (table && (!found || table->plan.step_us < found->plan.step_us)) found = std::move(table);
  }
  if (!found) return false;
  const bool enough = found->plan.step_us <= enough_us_;
  if (enough || !best_ || found->plan.step_us < best_->plan.step_us) best_ = std::move(found);
  return enough;
}

// Tries the ratios of these stale buckets, until one waits little enough.
bool StaleSearch::attempt_all(const std::vector<bool>& stale, bool is_hopeless_tried) {
  auto list = ratios(stale);
  if (list.empty() && is_hopeless_tried) list.push_back({1, longest_cycle()});
  return std::ranges::any_of(list, [&](UpdateRatio ratio) { return attempt(stale, ratio); });
}

std::optional<Timetable> StaleSearch::run() {
  const auto blocks = blocks_by_size(problem_, limits_, sizes_);
  double all = 0, stale_bytes = 0;
  for (const Block& block : blocks) all += block.bytes;
  std::vector<bool> stale(problem_.buckets());
  std::size_t next = 1;  // how many blocks are tried as stale ones
  for (std::size_t i = 0; i + 1 < blocks.size(); ++i) {
    stale_bytes += blocks[i].bytes;
    if (stale_bytes > limits_.stale_share * all || effort_ > kEffort) break;
    for (const auto bucket : blocks[i].buckets) stale[bucket] = true;
    if (i + 1 != next) continue;
    next += 1 + next / 4;
    if (attempt_all(stale, true)) return best_;
  }
  return best_;
}

// Each has a little more bytes than the one before, and the last one as many as the limit allows.
std::vector<std::vector<bool>> StaleSearch::stale_sets(const std::vector<Block>& blocks) const {
  double all = 0, stale_bytes = 0, next_bytes = 0;
  for (const Block& block : blocks) all += block.bytes;
  std::vector<std::vector<bool>> sets;
  std::vector<bool> stale(problem_.buckets());
  for (std::size_t i = 0; i + 1 < blocks.size(); ++i) {
    stale_bytes += blocks[i].bytes;
    if (stale_bytes > limits_.stale_share * all) break;
    for (const auto bucket : blocks[i].buckets) stale[bucket] = true;
    const bool is_last = i + 2 == blocks.size() || stale_bytes + blocks[i + 1].bytes > limits_.stale_share * all;
    if (stale_bytes < next_bytes && !is_last) continue;
    sets.push_back(stale);
    next_bytes = stale_bytes + kSetStep * all;
  }
  return sets;
}

std::optional<Timetable> StaleSearch::run_by_bisection() {
  const auto sets = stale_sets(blocks_by_size(problem_, limits_, sizes_));
  if (sets.empty()) return std::nullopt;
  std::size_t low = 0, high = sets.size() - 1;
  if (attempt_all(sets[high], true)) {
    while (low < high) {
      const std::size_t middle = (low + high) / 2;
      if (attempt_all(sets[middle], false))
        high = middle;
      else
        low = middle + 1;
    }
    return best_;
  }
  for (; high >= kSetStride && effort_ <= kEffort; high -= kSetStride)
    if (attempt_all(sets[high - kSetStride], false)) break;
  return best_;
}

}  // namespace

// Thousands of buckets would use up the effort before enough of them are stale.
std::optional<Timetable> stale_timetable(const Problem& problem, const PlanLimits& limits) {
  if (problem.buckets() <= BucketGroups::kFewBuckets) return StaleSearch(problem, limits).run();
  const BucketGroups groups(problem, limits);
  const auto found = StaleSearch(groups.problem(), groups.limits(), groups.sizes()).run_by_bisection();
  if (!found) return std::nullopt;
  return timed(groups.expand(*found), problem);
}

}  // namespace deft::plan
