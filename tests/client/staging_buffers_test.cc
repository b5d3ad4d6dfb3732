#include "core/client/staging_buffers.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace deft::client {
namespace {

TEST(FreeRanges, TakesAllAndGivesItBackWhole) {
  FreeRanges ranges(100);
  const auto a = ranges.take(40);
  const auto b = ranges.take(60);
  EXPECT_EQ(ranges.take(1), FreeRanges::kNone);
  EXPECT_FALSE(ranges.all_free());
  ranges.give_back(a, 40);
  EXPECT_EQ(ranges.take(41), FreeRanges::kNone);
  ranges.give_back(b, 60);
  EXPECT_TRUE(ranges.all_free());
  EXPECT_EQ(ranges.take(100), 0u);
}

TEST(FreeRanges, ManyTakesInAnyOrderNeverOverlapAndMergeAgain) {
  std::mt19937 random(4711);
  constexpr std::uint64_t kTotal = 10'000;
  for (int round = 0; round < 20; ++round) {
    FreeRanges ranges(kTotal);
    std::map<std::uint64_t, std::uint64_t> taken;
    for (int i = 0; i < 2000; ++i) {
      if (taken.empty() || random() % 3 != 0) {
        const std::uint64_t bytes = 1 + random() % 700;
        const auto offset = ranges.take(bytes);
        if (offset == FreeRanges::kNone) continue;
        ASSERT_LE(offset + bytes, kTotal);
        const auto next = taken.lower_bound(offset);
        ASSERT_TRUE(next == taken.end() || offset + bytes <= next->first);
        ASSERT_TRUE(next == taken.begin() || std::prev(next)->first + std::prev(next)->second <= offset);
        taken.emplace(offset, bytes);
      } else {
        const auto victim = std::next(taken.begin(), static_cast<std::ptrdiff_t>(random() % taken.size()));
        ranges.give_back(victim->first, victim->second);
        taken.erase(victim);
      }
    }
    for (const auto& [offset, bytes] : taken) ranges.give_back(offset, bytes);
    ASSERT_TRUE(ranges.all_free());
  }
}

}  // namespace
}  // namespace deft::client
