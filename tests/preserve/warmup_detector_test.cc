// When the first fast fall of a loss is over.
#include "core/preserve/loss_watch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace deft::preserve {
namespace {

// The step of the sample at which it is over, of one sample in four steps.
template <typename Loss>
std::uint64_t step_of_onset(const Loss& loss_at, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<> noise(0, 0.03);
  WarmupDetector warmup;
  for (std::uint64_t step = 0; step < 4000; step += 4) {
    warmup.take(step, loss_at(static_cast<double>(step)) + noise(random), 0);
    if (warmup.over()) return step;
  }
  return 4000;
}

// The loss of a small convolutional network in the beginning: a plateau, a fall within some sixty steps, then slower and slower.
TEST(WarmupDetector, IsNotOverOnThePlateauNorInTheFall) {
  const auto loss = [](double step) { return 0.6 + 1.7 / (1 + std::exp((step - 70) / 12)); };
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const std::uint64_t step = step_of_onset(loss, seed);
    EXPECT_GE(step, 76U) << seed;
    EXPECT_LE(step, 130U) << seed;
  }
}

TEST(WarmupDetector, IsOverSoonWhereTheLossFallsFromTheBeginning) {
  const auto loss = [](double step) { return 3 + 7 * std::exp(-step / 40); };
  for (std::uint64_t seed = 0; seed < 50; ++seed) EXPECT_LE(step_of_onset(loss, seed), 80U) << seed;
}

TEST(WarmupDetector, IsNotWaitedForForEver) {
  EXPECT_EQ(step_of_onset([](double) { return 0.5; }), 4 * (WarmupDetector::kLatest - 1));
}

}  // namespace
}  // namespace deft::preserve
