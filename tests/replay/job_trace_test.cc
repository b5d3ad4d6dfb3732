#include "core/replay/job_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "core/replay/launches.h"

namespace deft::replay {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using trace::ClockTrace;
using trace::NodeTrace;
using trace::StageTrace;
using trace::TraceRecord;

constexpr TimeUs kAhead = 70'000'000;  // node 1's clock is so far ahead of the leader's

NodeTrace node(std::uint32_t number, std::uint64_t incarnation = 5, std::uint32_t nodes = 2) {
  NodeTrace trace;
  trace.header.job = "j", trace.header.incarnation = incarnation, trace.header.node = number,
  trace.header.nodes = nodes;
  trace.complete = true;
  const TimeUs shift = number == 0 ? 0 : kAhead;
  for (std::uint64_t step = 0; step < 5; ++step) {
    const TimeUs at_us = 1'000'000 + static_cast<TimeUs>(step) * 1000 + shift;
    trace.records.emplace_back(at_us, at_us, StageTrace{.worker = 0, .stage = 1, .step = step});
    if (number != 0) trace.records.emplace_back(at_us, at_us + 100, ClockTrace{at_us + 50 - shift});
  }
  return trace;
}

TEST(JobTrace, PutsAllNodesOnTheLeadersClock) {
  auto job = join_nodes({node(1), node(0)}, {"b", "a"});
  ASSERT_TRUE(job);
  EXPECT_THAT(job->problems, IsEmpty());
  ASSERT_EQ(job->nodes.size(), 2U);
  ASSERT_NE(job->leader(), nullptr);
  EXPECT_EQ(job->nodes[1].trace.header.node, 1U);
  EXPECT_NEAR(static_cast<double>(job->nodes[1].trace.records.front().begin_us()),
              static_cast<double>(job->leader()->trace.records.front().begin_us()), 1);
}

NodeTrace node_of_day(std::uint64_t begun_s, std::uint32_t number, std::uint64_t incarnation) {
  NodeTrace trace = node(number, incarnation);
  trace.header.begun_s = begun_s;
  return trace;
}

// An incarnation is random, so it tells nothing of age, and an older run may have had more nodes.
TEST(JobTrace, TheNewestRunWithItsLeaderCountsAndOthersAreNamed) {
  auto job =
      join_nodes({node_of_day(100, 0, 9), node_of_day(100, 1, 9), node_of_day(200, 0, 4), node_of_day(300, 1, 11)},
                 {"p", "q", "r", "s"});
  ASSERT_TRUE(job);
  ASSERT_EQ(job->nodes.size(), 1U);
  EXPECT_EQ(job->nodes[0].trace.header.incarnation, 4U);
  for (const char* name : {"p", "q", "s"})
    EXPECT_THAT(job->problems, Contains(HasSubstr(std::string(name) + " is of another run")));
}

NodeTrace of_job(const std::string& name, NodeTrace trace) {
  trace.header.job = name;
  return trace;
}

// It is opened by the job, so it begins later, and writes into the same folder.
TEST(JobTrace, AProcessSetGivesWayToItsJobAndIsNamed) {
  const auto set = of_job("j.set1", node_of_day(12, 0, 8));
  const auto job = join_nodes({node_of_day(10, 0, 5), set, node_of_day(10, 1, 5)}, {"p", "q", "r"});
  ASSERT_TRUE(job);
  EXPECT_EQ(job->nodes.size(), 2U);
  EXPECT_EQ(job->nodes[0].trace.header.job, "j");
  EXPECT_THAT(job->problems, testing::ElementsAre(testing::AllOf(HasSubstr("q is of the job 'j.set1'"),
                                                                 HasSubstr("beside 'j'"), HasSubstr("files alone"))));
  const auto alone = join_nodes({set}, {"q"});
  ASSERT_TRUE(alone);
  EXPECT_EQ(alone->nodes[0].trace.header.job, "j.set1");
}

TEST(JobTrace, OfSeveralJobsTheNewestCountsAndTheOthersAreNamed) {
  const auto job = join_nodes({of_job("a", node_of_day(10, 0, 5)), of_job("b", node_of_day(12, 0, 4)),
                               of_job("a.settled", node_of_day(11, 0, 9))},
                              {"p", "q", "r"});
  ASSERT_TRUE(job);
  EXPECT_EQ(job->nodes[0].trace.header.job, "b");
  EXPECT_THAT(job->problems, Contains(HasSubstr("p is of the job 'a', and is left out beside 'b'")));
  EXPECT_THAT(job->problems, Contains(HasSubstr("r is of the job 'a.settled'")));
}

TEST(JobTrace, OfFilesThatDoNotTellTheirDayTheRunWithMostNodesCounts) {
  auto job = join_nodes({node(0, 4), node(1, 4), node(0, 11)}, {"p", "q", "r"});
  ASSERT_TRUE(job);
  EXPECT_EQ(job->nodes[0].trace.header.incarnation, 4U);
}

TEST(JobTrace, WhatIsMissingOrTwiceIsNamed) {
  auto job = join_nodes({node(0, 5, 3), node(0, 5, 3), node(1, 5, 3)}, {"a", "b", "c"});
  ASSERT_TRUE(job);
  EXPECT_THAT(job->problems, Contains(HasSubstr("b is left out: node 0 has two files")));
  EXPECT_THAT(job->problems, Contains(HasSubstr("the trace of node 2 is missing")));
}

TEST(JobTrace, AnswersOfTheClockThatContradictTheOthersAreNamed) {
  auto jumped = node(1);
  const TimeUs at_us = jumped.records.back().begin_us();
  jumped.records.emplace_back(at_us, at_us + 5000, ClockTrace{at_us + 900'000'000});
  const auto job = join_nodes({node(0), jumped}, {"a", "b"});
  ASSERT_TRUE(job);
  EXPECT_EQ(job->nodes.size(), 2U);
  EXPECT_THAT(job->problems, Contains(HasSubstr("b: 1 answers of the leader's clock contradict")));
}

// `deft explain --live` reads what daemons dump, and one of them may not have written since the last time.
TEST(JobTrace, ANodeWhoseEventsAreOfAnotherTimeIsLeftOut) {
  auto newer = node(0);
  for (auto& record : newer.records) record = record.at(record.begin_us() + 5'000'000, record.end_us() + 5'000'000);
  const auto job = join_nodes({newer, node(1)}, {"a", "b"});
  ASSERT_TRUE(job);
  EXPECT_EQ(job->nodes.size(), 1U);
  EXPECT_THAT(job->problems, Contains(HasSubstr("node 1 is left out: its events are of another time")));
}

TEST(JobTrace, ANodeWithoutClockSamplesIsLeftOut) {
  auto blind = node(1);
  std::erase_if(blind.records, [](const TraceRecord& r) { return r.kind() == trace::TraceKind::kClock; });
  auto job = join_nodes({node(0), blind}, {"a", "b"});
  ASSERT_TRUE(job);
  EXPECT_EQ(job->nodes.size(), 1U);
  EXPECT_THAT(job->problems, Contains(HasSubstr("b is left out")));
}

// Three thousand records that stand for 200,000 pairs of a tensor and a bucket each, and then steps of 100,000 buckets each.
TEST(JobTrace, RecordsThatStandForMoreThanAComputerCanDoAreLeftOut) {
  trace::TraceGroup group{.group = 0, .name = "g"};
  for (std::uint32_t i = 0; i < 100'000; ++i) {
    group.tensors.push_back({"t", 4, i});
    group.buckets.push_back({4, i, {i}});
  }
  auto gradients = node(0, 5, 1), steps = node(0, 5, 1);
  gradients.groups = steps.groups = {group};
  const TimeUs at_us = gradients.records.back().begin_us();
  for (std::uint64_t i = 0; i < 3000; ++i) {
    gradients.records.emplace_back(at_us, at_us, trace::GradientTrace{.tensors = 0xffff'ffff, .generation = i});
    steps.records.emplace_back(at_us, at_us, StageTrace{.worker = 0, .stage = 1, .step = 5 + i});
  }
  for (auto* const hostile : {&gradients, &steps}) {
    const auto job = join_nodes({std::move(*hostile)}, {"a"});
    ASSERT_TRUE(job);
    EXPECT_THAT(job->problems, Contains(HasSubstr("too many steps of too many buckets")));
    EXPECT_LT(job->nodes[0].trace.records.size(), 1500U);
    EXPECT_GT(job->nodes[0].trace.records.size(), 500U);
    EXPECT_THAT(launches_of(job->nodes[0].trace), IsEmpty());
  }
}

// 64 of them, read as if they counted, would leave room for a quarter of a million records of the job.
TEST(JobTrace, FilesOfOtherJobsTakeNoRoomFromTheJob) {
  const auto folder = std::filesystem::path(testing::TempDir()) / ("deft-job-trace-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const auto opened = trace::TraceFolder::open(folder.string(), trace::TraceFolder::Make::kLast);
  ASSERT_TRUE(opened) << opened.error().message();
  const auto write = [&](const std::string& name, const NodeTrace& trace) {
    auto writer = trace::TraceWriter::create(*opened, name + ".trace", trace.header);
    ASSERT_TRUE(writer) << writer.error().message();
    EXPECT_TRUE((*writer)->records(trace.records));
    EXPECT_TRUE((*writer)->finish(0));
  };
  constexpr std::size_t kMany = kMostJobRecords / 64 + 1000;
  auto large = of_job("large", node_of_day(20, 0, 5));
  large.header.nodes = 1;
  while (large.records.size() < kMany) {
    const auto at_us = static_cast<TimeUs>(1'000'000 + large.records.size());
    large.records.emplace_back(at_us, at_us, StageTrace{.worker = 0, .stage = 1, .step = large.records.size()});
  }
  write("large", large);
  for (int i = 0; i < 64; ++i) write("old" + std::to_string(i), of_job("old", node_of_day(10, 0, 100 + i)));
  const auto job = read_job(folder.string());
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(job) << job.error().message();
  ASSERT_EQ(job->nodes.size(), 1U);
  EXPECT_EQ(job->nodes[0].trace.records.size(), large.records.size());
  EXPECT_EQ(job->problems.size(), 64U);
  EXPECT_THAT(job->problems, testing::Each(HasSubstr("is of the job 'old', and is left out beside 'large'")));
}

TEST(JobTrace, AFolderWithoutTracesIsAnErrorThatSaysWhatToDo) {
  const auto job = read_job("/nonexistent");
  ASSERT_FALSE(job);
  EXPECT_THAT(job.error().message(), HasSubstr("/nonexistent"));
}

}  // namespace
}  // namespace deft::replay
