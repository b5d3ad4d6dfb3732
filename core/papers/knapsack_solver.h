// Knapsacks: which buckets to send in a stretch of compute, and on which links.
//
// An item may start once it is ready (its release) and takes a time of its own on each link; a link's knapsack is the
// time until its deadline. All times count from the beginning of the stretch.
//   exact_knapsack    optimal, by branch and bound; where its effort runs out it still says how far off it can be
//   greedy_knapsack   DeFT's heuristic for several links: capacities ascending, items descending, no release times
//   recursive_knapsack  DeFT's Algorithm 1: the better of all items now and all but the first a little later
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace deft::papers {

struct KnapsackItem {
  double value = 0;
  double release_us = 0;
  std::vector<double> cost_us;  // on each link
};

struct Packing {
  static constexpr int kNone = -1;
  std::vector<int> link;  // of each item, or kNone
  double value = 0;       // of all that is packed
  double bound = 0;       // no packing is worth more than this; equal to `value` where it is proven optimal

  [[nodiscard]] bool optimal() const { return bound <= value * (1 + 1e-9); }
  [[nodiscard]] double gap() const { return value > 0 ? bound / value - 1 : (bound > 0 ? 1 : 0); }
  [[nodiscard]] bool all() const;
};

// Packs items so that on each link those chosen, one after the other and none before its release, end by deadline_us[l].
// Visits at most `effort` nodes of the search tree and stops early once the gap is at most `accepted_gap`.
Packing exact_knapsack(std::span<const KnapsackItem> items, std::span<const double> deadline_us,
                       std::uint64_t effort = 1'000'000, double accepted_gap = 0);

// Ignores releases. O(items * links) after sorting.
Packing greedy_knapsack(std::span<const KnapsackItem> items, std::span<const double> capacity_us);

// Items in the order in which backward makes them ready; backward_us[i] is the backward time of item i. Leaving the first
// item out shortens what is left by the second's backward time, and so on. `pack` solves each single stage.
using Packer = std::function<Packing(std::span<const KnapsackItem>, std::span<const double>)>;
Packing recursive_knapsack(std::span<const KnapsackItem> items, std::span<const double> backward_us,
                           std::vector<double> capacity_us, const Packer& pack);

}  // namespace deft::papers
