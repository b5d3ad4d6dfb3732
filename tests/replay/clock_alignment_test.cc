#include "core/replay/clock_alignment.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <random>
#include <span>

namespace deft::replay {
namespace {

// A node's clock: leader = node + offset + drift * (node - begin).
struct TrueClock {
  TimeUs begin_us = 0;
  TimeUs offset_us = 0;
  double drift = 0;

  [[nodiscard]] double leader_us(double node_us) const {
    return node_us + static_cast<double>(offset_us) + drift * (node_us - static_cast<double>(begin_us));
  }
  [[nodiscard]] double node_us(double leader_us) const {
    const double since = (leader_us - static_cast<double>(begin_us + offset_us)) / (1 + drift);
    return static_cast<double>(begin_us) + since;
  }
};

// Questions each `period_us`. Each way takes its least time and a random time on top.
std::vector<ClockSample> samples(const TrueClock& clock, std::size_t count, double there_us, double back_us,
                                 double noise_us, unsigned seed) {
  std::mt19937 random(seed);
  std::exponential_distribution<double> noise(1 / std::max(noise_us, 1e-3));
  std::vector<ClockSample> out;
  for (std::size_t i = 0; i < count; ++i) {
    const double asked = static_cast<double>(clock.begin_us) + static_cast<double>(i) * 250'000;
    const double leader = clock.leader_us(asked) + there_us + noise(random);
    const double answered = clock.node_us(leader + back_us + noise(random));
    out.push_back({std::llround(asked), std::llround(leader), std::llround(answered)});
  }
  return out;
}

// From the first of `count` questions to the period behind the last one.
Interval records_of(const TrueClock& clock, std::size_t count) {
  return {clock.begin_us, clock.begin_us + static_cast<TimeUs>(count) * 250'000};
}

double worst_error_us(const ClockMap& map, const TrueClock& clock, const Interval& records) {
  double worst = 0;
  for (TimeUs node_us = records.begin_us; node_us <= records.end_us; node_us += 250'000) {
    const double error = static_cast<double>(map.to_leader(node_us)) - clock.leader_us(static_cast<double>(node_us));
    worst = std::max(worst, std::abs(error));
  }
  return worst;
}

TEST(ClockAlignment, FindsOffsetsOfThirtyDaysAndTheDriftOfBadQuartz) {
  constexpr TimeUs kDay = 86'400'000'000;
  for (const TimeUs offset : {TimeUs{0}, 30 * kDay, -30 * kDay, TimeUs{1'234'567}})
    for (const double drift : {0.0, 5e-5, -5e-5}) {
      const TrueClock clock{31 * kDay, offset, drift};
      const auto list = samples(clock, 240, 80, 80, 60, 7);
      const auto map = align(list, records_of(clock, 240));
      ASSERT_TRUE(map);
      EXPECT_LT(worst_error_us(*map, clock, records_of(clock, 240)), 25) << offset << " " << drift;
      EXPECT_NEAR(map->drift, drift, 3e-6);
      EXPECT_LT(map->error_us, 120);
    }
}

// From inside, an asymmetric way cannot be told from an offset. The error says how far it may be off.
TEST(ClockAlignment, ItsErrorCoversAnAsymmetricWay) {
  const TrueClock clock{1'000'000, 5'000'000, 2e-5};
  const auto list = samples(clock, 200, 400, 40, 30, 3);
  const auto map = align(list, records_of(clock, 200));
  ASSERT_TRUE(map);
  const double error = worst_error_us(*map, clock, records_of(clock, 200));
  EXPECT_GT(error, 100);
  EXPECT_LT(error, map->error_us + 1);
}

TEST(ClockAlignment, ASampleAloneGivesItsMiddle) {
  const ClockSample only[] = {{1'000, 501'100, 1'200}};
  const auto map = align(only, {});
  ASSERT_TRUE(map);
  EXPECT_EQ(map->to_leader(1'100), 501'100);
  EXPECT_NEAR(map->error_us, 100, 1);
  EXPECT_EQ(map->drift, 0) << "one sample tells nothing about it";
}

// Answers may be lost, or come all at the begin. Then nothing bounds the drift but what clocks can do.
TEST(ClockAlignment, FarFromAllAnswersAClockMayHaveDrifted) {
  const TrueClock clock{50'000'000, 3'000'000, 1e-4};
  const auto list = samples(clock, 12, 80, 80, 20, 11);
  const auto one = align(std::span(list).first(1), {clock.begin_us, clock.begin_us + 20'000'000});
  ASSERT_TRUE(one);
  EXPECT_NEAR(one->error_us, 4'100, 100) << "200 ppm of 20 s";
  const auto late = align(list, {clock.begin_us + 60'000'000, clock.begin_us + 90'000'000});
  const auto between = align(list, records_of(clock, 12));
  ASSERT_TRUE(late && between);
  EXPECT_GT(late->error_us, 1'000) << "lines that obey all answers of three seconds differ by so much after ninety";
  EXPECT_LT(between->error_us, 250);
}

TEST(ClockAlignment, NoSampleIsAnErrorThatSaysWhatToDo) {
  const auto map = align({}, {});
  ASSERT_FALSE(map);
  EXPECT_NE(map.error().message().find("heartbeat"), std::string::npos);
}

TEST(ClockAlignment, ImpossibleSamplesAndAClockThatJumpedAreLeftOut) {
  const TrueClock clock{1'000'000, -400'000, 0};
  auto list = samples(clock, 40, 50, 50, 20, 5);
  list.push_back({2'000'000, 5, 1'900'000});            // answered before it was asked
  list.push_back({3'000'000, 900'000'000, 3'900'000});  // of another leader's clock, and slow
  const auto map = align(list, records_of(clock, 40));
  ASSERT_TRUE(map);
  EXPECT_LT(worst_error_us(*map, clock, records_of(clock, 40)), 25);
  EXPECT_EQ(map->samples, 40U);
  EXPECT_EQ(map->contradicting, 1U);
}

// Whatever the delays, the line obeys the bounds of all samples if any line does.
RC_GTEST_PROP(ClockAlignment, TheLineObeysAllBounds, ()) {
  const TrueClock clock{*rc::gen::inRange<TimeUs>(0, 1'000'000'000'000),
                        *rc::gen::inRange<TimeUs>(-1'000'000'000, 1'000'000'000), *rc::gen::inRange(-100, 101) * 1e-6};
  const auto count = *rc::gen::inRange<std::size_t>(1, 700);
  const auto list = samples(clock, count, *rc::gen::inRange(0, 500), *rc::gen::inRange(0, 500),
                            *rc::gen::inRange(1, 3000), *rc::gen::arbitrary<unsigned>());
  const auto map = align(list, records_of(clock, count));
  RC_ASSERT(map.has_value());
  for (const auto& sample : list) {
    RC_ASSERT(map->to_leader(sample.asked_us) <= sample.leader_us + 3);
    RC_ASSERT(map->to_leader(sample.answered_us) >= sample.leader_us - 3);
  }
}

// Also where there are no answers.
RC_GTEST_PROP(ClockAlignment, TheTrueTimeOfARecordIsWithinTheError, ()) {
  const TrueClock clock{*rc::gen::inRange<TimeUs>(1000, 1'000'000'000'000),
                        *rc::gen::inRange<TimeUs>(-1'000'000'000, 1'000'000'000), *rc::gen::inRange(-190, 191) * 1e-6};
  const auto count = *rc::gen::inRange<std::size_t>(1, 200);
  auto list = samples(clock, count, *rc::gen::inRange(0, 500), *rc::gen::inRange(0, 500), *rc::gen::inRange(1, 3000),
                      *rc::gen::arbitrary<unsigned>());
  for (auto& sample : list) --sample.asked_us, ++sample.answered_us;  // whole microseconds would shorten some ways
  Interval records = records_of(clock, count);
  records.begin_us -= *rc::gen::inRange<TimeUs>(0, 30'000'000);
  records.end_us += *rc::gen::inRange<TimeUs>(0, 30'000'000);
  const auto map = align(list, records);
  RC_ASSERT(map.has_value());
  RC_ASSERT(map->contradicting == 0U);
  RC_ASSERT(worst_error_us(*map, clock, records) <= map->error_us + 2);
}

// What the nodes send each other meanwhile, which takes at least `least_us` each way.
std::vector<ClockBound> bounds(const TrueClock& clock, const Interval& records, std::size_t count, double least_us,
                               double noise_us, unsigned seed) {
  std::mt19937 random(seed);
  std::exponential_distribution<double> noise(1 / noise_us);
  std::uniform_real_distribution<double> when(static_cast<double>(records.begin_us),
                                              static_cast<double>(records.end_us));
  std::vector<ClockBound> out;
  for (std::size_t i = 0; i < count; ++i) {
    const double node_us = when(random), took_us = least_us + noise(random);
    const bool is_least = i % 2 == 0;
    const double leader_us = clock.leader_us(node_us) + (is_least ? -took_us : took_us);
    out.push_back({static_cast<TimeUs>(std::floor(node_us)), static_cast<TimeUs>(std::floor(leader_us)), is_least});
  }
  return out;
}

// Answers of a job that was traced for less than a heartbeat are few, and one of a busy machine is slow.
TEST(ClockAlignment, DataTightensWhatAFewAnswersTell) {
  const TrueClock clock{50'000'000, 3'000'000, 1e-4};
  const auto list = samples(clock, 2, 900, 20, 3000, 4);
  const Interval records = records_of(clock, 40);
  const auto data = bounds(clock, records, 4000, 60, 500, 9);
  const auto few = align(list, records), more = align(list, records, data);
  ASSERT_TRUE(few && more);
  EXPECT_GT(few->error_us, 1000);
  EXPECT_LT(more->error_us, 150);
  EXPECT_LT(worst_error_us(*more, clock, records), 60);
  EXPECT_NEAR(more->drift, clock.drift, 1e-5);
  EXPECT_GT(more->bounds, 100U);
}

// Whatever the data, the error is no larger than without it, and still true.
RC_GTEST_PROP(ClockAlignment, DataMakesNoErrorLargerOrFalse, ()) {
  const TrueClock clock{*rc::gen::inRange<TimeUs>(1000, 1'000'000'000'000),
                        *rc::gen::inRange<TimeUs>(-1'000'000'000, 1'000'000'000), *rc::gen::inRange(-190, 191) * 1e-6};
  const auto count = *rc::gen::inRange<std::size_t>(1, 60);
  auto list = samples(clock, count, *rc::gen::inRange(0, 500), *rc::gen::inRange(0, 500), *rc::gen::inRange(1, 3000),
                      *rc::gen::arbitrary<unsigned>());
  for (auto& sample : list) --sample.asked_us, ++sample.answered_us;  // whole microseconds would shorten some ways
  const Interval records = records_of(clock, count);
  const auto data = bounds(clock, records, *rc::gen::inRange<std::size_t>(0, 500), *rc::gen::inRange(0, 500),
                           *rc::gen::inRange(1, 3000), *rc::gen::arbitrary<unsigned>());
  const auto without = align(list, records), with = align(list, records, data);
  RC_ASSERT(without.has_value() && with.has_value());
  RC_ASSERT(with->error_us <= without->error_us);
  RC_ASSERT(with->contradicting == 0U);
  RC_ASSERT(worst_error_us(*with, clock, records) <= with->error_us + 2);
}

}  // namespace
}  // namespace deft::replay
