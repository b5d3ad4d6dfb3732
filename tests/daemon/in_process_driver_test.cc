// A link that the workers run: what they are told, and what their answers mean.
#include "daemon/channel/in_process_driver.h"

#include <gtest/gtest.h>

namespace deft::daemon {
namespace {

struct Told {
  std::size_t worker;
  shm::Record record;
};

class InProcessDriverTest : public ::testing::Test {
 protected:
  [[nodiscard]] shm::StartRecord part(std::uint64_t bytes) const {
    return {.tells_segments = tells_segments_ ? 1U : 0U, .bytes = bytes};
  }
  // Starts launch `number`, of which each of the two workers has records of these sizes.
  void start(std::uint64_t number, const std::vector<std::uint64_t>& sizes) {
    for (auto& records : records_ = InProcessDriver::Records(2))
      for (const std::uint64_t bytes : sizes) records.push_back(part(bytes));
    SubCommTask launch;
    launch.number = number;
    driver_.start(launch);
  }
  bool is_violation(std::size_t worker, std::uint64_t token) {
    const auto answered = driver_.answered(worker, token);
    return !answered && answered.error().kind == ErrorKind::kViolation;
  }
  // What the worker `worker` sends to rank `peer` while it runs launch `number`, or receives from it.
  Result<void> move(std::size_t worker, std::uint64_t number, std::uint32_t peer, bool is_sent = true) {
    return driver_.moved(worker, {.peer_rank = peer,
                                  .launch = number,
                                  .bytes = 40,
                                  .began_us = 5,
                                  .ended_us = 9,
                                  .part = static_cast<std::uint32_t>(model::SegmentPart::kResult),
                                  .is_sent = is_sent ? 1U : 0U});
  }
  void run_reactor() {
    reactor_.post([this] { reactor_.stop(); });
    reactor_.run();
  }

