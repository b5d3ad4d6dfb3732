// What encodings left out, used by the threads of several links at once.
#include "daemon/channel/residuals.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace deft::daemon {
namespace {

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

}  // namespace
}  // namespace deft::daemon
