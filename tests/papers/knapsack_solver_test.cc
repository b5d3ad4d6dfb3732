#include "core/papers/knapsack_solver.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>

namespace deft::papers {
namespace {

// All assignments of items to links, each tried in every order on its link: no theory is shared with the solver.
class Oracle {
 public:
  Oracle(std::span<const KnapsackItem> items, std::span<const double> deadline) : items_(items), deadline_(deadline) {}

  double best() {
    chosen_.assign(deadline_.size(), {});
    try_item(0, 0);
    return best_;
  }

 private:
  void try_item(std::size_t index, double value) {
    if (index == items_.size()) {
      best_ = std::max(best_, value);
      return;
    }
    for (std::size_t l = 0; l < deadline_.size(); ++l) {
      chosen_[l].push_back(index);
      if (feasible(l)) try_item(index + 1, value + items_[index].value);
      chosen_[l].pop_back();
    }
    try_item(index + 1, value);
  }
  [[nodiscard]] bool feasible(std::size_t link) const {
    auto order = chosen_[link];
    std::sort(order.begin(), order.end());
    do {
      double at = 0;
      for (const auto i : order) at = std::max(at, items_[i].release_us) + items_[i].cost_us[link];
      if (at <= deadline_[link] + 1e-9) return true;
    } while (std::next_permutation(order.begin(), order.end()));
    return false;
  }

