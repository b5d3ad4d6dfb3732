// Tests if it is found out whether a codec or something else made the loss rise, on trainings of which that is known.
#include "core/preserve/codec_trials.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace deft::preserve {
namespace {

constexpr std::size_t kCodec = 2;

double between(double low, double high) { return low + (high - low) * *rc::gen::inRange(0, 10'001) / 10'000.0; }

// A training that tells its loss every few steps. Its noise is bounded, so what must hold holds in each case.
class Training {
 public:
  explicit Training(double deviation)
      : every_(static_cast<std::uint64_t>(*rc::gen::element(1, 4, 8, 16))),
        deviation_(deviation),
        random_(*rc::gen::arbitrary<std::uint32_t>()),
        noise_(-std::sqrt(3.0) * deviation, std::sqrt(3.0) * deviation) {}

  // The loss rises from `from` under the codec, and is seen at `to`. Some samples later it is `without(0)` and gradients are
  // exact, and then it is `without(steps)`.
  template <typename Loss>
  TrialResult rise(double from, double to, const Loss& without, bool may_be_natural = false) {
    double newest = 0;
    for (int i = 0; i < 3; ++i) newest += (to + noise_(random_)) / 3;
    trials.begin(kCodec, {{from, deviation_}, newest, may_be_natural}, step);
    for (int i = *rc::gen::inRange(0, 4); i > 0; --i) trials.take(step += every_, without(0) + noise_(random_));
    trials.gradients_are_exact();
    steps_without_ = 0;
    for (; trials.result() == TrialResult::kOpen; steps_without_ += every_)
      trials.take(step += every_, without(static_cast<double>(steps_without_)) + noise_(random_));
    const TrialResult result = trials.result();
    trials.end();
    return result;
  }
  std::uint64_t steps_without() const { return steps_without_; }  // of the last trial

  CodecTrials trials;
  std::uint64_t step = 100;

 private:
  std::uint64_t every_;
  std::uint64_t steps_without_ = 0;
  double deviation_;
  std::mt19937_64 random_;
  std::uniform_real_distribution<> noise_;
};

// Another cause: the loss stays high, or rises on as the learning rate does, or falls slowly as other data is learnt.
RC_GTEST_PROP(CodecTrials, ACodecThatIsNotTheCauseComesBackEachTime, ()) {
  Training training(between(0, 0.05));
  const double slope = between(0, 0.01), fall = between(1000, 10'000) * *rc::gen::element(1, 1000);
  double level = 1;
  for (unsigned rises = 0; rises < 4; ++rises) {
    const double risen = level + between(1, 3);
    const auto loss = [&](double steps) {
      return level + (risen - level) * std::exp(-steps / (fall * (1U << rises))) + slope * steps;
    };
    RC_ASSERT(training.rise(level, risen, loss) == TrialResult::kDidNotHelp);
    RC_ASSERT(training.trials.most_codec() == model::kMaxCodecs);
    const std::uint64_t first_look = std::max<std::uint64_t>(CodecTrials::kFirstLook << rises, 8 * 16);
    RC_ASSERT(training.steps_without() <= 4 * first_look + 4 * 16);
    RC_ASSERT(training.steps_without() > CodecTrials::kFirstLook << rises);
    level = loss(static_cast<double>(training.steps_without()));
  }
}

// The loss rises on after the rise was seen, until gradients are exact; and momentum may carry it higher for some steps more.
RC_GTEST_PROP(CodecTrials, ACodecThatIsTheCauseIsFoundAtOnceAndReturnsOnce, ()) {
  Training training(between(0, 0.02));
  const double risen = 1 + between(1, 30), recovery = between(1, 80);
  const double more = between(1, 1.3), lag = between(1, 10);
  const auto loss = [&](double steps) {
    const double height = steps < lag ? 1 + (more - 1) * steps / lag : more * std::exp(-(steps - lag) / recovery);
    return 1 + (risen - 1) * height;
  };
  for (const bool again : {false, true}) {
    RC_ASSERT(training.rise(1, 1 + between(0.2, 1) * (risen - 1), loss) == TrialResult::kHelped);
    RC_ASSERT(training.trials.most_codec() == kCodec - 1);
    RC_ASSERT(!training.trials.may_return(training.step + CodecTrials::kWaits * CodecTrials::kFirstLook - 1));
    if (again) break;
    RC_ASSERT(training.trials.may_return(training.step += CodecTrials::kWaits * CodecTrials::kFirstLook));
    training.trials.let_return();
    RC_ASSERT(training.trials.most_codec() == model::kMaxCodecs);
  }
  for (int i = 0; i < 100; ++i) training.trials.take(training.step += 1000, 0.5);
  RC_ASSERT(!training.trials.may_return(training.step));
  RC_ASSERT(training.trials.most_codec() == kCodec - 1);
}

// Where exact gradients need hundreds of steps, the codec comes back some times, and the loss rises again each time.
RC_GTEST_PROP(CodecTrials, ACodecFromWhichTheLossRecoversSlowlyIsFoundAfterSomeRises, ()) {
  Training training(between(0, 0.02));
  const double height = between(1, 10), recovery = between(80, 1000);
  double level = 1;
  for (unsigned rises = 0; rises < 6; ++rises) {
    const double risen = level + height;
    const auto loss = [&](double steps) { return 1 + (risen - 1) * std::exp(-steps / recovery); };
    if (training.rise(level, risen, loss) == TrialResult::kHelped) break;
    level = loss(static_cast<double>(training.steps_without()));
  }
  RC_ASSERT(training.trials.most_codec() == kCodec - 1);
}

RC_GTEST_PROP(CodecTrials, WhereARiseMayBeNaturalNothingIsProved, ()) {
  Training training(between(0, 0.02));
  const auto recovers = [](double steps) { return 1 + 2 * std::exp(-steps / 20); };
  RC_ASSERT(training.rise(1, 3, recovers, true) == TrialResult::kHelped);
  RC_ASSERT(training.trials.most_codec() == kCodec - 1);
  const std::uint64_t wait = CodecTrials::kWaits * CodecTrials::kFirstLook;
  RC_ASSERT(!training.trials.may_return(training.step + wait - 1));
  RC_ASSERT(training.trials.may_return(training.step += wait));
  training.trials.let_return();
  RC_ASSERT(training.trials.most_codec() == model::kMaxCodecs);
  RC_ASSERT(!training.trials.may_return(training.step));
  RC_ASSERT(training.rise(1, 3, recovers) == TrialResult::kHelped);
  RC_ASSERT(training.steps_without() > 2 * CodecTrials::kFirstLook);
  RC_ASSERT(training.trials.may_return(training.step += 2 * wait));
  training.trials.let_return();
  RC_ASSERT(training.rise(1, 3, recovers) == TrialResult::kHelped);
  RC_ASSERT(!training.trials.may_return(training.step + 1'000'000));
  RC_ASSERT(training.trials.most_codec() == kCodec - 1);
}

TEST(CodecTrials, TheTextHasTheFigures) {
  for (const bool helps : {false, true}) {
    CodecTrials trials({"none", "int8", "int4"});
    EXPECT_EQ(trials.text(), "");
    trials.begin(2, {{1, 0}, 1.5, false}, 40);
    EXPECT_EQ(
        trials.text(),
        "int4 was taken back at step 40, because the loss rose from 1.000000 to 1.500000; whether exact gradients "
        "help is not known yet");
    trials.gradients_are_exact();
    for (std::uint64_t step = 48; step <= 112; step += 8) trials.take(step, helps ? 1.125 : 1.5);
    EXPECT_EQ(
        trials.text(),
        helps ? "exact gradients helped: the loss rose from 1.000000 to 1.500000 under int4, and was 1.125000 until "
                "step 112, after 64 steps without it, so int4 stays away until step 240, and for good if "
                "they help once more"
              : "exact gradients did not help: the loss rose from 1.000000 to 1.500000 under int4, and was 1.500000 "
                "until step 112, after 64 steps without it, so int4 comes back");
    EXPECT_DOUBLE_EQ(trials.end().mean, helps ? 1.125 : 1.5);
    EXPECT_FALSE(trials.is_open());
    if (!helps) continue;
    trials.begin(2, {{1, 0}, 1.5, false}, 300);
    trials.gradients_are_exact();
    for (std::uint64_t step = 308; step <= 436; step += 8) trials.take(step, 1.125);
    EXPECT_EQ(
        trials.text(),
        "exact gradients helped again: the loss rose from 1.000000 to 1.500000 under int4, and was 1.125000 until "
        "step 436, after 128 steps without it, so int4 stays away for the rest of the job");
  }
}

TEST(CodecTrials, OnlyStepsWithExactGradientsCountAndASecondRiseBeginsNoSecondTrial) {
  CodecTrials trials;
  trials.gradients_are_exact();
  trials.take(1, 1);
  EXPECT_FALSE(trials.is_open());
  trials.begin(1, {{1, 0}, 2, false}, 10);
  for (std::uint64_t step = 11; step < 1000; ++step) trials.take(step, 2);
  trials.begin(3, {{5, 0}, 6, false}, 1000);
  EXPECT_EQ(trials.result(), TrialResult::kOpen);
  trials.gradients_are_exact();
  std::uint64_t step = 1000;
  while (trials.result() == TrialResult::kOpen && step < 2000) trials.take(step++, 1);
  EXPECT_EQ(step, 1065U);
  EXPECT_EQ(trials.result(), TrialResult::kHelped);
  EXPECT_NE(trials.text().find("under codec 1"), std::string::npos) << trials.text();
}

TEST(CodecTrials, ACodecThatStaysAwayKeepsThoseWithFewerBitsAway) {
  CodecTrials trials;
  std::uint64_t step = 0;
  const auto recover_from = [&](std::size_t codec, bool may_be_natural) {
    trials.begin(codec, {{1, 0}, 2, may_be_natural}, step);
    trials.gradients_are_exact();
    while (trials.result() == TrialResult::kOpen && step < 10'000) trials.take(step += 8, 1);
    EXPECT_EQ(trials.result(), TrialResult::kHelped);
    trials.end();
  };
  recover_from(2, true);
  EXPECT_EQ(trials.most_codec(), 1U);
  recover_from(1, false);
  EXPECT_EQ(trials.most_codec(), 0U);
  ASSERT_TRUE(trials.may_return(step + 1000)) << "both might";
  trials.let_return();
  EXPECT_EQ(trials.most_codec(), model::kMaxCodecs);
  recover_from(2, true);
  recover_from(1, false);
  ASSERT_TRUE(trials.may_return(step + 10'000)) << "codec 2 might, but for codec 1";
  trials.let_return();
  EXPECT_EQ(trials.most_codec(), 0U);
}

// Seen at 1.3, the loss rises to 4 before or soon after gradients are exact, and they bring it back to 2.
TEST(CodecTrials, ALossIsComparedWithTheTopOfItsRise) {
  for (const int exact_after : {0, 12}) {
    CodecTrials trials;
    trials.begin(1, {{1, 0}, 1.3, false}, 0);
    std::uint64_t step = 0;
    for (int i = 0; trials.result() == TrialResult::kOpen && i < 1000; ++i) {
      if (i == exact_after) trials.gradients_are_exact();
      trials.take(++step, i < 12 ? 1.3 + 0.225 * (i + 1) : i < 16 ? 4 : 2);
    }
    EXPECT_EQ(trials.result(), TrialResult::kHelped) << exact_after;
  }
}

TEST(CodecTrials, RareSamplesAreWaitedFor) {
  CodecTrials trials;
  trials.begin(1, {{1, 0}, 2, false}, 0);
  trials.gradients_are_exact();
  int samples = 0;
  while (trials.result() == TrialResult::kOpen && samples < 100)
    trials.take(static_cast<std::uint64_t>(50 * ++samples), 2);
  EXPECT_EQ(samples, 8);
}

TEST(CodecTrials, ALossThatIsNoNumberAnyMoreEndsTheTrial) {
  CodecTrials trials;
  trials.begin(1, {{1, 0}, 1e308, false}, 0);
  trials.gradients_are_exact();
  std::uint64_t step = 0;
  while (trials.result() == TrialResult::kOpen && step < 10'000) trials.take(++step, 1.7e308);
  EXPECT_EQ(trials.result(), TrialResult::kDidNotHelp);
}

}  // namespace
}  // namespace deft::preserve
