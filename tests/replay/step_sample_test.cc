// Pictures of traces that are too long to be drawn as a whole.
#include "core/replay/step_sample.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <random>
#include <set>
#include <tuple>

#include "tests/replay/traced_simulation.h"

namespace deft::replay {
namespace {

JobTrace long_job() {
  auto job = traced_simulation(busy_profile(), "bytescheduler", {.steps = 120, .nodes = {{}, {}}});
  job.nodes[0].trace.records.insert(job.nodes[0].trace.records.begin(), {1000, 1000, trace::PolicyTrace{.reason = 1}});
  return job;
}

using Drawn = std::tuple<std::uint32_t, TimeUs, TimeUs, std::string>;

// What goes on during the step, by node.
std::map<std::uint32_t, std::multiset<Drawn>> picture(const JobTimeline& timeline, const StepSpan& step) {
  std::map<std::uint32_t, std::multiset<Drawn>> nodes;
  for (const auto& slice : timeline.slices)
    if (slice.begin_us < step.end_us && std::max(slice.end_us, slice.begin_us + 1) > step.begin_us)
      nodes[timeline.tracks[slice.track].node].emplace(slice.track, slice.begin_us, slice.end_us, slice.name);
  return nodes;
}

TEST(StepSample, AShortTraceIsShownAsAWhole) {
  const auto job = long_job();
  auto timeline = make_timeline(job);
  const std::size_t slices = timeline.slices.size();
  const auto sample = sample_steps(timeline, step_spans(job), slices);
  EXPECT_TRUE(sample.has_all);
  EXPECT_EQ(timeline.slices.size(), slices);
  EXPECT_TRUE(sample.shows(0, 1)) << "the first steps, too";
}

TEST(StepSample, OfALongTraceWholeStepsOfAllNodesAreShown) {
  const auto job = long_job();
  const auto spans = step_spans(job);
  ASSERT_EQ(spans.size(), 117U) << "without the warm-up, and the step that does not end";
  const auto whole = make_timeline(job);
  auto timeline = whole;
  const std::size_t most = whole.slices.size() / 4;
  const auto sample = sample_steps(timeline, spans, most);
  EXPECT_FALSE(sample.has_all);
  EXPECT_FALSE(sample.is_cut);
  EXPECT_EQ(sample.steps_of_trace, 117U);
  EXPECT_LE(timeline.slices.size(), most);
  EXPECT_GE(sample.steps.size(), 20U) << "a step and what overlaps its ends is a bit more than a 120th of the trace";
  std::size_t before = 0;
  for (const StepSpan& step : sample.steps) {
    const auto shown = picture(timeline, step);
    EXPECT_EQ(shown, picture(whole, step)) << step.step;
    EXPECT_EQ(shown.size(), 2U) << step.step;
    EXPECT_LE(step.step - before, 8U) << "they are spread over the trace";
    before = step.step;
  }
  EXPECT_GE(before, 112U);
  for (const auto& slice : timeline.slices)
    EXPECT_TRUE(slice.category == "policy" || sample.shows(slice.begin_us, slice.end_us)) << slice.name;
  EXPECT_EQ(std::ranges::count(timeline.slices, "policy", &TrackSlice::category), 1);
}

TEST(StepSample, OfAStepThatIsTooLargeTheDetailsGoFirst) {
  const auto job = long_job();
  auto timeline = make_timeline(job);
  const auto sample = sample_steps(timeline, step_spans(job), 30);
  EXPECT_TRUE(sample.is_cut);
  EXPECT_EQ(sample.steps.size(), 1U);
  EXPECT_LE(timeline.slices.size(), 30U);
  std::set<std::string> categories;
  for (const auto& slice : timeline.slices) categories.insert(slice.category);
  EXPECT_THAT(categories, testing::Contains("transfer"));
  EXPECT_THAT(categories, testing::Not(testing::Contains("gradient")));
}

// Whatever the reader could read, the picture has no more than it has room for.
RC_GTEST_PROP(StepSample, ThereIsRoomForWhatIsLeft, ()) {
  auto job = traced_simulation(busy_profile(), "fifo", {.steps = 12, .nodes = {{}, {}}});
  std::minstd_rand random(*rc::gen::arbitrary<unsigned>());
  const auto kept = *rc::gen::inRange(0, 101);
  for (auto& node : job.nodes)
    std::erase_if(node.trace.records, [&](const auto&) { return static_cast<int>(random() % 100) >= kept; });
  auto timeline = make_timeline(job);
  const auto slices = timeline.slices.size();
  const auto most = *rc::gen::inRange<std::size_t>(1, 600);
  const auto sample = sample_steps(timeline, step_spans(job), most);
  RC_ASSERT(timeline.slices.size() <= most);
  RC_ASSERT(sample.has_all == (slices <= most));
}

}  // namespace
}  // namespace deft::replay
