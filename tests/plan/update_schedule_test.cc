// The schedule: every step in exactly one generation, whatever cuts and cycles came in which order.
#include "core/model/update_schedule.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace deft::model {
namespace {

// A cycle of generations of 1 to 3 steps, each applied up to 3 steps late and after the one before.
UpdateCycle any_cycle() {
  UpdateCycle cycle{0, {}};
  const auto count = *rc::gen::inRange<std::uint32_t>(1, 4);
  std::uint32_t applied = 0;
  for (std::uint32_t g = 0; g < count; ++g) {
    const std::uint32_t first = cycle.period_steps;
    cycle.period_steps += *rc::gen::inRange<std::uint32_t>(1, 4);
    applied = std::max(applied + 1, cycle.period_steps + *rc::gen::inRange<std::uint32_t>(0, 4));
    cycle.generations.push_back({first, cycle.period_steps - 1, applied});
  }
  const std::uint32_t latest = cycle.generations.front().apply_step + cycle.period_steps - 1;
  RC_PRE(cycle.generations.back().apply_step <= latest);
  return cycle;
}

struct Change {
  std::uint64_t step;
  std::optional<UpdateCycle> cycle;  // none: a cut
};

UpdateSchedule schedule_of(const std::vector<Change>& changes) {
  UpdateSchedule schedule;
  for (const auto& change : changes)
    change.cycle ? schedule.follow(change.step, std::make_shared<const UpdateCycle>(*change.cycle))
                 : schedule.cut(change.step);
  return schedule;
}

// Cycles come in the order of their steps, as a leader announces them; cuts come whenever they do.
std::vector<Change> any_changes() {
  std::map<std::uint64_t, Change> cycles, cuts;
  for (const auto step : *rc::gen::container<std::vector<std::uint64_t>>(3, rc::gen::inRange<std::uint64_t>(0, 60)))
    cycles[step] = {step, any_cycle()};
  for (const auto step : *rc::gen::container<std::vector<std::uint64_t>>(4, rc::gen::inRange<std::uint64_t>(0, 60)))
    cuts[step] = {step, std::nullopt};
  std::vector<Change> changes;
  for (const auto& [step, change] : cycles) changes.push_back(change);
  for (const auto& [step, change] : cuts) changes.push_back(change);
  return changes;
}

RC_GTEST_PROP(UpdateSchedule, EveryStepIsInOneGeneration, ()) {
  const UpdateSchedule schedule = schedule_of(any_changes());
  std::uint64_t next_step = 0;
  std::uint64_t applied = 0;
  for (std::uint64_t generation = 0; next_step < 100; ++generation) {
    const UpdateWindow dated = schedule.at(generation);
    RC_ASSERT(dated.generation == generation);
    RC_ASSERT(dated.first_step == next_step);
    RC_ASSERT(dated.last_step >= dated.first_step);
    RC_ASSERT(dated.apply_step > dated.last_step);
    RC_ASSERT(dated.apply_step >= applied);
    for (std::uint64_t step = dated.first_step; step <= dated.last_step; ++step)
      RC_ASSERT(schedule.of_step(step) == dated);
    next_step = dated.last_step + 1;
    applied = dated.apply_step;
  }
}

RC_GTEST_PROP(UpdateSchedule, NothingIsUnderWayAcrossACut, ()) {
  const auto changes = any_changes();
  const UpdateSchedule schedule = schedule_of(changes);
  for (const auto& change : changes) {
    if (change.step == 0) continue;
    RC_ASSERT(schedule.of_step(change.step).first_step == change.step);
    RC_ASSERT(schedule.of_step(change.step - 1).apply_step <= change.step);
  }
}

// Workers learn of plans and make flushes in different orders, and must agree.
RC_GTEST_PROP(UpdateSchedule, TheOrderOfNewsDoesNotMatter, ()) {
  const auto changes = any_changes();
  RC_PRE(std::ranges::any_of(changes, [](const Change& change) { return change.cycle.has_value(); }));
  std::vector<Change> shuffled = changes;
  std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(*rc::gen::arbitrary<std::uint32_t>()));
  const UpdateSchedule schedule = schedule_of(changes), other = schedule_of(shuffled);
  for (std::uint64_t step = 0; step < 100; ++step) RC_ASSERT(schedule.of_step(step) == other.of_step(step));
}

TEST(UpdateSchedule, APlanThatIsHeardOfLateHoldsBehindAFlush) {
  UpdateSchedule schedule;
  schedule.cut(57);
  schedule.follow(40, std::make_shared<const UpdateCycle>(UpdateCycle{2, {{0, 1, 4}}}));
  EXPECT_EQ(schedule.of_step(58).first_step, 57U);
  EXPECT_EQ(schedule.of_step(58).last_step, 58U);
}

RC_GTEST_PROP(UpdateCycle, ReadsWhatItWrites, ()) {
  const UpdateCycle cycle = any_cycle();
  const auto read = parse_cycle(to_text(cycle));
  if (!read) RC_FAIL(read.error().message());
  RC_ASSERT(read->period_steps == cycle.period_steps);
  RC_ASSERT(read->generations == cycle.generations);
}

