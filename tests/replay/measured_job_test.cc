// What a trace tells of a job, and how it looks as a timeline.
#include "core/replay/measured_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <functional>

#include "core/replay/job_timeline.h"
#include "core/replay/replay.h"
#include "tests/replay/traced_simulation.h"

namespace deft::replay {
namespace {

using testing::HasSubstr;

TEST(MeasuredJob, OnlyOptionsOnWhichNodesAgreeAreTakenFromATrace) {
  auto job = traced_simulation(busy_profile(), "fifo", {.steps = 20, .nodes = {{}, {}}});
  auto& options = job.nodes.front().trace.header.options;
  options["partition_bytes"] = "65536";
  options["flag_file"] = "/proc/self/status";  // whose lines would be in an error
  options["of_a_newer_version"] = "on";
  const auto config = config_of(options);
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->bytes("partition_bytes"), 65536U);
  EXPECT_EQ(config->text("flag_file"), "");
  const auto measured = measure(job);
  ASSERT_TRUE(measured) << measured.error().message();
  EXPECT_THAT(measured->problems, testing::Contains(HasSubstr("of_a_newer_version")));
  EXPECT_TRUE(replay(*measured, {}));
  options["partition_bytes"] = "many";
  EXPECT_THAT(config_of(options).error().message(), HasSubstr("partition_bytes"));
}

TEST(MeasuredJob, RanksWithoutRecordsCostNothing) {
  auto job = traced_simulation(busy_profile(), "fifo", {.steps = 20, .nodes = {{}, {}}});
  for (auto& node : job.nodes) node.trace.header.ranks.resize(1 << 20);
  EXPECT_EQ(recorded_workers(job.nodes[0].trace), std::vector<std::uint32_t>{0});
  EXPECT_TRUE(measure(job));
  EXPECT_LT(make_timeline(job).tracks.size(), 100U);
  auto& records = job.nodes[0].trace.records;
  records.emplace_back(1, 1, trace::StageTrace{.worker = 77, .stage = 1});
  records.emplace_back(1, 1, trace::StageTrace{.worker = 1 << 19, .stage = 1});
  EXPECT_EQ(recorded_workers(job.nodes[0].trace), (std::vector<std::uint32_t>{0, 77}));
}

TEST(MeasuredJob, SettingsThatChangedMeanwhileAreNamed) {
  auto job = traced_simulation(busy_profile(), "fifo", {.steps = 20, .nodes = {{}, {}}});
  EXPECT_THAT(measure(job)->problems, testing::IsEmpty());
  auto& records = job.nodes[0].trace.records;
  const TimeUs at_us = records.back().begin_us();
  records.emplace_back(at_us, at_us, trace::SettingsTrace{2});
  EXPECT_THAT(measure(job)->problems, testing::Contains(HasSubstr("settings were changed meanwhile")));
}

// Whatever overlaps: each transfer has the first track of its link that is free.
TEST(MeasuredJob, TransfersThatOverlapHaveTracksOfTheirOwn) {
  JobTrace job;
  job.nodes.emplace_back().trace.header = {.job = "j", .host = "h", .links = {"gloo:eth0"}};
  auto& records = job.nodes.front().trace.records;
  std::vector<TimeUs> free_us;
  std::vector<std::string> expected;
  for (std::uint64_t i = 0; i < 3000; ++i) {
    const auto begin_us = static_cast<TimeUs>(1000 + 7 * i);
    const TimeUs end_us = begin_us + 1 + static_cast<TimeUs>(i * 7919 % 1301 * (i % 3));
    records.emplace_back(begin_us, end_us, trace::TransferTrace{.number = i, .stage = 3});
    const auto at = std::ranges::find_if(free_us, [&](TimeUs us) { return us <= begin_us; }) - free_us.begin();
    if (at == std::ssize(free_us)) free_us.push_back(0);
    free_us[static_cast<std::size_t>(at)] = end_us;
    expected.push_back(at == 0 ? "gloo:eth0" : "gloo:eth0 #" + std::to_string(at + 1));
  }
  ASSERT_GT(free_us.size(), 50U);
  const auto timeline = make_timeline(job);
  for (const auto& slice : timeline.slices) {
    if (slice.category != "transfer") continue;
    EXPECT_EQ(timeline.tracks[slice.track].name, expected[slice.flows.front() - 1]);
  }
}

TEST(MeasuredJob, AShortTraceSaysWhatIsMissing) {
  const auto measured = measure(traced_simulation(busy_profile(), "fifo", {.steps = 4, .nodes = {{}, {}}}));
  ASSERT_FALSE(measured);
  EXPECT_THAT(measured.error().message(), HasSubstr("trace more steps"));
}

// Plans that merge steps hand a bucket in only in the last step of its generation.
void keep_gradients(JobTrace& job, const std::function<bool(const trace::GradientTrace&)>& keeps) {
  for (auto& node : job.nodes)
    std::erase_if(node.trace.records, [&](const trace::TraceRecord& record) {
      return record.kind() == trace::TraceKind::kGradient && !keeps(record.as<trace::GradientTrace>());
    });
}

TEST(MeasuredJob, StepsWhoseGradientsAreMergedIntoLaterOnesCount) {
  const auto truth = busy_profile();
  auto job = traced_simulation(truth, "fifo", {.steps = 42, .nodes = {{}, {}}});
  const auto plain = measure(job);
  ASSERT_TRUE(plain);
  auto merged = job;
  keep_gradients(merged, [](const trace::GradientTrace& gradient) { return gradient.last_step % 3 == 0; });
  auto cycles = job;
  keep_gradients(
      cycles, [](const trace::GradientTrace& gradient) { return gradient.last_step % 2 == gradient.first_tensor % 2; });
  for (const auto& each : {merged, cycles}) {
    const auto measured = measure(each);
    ASSERT_TRUE(measured) << measured.error().message();
    EXPECT_EQ(measured->steps_us, plain->steps_us);
    EXPECT_NEAR(measured->rest_us, plain->rest_us, 2);
    for (std::size_t i = 0; i < truth.buckets.size(); ++i)
      EXPECT_NEAR(measured->profile.buckets[i].backward_us, plain->profile.buckets[i].backward_us, 3) << i;
  }
  keep_gradients(job, [](const trace::GradientTrace& gradient) { return gradient.first_tensor != 5; });
  const auto never = measure(job);
  ASSERT_FALSE(never);
  EXPECT_THAT(never.error().message(), HasSubstr("in none of the traced steps"));
}

// Keeps so many of a hundred records, at random.
void lose_records(std::vector<trace::TraceRecord>& records, int kept, std::uint32_t seed) {
  std::uint32_t state = seed | 1U;
  std::erase_if(records, [&](const trace::TraceRecord&) {
    state = state * 1664525U + 1013904223U;
    return static_cast<int>((state >> 16U) % 100U) >= kept;
  });
}

TEST(MeasuredJob, FewMissingRecordsAreNoObstacle) {
  const auto whole = traced_simulation(busy_profile(), "bytescheduler", {.steps = 12, .nodes = {{}, {}}});
  int replayed = 0;
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    auto job = whole;
    for (auto& node : job.nodes) lose_records(node.trace.records, 98, 1000 * seed + node.trace.header.node);
    const auto measured = measure(job);
    replayed += measured && replay(*measured, {}) ? 1 : 0;
  }
  EXPECT_GE(replayed, 20);
}