  ManualClock clock_;
  Reactor reactor_{clock_};
  InProcessDriver::Records records_;
  std::vector<Told> told_;
  std::vector<TransferDone> done_;
  int opened_ = 0;
  bool tells_segments_ = false;
  // Ranks 1 and 2 are here, on node 1; ranks 0 and 3 on nodes 0 and 2.
  InProcessDriver driver_{reactor_,
                          3,
                          {1, {1, 2}, {0, 1, 1, 2}},
                          [this](const SubCommTask&) { return records_; },
                          [this](std::size_t worker, const shm::Record& record) {
                            told_.push_back({worker, record});
                          },
                          [this](const Result<void>& result) { opened_ += result ? 1 : 0; },
                          [this](TransferDone done) { done_.push_back(std::move(done)); }};
};

TEST_F(InProcessDriverTest, IsOpenAtOnceBecauseTheWorkersOpenTheLink) {
  EXPECT_EQ(opened_, 0) << "not before the job is ready for it";
  run_reactor();
  EXPECT_EQ(opened_, 1);
  EXPECT_FALSE(driver_.runs_in_daemon());
}

// A worker that is stopped says nothing, and then its link does not stall: the worker does.
TEST_F(InProcessDriverTest, ALaunchIsUnderWayWhileEachWorkerThatOwesAnAnswerSaysThatItWaits) {
  EXPECT_EQ(driver_.under_way_below(9), 9u) << "nothing was given to it";
  start(7, {100});
  start(8, {100});
  EXPECT_EQ(driver_.under_way_below(9), 7u);
  ASSERT_TRUE(driver_.waits(0, 7));
  EXPECT_EQ(driver_.under_way_below(9), 7u) << "worker 1 has not begun";
  ASSERT_TRUE(driver_.waits(1, 7));
  EXPECT_EQ(driver_.under_way_below(9), 8u) << "a worker runs one launch at a time";
  clock_.advance(InProcessDriver::kFreshUs);
  ASSERT_TRUE(driver_.waits(1, 7));
  EXPECT_EQ(driver_.under_way_below(9), 7u) << "worker 0 has stopped";
  ASSERT_TRUE(driver_.answered(0, 7));
  EXPECT_EQ(driver_.under_way_below(9), 8u) << "it has ended";
  ASSERT_TRUE(driver_.answered(1, 7));
  ASSERT_TRUE(driver_.waits(0, 8) && driver_.waits(1, 8));
  EXPECT_EQ(driver_.under_way_below(12), 12u) << "the newest one";
  for (const std::uint64_t unknown : {7u, 9u}) {
    const auto refused = driver_.waits(0, unknown);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::kViolation);
  }
}

TEST_F(InProcessDriverTest, EveryWorkerIsToldWithTheLinksNumberAndTheLaunchs) {
  start(7, {100});
  ASSERT_EQ(told_.size(), 2u);
  for (std::size_t worker = 0; worker < 2; ++worker) {
    EXPECT_EQ(told_[worker].worker, worker);
    ASSERT_EQ(told_[worker].record.kind(), shm::RecordKind::kStart);
    const auto start = told_[worker].record.as<shm::StartRecord>();
    EXPECT_EQ(start.launch, 7u);
    EXPECT_EQ(start.link, 3u);
    EXPECT_EQ(start.bytes, 100u);
  }
}

TEST_F(InProcessDriverTest, ALaunchIsDoneWhenEveryWorkerHasAnsweredEachRecord) {
  start(1, {10, 20});
  for (const std::size_t worker : {0U, 1U, 1U}) {
    EXPECT_TRUE(driver_.answered(worker, 1));
    EXPECT_TRUE(done_.empty());
  }
  EXPECT_TRUE(driver_.answered(0, 1));
  ASSERT_EQ(done_.size(), 1u);
  EXPECT_EQ(done_[0].token, 1u);
  EXPECT_EQ(done_[0].bytes, 30u);
  EXPECT_TRUE(done_[0].result);
}

TEST_F(InProcessDriverTest, AnAnswerToNothingIsAViolation) {
  EXPECT_TRUE(is_violation(0, 1));
  start(1, {10});
  ASSERT_TRUE(driver_.answered(0, 1));
  EXPECT_TRUE(is_violation(0, 1)) << "the other worker still owes its answer";
  EXPECT_TRUE(is_violation(1, 2));
  EXPECT_TRUE(driver_.answered(1, 1));
  EXPECT_TRUE(is_violation(1, 1)) << "it is done";
}

TEST_F(InProcessDriverTest, ALaunchBehindAnotherBeginsWhenThatEnds) {
  start(1, {10});
  clock_.advance(100);
  start(2, {10});
  ASSERT_TRUE(driver_.answered(0, 1));
  clock_.advance(5000);
  for (const std::uint64_t token : {1U, 2U}) ASSERT_TRUE(driver_.answered(1, token));
  clock_.advance(30);
  ASSERT_TRUE(driver_.answered(0, 2));
  ASSERT_EQ(done_.size(), 2u);
  EXPECT_FALSE(done_[0].overlapped);
  EXPECT_TRUE(done_[1].overlapped);
  EXPECT_EQ(done_[0].link_us, 5100);
  EXPECT_EQ(done_[1].link_us, 30) << "no time is counted twice";
  for (const TransferDone& done : done_) {
    ASSERT_EQ(done.spans.size(), 1u) << "a trace has what the link took";
    EXPECT_EQ(done.spans[0].stage, trace::TransferStage::kLink);
    EXPECT_EQ(done.spans[0].end_us - done.spans[0].begin_us, *done.link_us);
  }
}

TEST_F(InProcessDriverTest, WhatHasNothingToSendIsDoneWithoutAnAnswer) {
  start(1, {10});
  start(2, {});
  EXPECT_TRUE(done_.empty()) << "not while its caller still looks at the queue";
  run_reactor();
  ASSERT_EQ(done_.size(), 1u) << "the first one waits for its answers";
  EXPECT_EQ(done_[0].token, 2u);
}

TEST_F(InProcessDriverTest, WorkersTellWhatTheySendAndReceiveIfThatIsAskedFor) {
  tells_segments_ = true;
  start(1, {10, 20});
  ASSERT_TRUE(move(0, 1, 3));
  ASSERT_TRUE(driver_.answered(0, 1));
  ASSERT_TRUE(move(0, 1, 3, false));
  ASSERT_TRUE(move(1, 1, 0, false));
  ASSERT_TRUE(move(1, 1, 1)) << "the other rank of this node: no node hears of it";
  for (const std::size_t worker : {0U, 1U, 1U}) ASSERT_TRUE(driver_.answered(worker, 1));
  ASSERT_EQ(done_.size(), 1u);
  ASSERT_NE(done_[0].segments, nullptr);
  const auto moves = done_[0].segments->moves();
  ASSERT_EQ(moves.size(), 3u);
  EXPECT_EQ(moves[0].peer, 2u) << "rank 3 is on node 2";
  EXPECT_EQ(moves[0].request, 0u);
  EXPECT_EQ(moves[1].request, 1u) << "of the second record";
  EXPECT_EQ(moves[2].peer, 0u);
  EXPECT_TRUE(moves[0].is_sent && !moves[1].is_sent && !moves[2].is_sent);
  EXPECT_EQ(moves[0].round, 1u * 4 + 3) << "from rank 1 to rank 3; rank 3 makes the same number of it";
  EXPECT_EQ(moves[1].round, 3u * 4 + 1);
  EXPECT_EQ(moves[2].round, 0u * 4 + 2);
  EXPECT_EQ(moves[0].part, model::SegmentPart::kResult);
  EXPECT_EQ(moves[0].bytes, 40u);
  EXPECT_EQ(moves[0].began_us, 5);
  EXPECT_EQ(moves[0].ended_us, 9);
}

TEST_F(InProcessDriverTest, WhatNobodyAskedForIsAViolation) {
  start(1, {10});
  EXPECT_EQ(move(0, 1, 3).error().kind, ErrorKind::kViolation);
  tells_segments_ = true;
  start(2, {10});
  EXPECT_TRUE(move(0, 2, 3));
  EXPECT_EQ(move(0, 7, 3).error().kind, ErrorKind::kViolation);
  ASSERT_TRUE(driver_.answered(0, 2));
  EXPECT_EQ(move(0, 2, 3).error().kind, ErrorKind::kViolation) << "this worker has run it";
}

TEST_F(InProcessDriverTest, WhatCannotHaveMovedIsAViolation) {
  tells_segments_ = true;
  start(1, {10});
  EXPECT_EQ(move(0, 1, 4).error().kind, ErrorKind::kViolation) << "there is no rank 4";
  const shm::SegmentRecord sound{.peer_rank = 3, .launch = 1, .began_us = 5, .ended_us = 9, .part = 1};
  EXPECT_TRUE(driver_.moved(0, sound));
  auto spoiled = sound;
  for (const std::uint32_t part : {0U, 4U, ~0U}) {
    spoiled.part = part;
    EXPECT_FALSE(driver_.moved(0, spoiled)) << "part " << part;
  }
  spoiled = sound;
  spoiled.began_us = 10;
  EXPECT_FALSE(driver_.moved(0, spoiled)) << "it ends before it begins";
  spoiled = sound;
  spoiled.ended_us = static_cast<std::uint64_t>(MonotonicClock::now()) + 1'000'000'000;
  EXPECT_FALSE(driver_.moved(0, spoiled)) << "it ends in the future";
  spoiled.ended_us = ~std::uint64_t{0};
  EXPECT_FALSE(driver_.moved(0, spoiled));
}

// A worker may tell more than there can be.
TEST_F(InProcessDriverTest, OfManyMovesThoseThatFitAreKept) {
  tells_segments_ = true;
  start(1, {10});
  for (int i = 0; i < 100'000; ++i) ASSERT_TRUE(move(0, 1, 3));
  for (const std::size_t worker : {0U, 1U}) ASSERT_TRUE(driver_.answered(worker, 1));
  EXPECT_EQ(done_[0].segments->moves().size(), 2u * 4 * 4) << "four of each rank for each of the two workers";
}

TEST_F(InProcessDriverTest, NothingComesAfterAnAbort) {
  start(1, {});
  start(2, {10});
  driver_.abort("the job has ended");
  run_reactor();
  EXPECT_EQ(opened_, 0);
  EXPECT_TRUE(is_violation(0, 2));
  start(3, {10});
  EXPECT_EQ(told_.size(), 2u);
  EXPECT_TRUE(done_.empty());
  EXPECT_TRUE(driver_.finished());
}

}  // namespace
}  // namespace deft::daemon