  std::span<const KnapsackItem> items_;
  std::span<const double> deadline_;
  std::vector<std::vector<std::size_t>> chosen_;
  double best_ = 0;
};

std::vector<KnapsackItem> any_items(std::size_t most, std::size_t links) {
  const auto count = *rc::gen::inRange<std::size_t>(0, most + 1);
  std::vector<KnapsackItem> items(count);
  for (auto& item : items) {
    item.value = *rc::gen::inRange(0, 50);
    item.release_us = *rc::gen::inRange(0, 60);
    for (std::size_t l = 0; l < links; ++l) item.cost_us.push_back(*rc::gen::inRange(0, 50));
  }
  return items;
}

std::vector<double> any_deadlines(std::size_t links) {
  std::vector<double> out;
  for (std::size_t l = 0; l < links; ++l) out.push_back(*rc::gen::inRange(1, 120));
  return out;
}

void check_feasible(const Packing& packing, std::span<const KnapsackItem> items, std::span<const double> deadline) {
  double value = 0;
  for (std::size_t l = 0; l < deadline.size(); ++l) {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < items.size(); ++i)
      if (packing.link[i] == static_cast<int>(l)) order.push_back(i);
    std::sort(order.begin(), order.end(), [&](auto a, auto b) { return items[a].release_us < items[b].release_us; });
    double at = 0;
    for (const auto i : order) at = std::max(at, items[i].release_us) + items[i].cost_us[l], value += items[i].value;
    if (!order.empty()) RC_ASSERT(at <= deadline[l] * (1 + 1e-6));
  }
  RC_ASSERT(std::abs(value - packing.value) < 1e-6);
}

RC_GTEST_PROP(ExactKnapsack, IsAsGoodAsTryingEverything, ()) {
  const auto links = *rc::gen::inRange<std::size_t>(1, 3);
  const auto items = any_items(6, links);
  const auto deadline = any_deadlines(links);
  const auto packing = exact_knapsack(items, deadline);
  check_feasible(packing, items, deadline);
  RC_ASSERT(packing.gap() <= 1e-9);
  RC_ASSERT(std::abs(packing.value - Oracle(items, deadline).best()) < 1e-6);
}

RC_GTEST_PROP(ExactKnapsack, ItsBoundHoldsWhenItStopsEarly, ()) {
  const auto items = any_items(7, 2);
  const auto deadline = any_deadlines(2);
  const auto packing = exact_knapsack(items, deadline, *rc::gen::inRange<std::uint64_t>(0, 10));
  check_feasible(packing, items, deadline);
  const double best = exact_knapsack(items, deadline).value;
  RC_ASSERT(packing.value <= best + 1e-6);
  RC_ASSERT(packing.bound >= best * (1 - 1e-6));
}

RC_GTEST_PROP(ExactKnapsack, AnAcceptedGapIsKept, ()) {
  const auto items = any_items(8, 2);
  const auto deadline = any_deadlines(2);
  const auto packing = exact_knapsack(items, deadline, 1'000'000, 0.1);
  RC_ASSERT(packing.gap() <= 0.1 + 1e-9);
  RC_ASSERT(packing.value * 1.1 + 1e-6 >= exact_knapsack(items, deadline).value);
}

RC_GTEST_PROP(GreedyKnapsack, FitsAndIsNeverBetterThanExact, ()) {
  const auto links = *rc::gen::inRange<std::size_t>(1, 3);
  auto items = any_items(8, links);
  for (auto& item : items) item.release_us = 0;
  const auto deadline = any_deadlines(links);
  const auto packing = greedy_knapsack(items, deadline);
  check_feasible(packing, items, deadline);
  RC_ASSERT(packing.value <= exact_knapsack(items, deadline).value + 1e-6);
}

TEST(GreedyKnapsack, fillsTheSmallerKnapsackFirstWithTheLargestThatFits) {
  // The second link takes twice as long: of the same time it is the smaller knapsack.
  const std::vector<KnapsackItem> items{{10, 0, {10, 20}}, {6, 0, {6, 12}}, {5, 0, {5, 10}}};
  const auto packing = greedy_knapsack(items, std::vector<double>{12, 12});
  EXPECT_EQ(packing.link, (std::vector<int>{0, 1, Packing::kNone}));
}

TEST(ExactKnapsack, stopsWithinItsEffortOnThousandsOfItems) {
  std::vector<KnapsackItem> items;
  for (int i = 0; i < 10'000; ++i) items.push_back({1.0 + i % 97, 0.5 * i, {1.0 + i % 97, 2.0 + i % 89}});
  const auto packing = exact_knapsack(items, std::vector<double>{40'000, 60'000}, 10'000);
  EXPECT_GT(packing.value, 0);
  EXPECT_GE(packing.bound, packing.value);
}

// Algorithm 1 by hand: with all items only 4 fits into 5; without the first there are 2 less, and 3 fits exactly.
TEST(RecursiveKnapsack, leavesTheFirstOutWhereThatGivesMore) {
  const std::vector<KnapsackItem> items{{1, 0, {9}}, {2, 0, {3}}, {1.5, 0, {3}}};
  const Packer exact = [](auto all, auto capacity) { return exact_knapsack(all, capacity); };
  const auto packing = recursive_knapsack(items, std::vector<double>{7, 2, 1}, {5}, exact);
  EXPECT_EQ(packing.link, (std::vector<int>{Packing::kNone, 0, Packing::kNone}));
  EXPECT_DOUBLE_EQ(packing.value, 2);
}

RC_GTEST_PROP(RecursiveKnapsack, IsTheBestOfAllSuffixes, ()) {
  auto items = any_items(7, 1);
  std::vector<double> backward;
  for (std::size_t i = 0; i < items.size(); ++i) backward.push_back(*rc::gen::inRange(0, 20));
  for (auto& item : items) item.release_us = 0;
  const double capacity = *rc::gen::inRange(1, 100);
  const Packer exact = [](auto all, auto room) { return exact_knapsack(all, room); };
  double best = 0;
  double room = capacity;
  for (std::size_t first = 0; first < items.size() && room > 0; ++first) {
    best = std::max(best, Oracle(std::span(items).subspan(first), std::span(&room, 1)).best());
    if (first + 1 < items.size()) room -= backward[first + 1];
  }
  RC_ASSERT(std::abs(recursive_knapsack(items, backward, {capacity}, exact).value - best) < 1e-6);
}

}  // namespace
}  // namespace deft::papers