// The reader gives what it could read: any part of the records may be missing.
RC_GTEST_PROP(MeasuredJob, WhateverIsMissingIsAnErrorOrAValidProfile, ()) {
  auto job = traced_simulation(busy_profile(), "bytescheduler", {.steps = 12, .nodes = {{}, {}}});
  for (auto& node : job.nodes)
    lose_records(node.trace.records, *rc::gen::inRange(1, 100), *rc::gen::arbitrary<std::uint32_t>());
  static_cast<void>(make_timeline(job));
  const auto measured = measure(job);
  if (!measured) return;
  RC_ASSERT(model::check_profile(measured->profile).has_value());
  const auto prediction = replay(*measured, {});
  if (prediction) RC_ASSERT(prediction->step_us_p50 > 0);
}

TEST(JobTimeline, NodesKeepTheirNumbersIfAFileIsMissing) {
  auto job = traced_simulation(busy_profile(), "fifo", {.steps = 8, .nodes = {{}, {}, {}}});
  job.nodes.erase(job.nodes.begin());
  const auto timeline = make_timeline(job);
  ASSERT_EQ(timeline.nodes.size(), 2U);
  for (std::uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(timeline.nodes[i].number, i + 1);
    EXPECT_THAT(timeline.nodes[i].name, HasSubstr("node " + std::to_string(i + 1)));
  }
  for (const auto& track : timeline.tracks) EXPECT_GE(track.node, 1U);
}

TEST(JobTimeline, BeginsWithTheFirstEventAndNotWithAnAnswerOfTheClock) {
  auto job = traced_simulation(busy_profile(), "fifo", {.steps = 8, .nodes = {{}, {}}});
  const TimeUs begin_us = job.nodes[0].trace.records.front().begin_us();
  auto& records = job.nodes[1].trace.records;
  records.insert(records.begin(), {begin_us - 500'000, begin_us - 499'000, trace::ClockTrace{begin_us - 499'500}});
  EXPECT_EQ(beginning_of(job), begin_us);
  EXPECT_EQ(std::ranges::min(make_timeline(job).slices, {}, &TrackSlice::begin_us).begin_us, 0);
}

// Viewers need slices of a track to nest.
RC_GTEST_PROP(JobTimeline, SlicesOfATrackNestOrFollowEachOther, ()) {
  const auto policy = *rc::gen::element<std::string>("fifo", "bytescheduler", "p3");
  const auto job =
      traced_simulation(busy_profile(*rc::gen::inRange(1, 60) * 0.001), policy, {.steps = 8, .nodes = {{}, {}}});
  const auto timeline = make_timeline(job);
  RC_ASSERT(!timeline.slices.empty());
  std::vector<TrackSlice> open;
  for (const auto& slice : timeline.slices) {
    RC_ASSERT(slice.track < timeline.tracks.size());
    RC_ASSERT(slice.begin_us >= 0 && slice.end_us >= slice.begin_us);
    while (!open.empty() && (open.back().track != slice.track || open.back().end_us <= slice.begin_us)) open.pop_back();
    const bool nests = open.empty() || slice.end_us <= open.back().end_us;  // RC_ASSERT would evaluate both sides
    RC_ASSERT(nests);
    open.push_back(slice);
  }
}

}  // namespace
}  // namespace deft::replay
