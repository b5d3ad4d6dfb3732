// The daemon's end of a worker's rings, against a worker in the same process.
#include "daemon/server/ring_pump.h"
#include "core/base/descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <vector>

#include "daemon/base/memory_budget.h"

namespace deft::daemon {
namespace {

class RingPumpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = RingPump::open(reactor_, *budget_.allocate("test-rings", shm::kControlSegmentBytes), {7, 1000},
                                 {[this](const shm::Record& record) {
                                    records_.push_back(record);
                                    if (records_.size() == awaited_) reactor_.stop();
                                  },
                                  [this](const Error& error) { errors_.push_back(error); }, [this] { ++woken_; }});
    ASSERT_TRUE(opened) << opened.error().message();
    pump_ = std::move(*opened);
    const auto passed = pump_->descriptors();
    memory_ = *shm::Segment::map(Descriptor(dup(passed[0])), shm::kControlSegmentBytes);
    rings_ = *shm::ControlSegment::open(memory_);
    daemon_bell_ = *shm::Doorbell::adopt(Descriptor(dup(passed[1])));
    submissions_.emplace(rings_->submission(), rings_->submission_records());
    completions_.emplace(rings_->completion(), rings_->completion_records());
  }
  void submit(std::uint64_t step) {
    if (submissions_->push(shm::StageRecord{.stage = 1, .step = step}) == shm::Push::kWake) daemon_bell_.ring();
  }
  void run_reactor(TimeUs us = 0) {
    reactor_.after(us, [this] { reactor_.stop(); });
    reactor_.run();
  }
  // Until so many have come, without a pause that looks for them.
  void run_until_records(std::size_t count) {
    awaited_ = count;
    const auto patience = reactor_.after(60'000'000, [this] { reactor_.stop(); });
    if (records_.size() < count) reactor_.run();
    reactor_.cancel(patience);
    ASSERT_EQ(records_.size(), count);
  }

  Reactor reactor_;
  MemoryBudget budget_{1 << 20};
  std::vector<shm::Record> records_;
  std::size_t awaited_ = 0;
  std::vector<Error> errors_;
  std::unique_ptr<RingPump> pump_;
  shm::Segment memory_;
  std::optional<shm::ControlSegment> rings_;
  shm::Doorbell daemon_bell_;
  int woken_ = 0;
  std::optional<shm::Producer> submissions_;
  std::optional<shm::Consumer> completions_;
};

TEST_F(RingPumpTest, RecordsComeInOrderAlsoToAReactorThatSleeps) {
  submit(0);
  run_until_records(1);
  reactor_.after(0, [this] { reactor_.after(5000, [this] { submit(1); }); });
  run_until_records(2);
  for (std::uint64_t step = 0; step < 2; ++step) EXPECT_EQ(records_[step].as<shm::StageRecord>().step, step);
}

