// What encodings left out, used by the threads of several links at once.
#include "daemon/channel/residuals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace deft::daemon {
namespace {

// The kernel's flags of the memory at `address`, as /proc/self/smaps has them.
std::string flags_of(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool is_it = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) is_it = begin <= at && at < end;
    if (is_it && line.starts_with("VmFlags:")) return line + " ";
  }
  return "";
}

TEST(Residuals, OfALargeGroupMayLieInLargePages) {
  if (!std::filesystem::exists("/sys/kernel/mm/transparent_hugepage"))
    GTEST_SKIP() << "this kernel has no transparent huge pages";
  constexpr std::size_t kElements = 4 << 20;
  Residuals residuals(kElements);
  const auto use = residuals.use(0, kElements);
  EXPECT_NE(flags_of(&use.values()[kElements / 2]).find(" hg "), std::string::npos);
  EXPECT_EQ(use.values()[kElements - 1], 0);
}

TEST(Residuals, ElementsHaveOneUserAtATime) {
  Residuals residuals(1000);
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&residuals, thread] {
      for (int i = 0; i < 500; ++i) {
        const auto use = residuals.use(static_cast<std::size_t>((i * 7 + thread * 13) % 900), 100);
        const std::vector<float> before(use.values().begin(), use.values().end());
        std::this_thread::yield();  // another user would write now
        for (std::size_t k = 0; k < before.size(); ++k) use.values()[k] = before[k] + 1;
      }
    });
  threads.clear();
  const auto use = residuals.use(0, 1000);
  double sum = 0;
  for (const float value : use.values()) sum += static_cast<double>(value);
  EXPECT_EQ(sum, 4 * 500 * 100);
}

TEST(Residuals, MayHoldSomethingFromAUseUntilTheyAreSettled) {
  constexpr std::size_t kElements = 60;
  Residuals residuals(kElements);
  std::vector<bool> held(kElements);
  std::mt19937 random(3);
  for (int round = 0; round < 3000; ++round) {
    const std::size_t first = random() % kElements, count = 1 + random() % (kElements - first);
    const bool settles = random() % 2 == 0;
    {
      auto use = residuals.use(first, count);
      if (settles) use.settled();
    }
    std::fill_n(held.begin() + static_cast<std::ptrdiff_t>(first), count, !settles);
    const std::size_t begin = random() % kElements, size = 1 + random() % std::min<std::size_t>(4, kElements - begin);
    const auto at = held.begin() + static_cast<std::ptrdiff_t>(begin);
    ASSERT_EQ(residuals.may_hold(begin, size),
              std::find(at, at + static_cast<std::ptrdiff_t>(size), true) != at + static_cast<std::ptrdiff_t>(size))
        << round;
  }
}

}  // namespace
}  // namespace deft::daemon
