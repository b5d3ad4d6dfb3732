// Solvers for knapsacks: which buckets to send during some compute, and on which links.
//
//   const Packing packing = exact_knapsack(items, deadline_us);
//   packing.link[i]   // the link of item i, or Packing::kNone
//
// An item may start when it is ready (its release), and its time depends on the link. The knapsack of a link is the time until
// its deadline. All times count from the beginning of that compute.
//   exact_knapsack      optimal, by branch and bound; if its effort runs out, it still bounds its error
//   greedy_knapsack     DeFT's heuristic for several links: capacities ascending, items descending, no release times
//   recursive_knapsack  DeFT's Algorithm 1: the better one of sending all items now, and all but the first a little later
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace deft::papers {

// A bucket to send.
struct KnapsackItem {
  double value = 0;
  double release_us = 0;
  std::vector<double> cost_us;  // [link]
};

// Which items were chosen, and for which link.
struct Packing {
  static constexpr int kNone = -1;
  std::vector<int> link;  // [item], or kNone
  double value = 0;       // the sum over all packed items
  double bound = 0;       // no packing is worth more; equal to `value` if the packing is proven optimal

  [[nodiscard]] double gap() const { return value > 0 ? bound / value - 1 : (bound > 0 ? 1 : 0); }
  [[nodiscard]] bool all() const;
};

// Packs items so that on each link l the chosen items end by deadline_us[l], one after the other and none before its release.
// Visits at most `effort` nodes of the search tree and stops early once the gap is at most `accepted_gap`.
Packing exact_knapsack(std::span<const KnapsackItem> items, std::span<const double> deadline_us,
                       std::uint64_t effort = 1'000'000, double accepted_gap = 0);

// Ignores releases. Takes O(items * links) after sorting.
Packing greedy_knapsack(std::span<const KnapsackItem> items, std::span<const double> capacity_us);

// `items` stand in the order in which backward makes them ready; backward_us[i] is the backward time of item i. Leaving out
// the first item shortens the rest by the backward time of the second one, and so on. `pack` solves each single stage.
using Packer = std::function<Packing(std::span<const KnapsackItem>, std::span<const double>)>;
Packing recursive_knapsack(std::span<const KnapsackItem> items, std::span<const double> backward_us,
                           std::vector<double> capacity_us, const Packer& pack);

}  // namespace deft::papers
