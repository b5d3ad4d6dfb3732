// A link that the workers run: what they are told, and what their answers mean.
#include "daemon/channel/worker_runs.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace deft::daemon {
namespace {

struct Told {
  std::size_t worker;
  shm::Record record;
};

class WorkerRunsTest : public ::testing::Test {
 protected:
  static shm::Record part(std::uint64_t bytes) {
    shm::Record record;
    record.kind = shm::RecordKind::kStart;
    record.bytes = bytes;
    return record;
  }
  static bool done(const Result<std::optional<TransferDone>>& ran) { return ran && ran->has_value(); }

  std::vector<Told> told_;
  WorkerRuns runs_{3, 2, [this](std::size_t worker, const shm::Record& record) { told_.push_back({worker, record}); }};
};

TEST_F(WorkerRunsTest, EveryWorkerIsToldWithTheLinksNumberAndTheLaunchs) {
  runs_.start(7, 100, {{part(100)}, {part(100)}});
  ASSERT_EQ(told_.size(), 2u);
  for (std::size_t worker = 0; worker < 2; ++worker) {
    EXPECT_EQ(told_[worker].worker, worker);
    EXPECT_EQ(told_[worker].record.operation, 7u);
    EXPECT_EQ(told_[worker].record.code, 3);
    EXPECT_EQ(told_[worker].record.bytes, 100u);
  }
}

TEST_F(WorkerRunsTest, ALaunchIsDoneWhenEveryWorkerHasAnsweredEachRecord) {
  runs_.start(1, 30, {{part(10), part(20)}, {part(10), part(20)}});
  EXPECT_FALSE(done(runs_.ran(0, 1)));
  EXPECT_FALSE(done(runs_.ran(1, 1)));
  EXPECT_FALSE(done(runs_.ran(1, 1)));
  const auto last = runs_.ran(0, 1);
  ASSERT_TRUE(done(last));
  EXPECT_EQ((*last)->token, 1u);
  EXPECT_EQ((*last)->bytes, 30u);
  EXPECT_TRUE((*last)->result);
}

TEST_F(WorkerRunsTest, AnAnswerToNothingIsAViolation) {
  EXPECT_EQ(runs_.ran(0, 1).error().kind, ErrorKind::kViolation);
  runs_.start(1, 10, {{part(10)}, {part(10)}});
  ASSERT_TRUE(runs_.ran(0, 1));
  EXPECT_EQ(runs_.ran(0, 1).error().kind, ErrorKind::kViolation) << "the other worker still owes its answer";
  EXPECT_EQ(runs_.ran(1, 2).error().kind, ErrorKind::kViolation);
  EXPECT_TRUE(done(runs_.ran(1, 1)));
  EXPECT_EQ(runs_.ran(1, 1).error().kind, ErrorKind::kViolation) << "it is done";
}

TEST_F(WorkerRunsTest, ALaunchBehindAnotherBeginsWhenThatEnds) {
  const TimeUs began_us = MonotonicClock::now();
  runs_.start(1, 10, {{part(10)}, {part(10)}});
  runs_.start(2, 10, {{part(10)}, {part(10)}});
  static_cast<void>(runs_.ran(0, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const auto first = runs_.ran(1, 1);
  static_cast<void>(runs_.ran(0, 2));
  const auto second = runs_.ran(1, 2);
  ASSERT_TRUE(done(first) && done(second));
  EXPECT_FALSE((*first)->overlapped);
  EXPECT_TRUE((*second)->overlapped);
  EXPECT_LE(*(*first)->link_us + *(*second)->link_us, MonotonicClock::now() - began_us) << "no time is counted twice";
}

TEST_F(WorkerRunsTest, WhatHasNothingToSendIsDoneWithoutAnAnswer) {
  EXPECT_FALSE(runs_.take_empty());
  runs_.start(1, 10, {{part(10)}, {part(10)}});
  runs_.start(2, 0, {{}, {}});
  const auto empty = runs_.take_empty();
  ASSERT_TRUE(empty);
  EXPECT_EQ(empty->token, 2u);
  EXPECT_FALSE(runs_.take_empty()) << "the first one waits for its answers";
}

}  // namespace
}  // namespace deft::daemon