TEST_F(RingPumpTest, TheWorkerSeesHeartbeatsWhileTheLoopRuns) {
  const auto before = rings_->heartbeats();
  EXPECT_GT(before, 0u) << "a worker that waits at once is not to think that nobody counts";
  for (int runs = 0; runs < 6000 && rings_->heartbeats() <= before + 3; ++runs) run_reactor(10'000);
  const auto after = rings_->heartbeats();
  EXPECT_GT(after, before + 3);
  EXPECT_EQ(rings_->heartbeats(), after) << "the loop stands still";
}

TEST_F(RingPumpTest, CompletionsBeyondTheRingWaitAndComeInOrder) {
  constexpr std::uint64_t kMany = 3 * shm::kRingCapacity;
  const RingCounts before = ring_counts();
  for (std::uint64_t i = 0; i < kMany; ++i) pump_->complete(shm::OperationDoneRecord{.operation = i});
  EXPECT_EQ(ring_counts().overflows, before.overflows + kMany - shm::kRingCapacity);
  shm::Record record;
  std::uint64_t next = 0;
  while (next < kMany) {
    if (completions_->pop(record) == shm::Pop::kRecord)
      ASSERT_EQ(record.as<shm::OperationDoneRecord>().operation, next++);
    else
      run_reactor(2000);
  }
  EXPECT_TRUE(errors_.empty());
}

TEST_F(RingPumpTest, ASleepingWorkerIsWokenOnce) {
  pump_->complete(shm::FailedRecord{});
  EXPECT_EQ(woken_, 0) << "it is awake";
  shm::Record record;
  ASSERT_EQ(completions_->pop(record), shm::Pop::kRecord);
  ASSERT_TRUE(completions_->prepare_to_sleep());
  pump_->complete(shm::FailedRecord{});
  pump_->complete(shm::FailedRecord{});
  EXPECT_EQ(woken_, 1);
}

// Both sides have one open file, so the worker may make the daemon's descriptor block, and empty it when the daemon has seen it rung.
TEST_F(RingPumpTest, AWorkerThatMakesTheBellBlockDoesNotHoldTheLoop) {
  submit(0);
  run_until_records(1);
  const int bell = daemon_bell_.descriptor();
  ASSERT_EQ(fcntl(bell, F_SETFL, 0), 0);
  const Descriptor first(eventfd(1, EFD_CLOEXEC));  // is served before the bell, in the same round
  ASSERT_TRUE(reactor_.watch(first.get(), EPOLLIN, [&](std::uint32_t) {
    std::uint64_t count = 0;
    EXPECT_EQ(::read(bell, &count, sizeof count), ssize_t{sizeof count});
    reactor_.unwatch(first.get());
  }));
  std::promise<void> done;
  std::atomic<bool> is_held{false};
  std::thread rescue([&, ended = done.get_future()] {
    if (ended.wait_for(std::chrono::seconds(10)) == std::future_status::ready) return;
    is_held = true;
    daemon_bell_.ring();
  });
  daemon_bell_.ring();
  run_reactor(1000);
  done.set_value();
  rescue.join();
  EXPECT_FALSE(is_held);
}

TEST_F(RingPumpTest, AWorkerThatNeverReadsIsDroppedAndTheDaemonKeepsNoMore) {
  const RingCounts before = ring_counts();
  for (int i = 0; i < 200'000; ++i) pump_->complete(shm::FailedRecord{});
  ASSERT_EQ(errors_.size(), 1u);
  EXPECT_EQ(ring_counts().unread, before.unread + 1);
  EXPECT_EQ(errors_[0].kind, ErrorKind::kViolation);
  EXPECT_EQ(errors_[0].what, "it does not read its completions");
}

TEST_F(RingPumpTest, ACorruptRingIsToldOnceAndNothingComesAfterIt) {
  const RingCounts before = ring_counts();
  rings_->submission().tail = ~std::uint64_t{0};
  run_reactor(1000);
  run_reactor(1000);
  ASSERT_EQ(errors_.size(), 1u);
  EXPECT_EQ(ring_counts().corrupt, before.corrupt + 1);
  EXPECT_EQ(errors_[0].what, "its submission ring is corrupt");
  rings_->submission().tail = 1;
  run_reactor(1000);
  EXPECT_TRUE(records_.empty());
}

TEST_F(RingPumpTest, ACorruptCompletionRingIsAViolation) {
  for (std::uint32_t i = 0; i < shm::kRingCapacity; ++i) pump_->complete(shm::FailedRecord{});
  rings_->completion().head = ~std::uint64_t{0};
  pump_->complete(shm::FailedRecord{});
  ASSERT_EQ(errors_.size(), 1u);
  EXPECT_EQ(errors_[0].what, "its completion ring is corrupt");
}

TEST_F(RingPumpTest, TheRestOfAWorkerThatGoesIsTakenAtOnce) {
  const std::uint64_t most = rings_->submission_records().size();
  for (std::uint64_t step = 0; step < most; ++step) submit(step);
  pump_->take_rest();
  ASSERT_EQ(records_.size(), most);
  EXPECT_EQ(records_.back().as<shm::StageRecord>().step, most - 1);
  pump_->take_rest();
  EXPECT_EQ(records_.size(), most);
}

TEST_F(RingPumpTest, NothingComesAfterStop) {
  submit(0);
  pump_->stop();
  pump_->complete(shm::FailedRecord{});
  run_reactor(1000);
  shm::Record record;
  EXPECT_TRUE(records_.empty());
  EXPECT_EQ(completions_->pop(record), shm::Pop::kEmpty);
}

TEST_F(RingPumpTest, ItsMemoryGoesBackToTheBudget) {
  EXPECT_EQ(budget_.used_bytes(), shm::kControlSegmentBytes);
  pump_.reset();
  EXPECT_EQ(budget_.used_bytes(), 0u);
}

}  // namespace
}  // namespace deft::daemon