TEST(UpdateCycle, isReadAsUsersWriteIt) {
  const auto cycle = parse_cycle("0-1@4,2@5");
  ASSERT_TRUE(cycle) << cycle.error().message();
  EXPECT_EQ(cycle->period_steps, 3U);
  EXPECT_EQ(cycle->generations, (std::vector<PlanGeneration>{{0, 1, 4}, {2, 2, 5}}));
}

TEST(UpdateCycle, namesWhatItCannotRead) {
  for (const char* text : {"", "0", "0@", "@1", "0-@1", "0@1,", ",0@1", "0@1 ", " 0@1", "0@1;1@2", "-1@1", "0-1-2@3",
                           "0@4294967296", "0-1@4,x"}) {
    const auto cycle = parse_cycle(text);
    ASSERT_FALSE(cycle) << text;
    EXPECT_NE(cycle.error().message().find("is no generation"), std::string::npos) << cycle.error().message();
  }
  const auto gap = parse_cycle("0@1,2@3");
  ASSERT_FALSE(gap);
  EXPECT_NE(gap.error().message().find("plan.generations[1].first_step: 2, the next step to merge is 1"),
            std::string::npos)
      << gap.error().message();
}

TEST(UpdateSchedule, countsSlots) {
  EXPECT_EQ(slots_needed(UpdateCycle{}), 1U);                // synchronous
  EXPECT_EQ(slots_needed(UpdateCycle{1, {{0, 0, 2}}}), 2U);  // one step late
  EXPECT_EQ(slots_needed(UpdateCycle{2, {{0, 1, 4}}}), 2U);  // two steps merged, sent in the next two
  EXPECT_EQ(slots_needed(UpdateCycle{1, {{0, 0, 4}}}), 4U);
  EXPECT_EQ(slots_needed(UpdateCycle{3, {{0, 0, 2}, {1, 2, 4}}}), 2U);
}

TEST(UpdateSchedule, refusesCyclesThatMakeNoSense) {
  EXPECT_TRUE(check_cycle({}));
  EXPECT_FALSE(check_cycle({0, {}}));
  EXPECT_FALSE(check_cycle({2, {{0, 0, 1}}}));             // step 1 is in no generation
  EXPECT_FALSE(check_cycle({1, {{0, 0, 0}}}));             // applied before it ran
  EXPECT_FALSE(check_cycle({2, {{0, 0, 3}, {1, 1, 3}}}));  // two at once
  EXPECT_FALSE(check_cycle({1, {{1, 0, 2}}}));
}

RC_GTEST_PROP(UpdateCycles, ReadWhatTheyWrite, ()) {
  UpdateCycles cycles{any_cycle(), {}};
  const auto other = any_cycle();
  if (other.period_steps == cycles.usual.period_steps)
    for (const auto bucket : *rc::gen::container<std::vector<BucketIndex>>(3, rc::gen::inRange<BucketIndex>(0, 50)))
      cycles.own[bucket] = other;
  const auto read = parse_cycles(to_text(cycles));
  if (!read) RC_FAIL(read.error().message());
  RC_ASSERT(*read == cycles);
}

TEST(UpdateCycles, areRepeatedUntilTheyAreOfOneLength) {
  const auto cycles = parse_cycles("0@1;2,3:0-1@3;5:0-2@3");
  ASSERT_TRUE(cycles) << cycles.error().message();
  EXPECT_EQ(cycles->usual.period_steps, 6U);
  EXPECT_EQ(cycles->usual.generations.size(), 6U);
  EXPECT_EQ(cycles->of(2).generations, (std::vector<PlanGeneration>{{0, 1, 3}, {2, 3, 5}, {4, 5, 7}}));
  EXPECT_EQ(cycles->of(3), cycles->of(2));
  EXPECT_EQ(cycles->of(5).generations, (std::vector<PlanGeneration>{{0, 2, 3}, {3, 5, 6}}));
  EXPECT_EQ(cycles->of(4), cycles->usual);
  EXPECT_EQ(slots_needed(*cycles), 2U);
  EXPECT_EQ(longest_delay(*cycles), 3U);
}

TEST(UpdateCycles, nameWhatTheyCannotRead) {
  const auto says = [](const char* text) {
    const auto cycles = parse_cycles(text);
    return cycles ? "fine" : cycles.error().message();
  };
  for (const char* text : {"0@1;", "0@1;0@1", "0@1;:0@1", "0@1;1,:0@1", "0@1;x:0@1"})
    EXPECT_NE(says(text).find("names no buckets"), std::string::npos) << text << ": " << says(text);
  EXPECT_NE(says("0@1;1:0@2;1:0@3").find("has a cycle already"), std::string::npos);
  EXPECT_NE(says("0-4095@4096;1:0-4094@4095").find("no common length"), std::string::npos);
}

}  // namespace
}  // namespace deft::model
