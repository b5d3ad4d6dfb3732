#include "core/plan/planner.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "core/plan/schedule_builder.h"

namespace deft::plan {
namespace {

constexpr std::uint32_t kLongestCycle = 8;                      // steps
constexpr std::array kPartShares = {0.04, 0.015, 0.15, 0.005};  // of compute, the longest part
constexpr std::size_t kRates = 4;                               // tried for one set of stale buckets, the fastest first
constexpr double kEffort = 1'000'000;                           // steps * buckets of all builds: bounds the search
constexpr double kStepsOfABuild = 20;

// Buckets that tensors join: they have the same dates.
struct Block {
  std::vector<std::size_t> buckets;
  double bytes = 0;
};

std::vector<Block> blocks_by_size(const Problem& problem, const Limits& limits) {
  std::vector<Block> blocks;
  for (std::size_t b = 0; b < problem.buckets(); ++b) {
    const bool joined = b > 0 && b < limits.joined.size() && limits.joined[b];
    if (!joined) blocks.emplace_back();
    blocks.back().buckets.push_back(b);
    blocks.back().bytes += static_cast<double>(problem.bucket(b).bytes);
  }
  std::stable_sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) { return a.bytes > b.bytes; });
  return blocks;
}

class StaleSearch {
 public:
  StaleSearch(const Problem& problem, const Limits& limits)
      : problem_(problem),
        limits_(limits),
        counted_on_(problem.scaled(limits.capacity, 1 + limits.jitter_margin)),
        enough_us_((1 + limits.fresh_tolerance) * problem.compute_us() * limits.capacity) {}

  std::optional<Timetable> run();

 private:
  [[nodiscard]] std::vector<UpdateRatio> ratios(const std::vector<bool>& stale) const;
  bool attempt(const std::vector<bool>& stale, UpdateRatio ratio);

  const Problem& problem_;
  const Limits& limits_;
  Problem counted_on_;
  double enough_us_;
  double effort_ = 0;
  std::optional<Timetable> best_;
};

// The ratios that the links can carry for these stale buckets beside the fresh ones, the fastest first.
std::vector<UpdateRatio> StaleSearch::ratios(const std::vector<bool>& stale) const {
  double fresh_us = 0, stale_us = 0;  // of all links together
  for (std::size_t b = 0; b < problem_.buckets(); ++b) {
    double speed = 0;
    for (std::size_t l = 0; l < problem_.links(); ++l)
      speed += 1 / std::max(counted_on_.cost(l, b).us(problem_.bucket(b).bytes), 1e-9);
    (stale[b] ? stale_us : fresh_us) += 1 / speed;
  }
  const double room_us = counted_on_.compute_us() * (1 + limits_.fresh_tolerance) - fresh_us;
  std::vector<UpdateRatio> out;
  const std::uint32_t longest = std::min(kLongestCycle, limits_.max_merged_steps);
  for (std::uint32_t steps = 1; steps <= longest; ++steps)
    for (std::uint32_t u = 1; u <= steps; ++u)
      if (std::gcd(u, steps) == 1 && stale_us * u <= room_us * steps) out.push_back({u, steps});
  std::sort(out.begin(), out.end(), [](UpdateRatio a, UpdateRatio b) { return a.rate() > b.rate(); });
  if (out.size() > kRates) out.resize(kRates);
  if (out.empty()) out.push_back({1, longest});  // the rest alone is too much
  return out;
}

// Builds the plans of one ratio and keeps the one that waits least; true where that is little enough.
bool StaleSearch::attempt(const std::vector<bool>& stale, UpdateRatio ratio) {
  std::optional<Timetable> found;
  for (const double share : kPartShares) {
    effort_ += kStepsOfABuild * static_cast<double>(problem_.buckets());
    auto table = build_mixed(counted_on_, limits_, stale, ratio, share * counted_on_.compute_us());
    if (!table) continue;
    const Evaluation result = evaluate(*table, problem_);
    if (!result.runs) continue;
    table->plan.step_us = result.step_us;
    table->plan.compute_us = problem_.compute_us();
    if (!found || table->plan.step_us < found->plan.step_us) found = std::move(table);
  }
  if (!found) return false;
  const bool enough = found->plan.step_us <= enough_us_;
  if (enough || !best_ || found->plan.step_us < best_->plan.step_us) best_ = std::move(found);
  return enough;
}

std::optional<Timetable> StaleSearch::run() {
  const auto blocks = blocks_by_size(problem_, limits_);
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
    for (const UpdateRatio ratio : ratios(stale))
      if (attempt(stale, ratio)) return best_;
  }
  return best_;
}

}  // namespace

std::optional<Timetable> stale_timetable(const Problem& problem, const Limits& limits) {
  return StaleSearch(problem, limits).run();
}

}  // namespace deft::plan
