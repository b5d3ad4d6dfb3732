// The parts of a session, each by itself: what came, what was asked for, how far the groups are, and why the job failed.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <thread>

#include "core/base/descriptor.h"
#include "core/client/api.h"
#include "core/client/completions.h"
#include "core/client/daemon_pulse.h"
#include "core/client/look_clock.h"
#include "core/client/session.h"
#include "core/ipc/wire.h"

namespace deft::client {
namespace {

// deft_test, deft_poll and their like give 1 and 0 as answers.
TEST(ApiCalls, AnExceptionIsNeverTakenForAnAnswer) {
  deft_error error;
  EXPECT_EQ(answered(nullptr, &error, [] { return 1; }), 1);
  const auto throws = []() -> int { throw std::bad_alloc(); };
  EXPECT_EQ(answered(nullptr, &error, throws), -DEFT_EEXHAUSTED);
  EXPECT_EQ(guarded(&error, throws), DEFT_EEXHAUSTED);
  EXPECT_STREQ(error.message, "this process is out of memory");
}

TEST(JobFailure, TheFirstErrorCounts) {
  JobFailure failure;
  std::vector<std::string> told;
  failure.on_failure([&](const Error& error) { told.push_back(error.what); });
  EXPECT_FALSE(failure.failed());
  failure.fail({ErrorKind::kLost, "first", "", ""});
  failure.fail({ErrorKind::kLost, "second", "", ""});
  EXPECT_TRUE(failure.failed());
  EXPECT_EQ(failure.error()->what, "first");
  EXPECT_EQ(told, std::vector<std::string>{"first"});
  failure.on_failure([&](const Error& error) { told.push_back("late: " + error.what); });
  EXPECT_EQ(told.back(), "late: first");
}

TEST(JobFailure, ATextThatIsOverdueIsNotWaitedFor) {
  JobFailure failure;
  EXPECT_FALSE(failure.give_up_on_text(5));
  failure.expect_text(10);
  EXPECT_TRUE(failure.give_up_on_text(10 + kTextDueUs - 1));
  EXPECT_FALSE(failure.failed());
  EXPECT_FALSE(failure.give_up_on_text(10 + kTextDueUs));
  EXPECT_EQ(failure.error()->kind, ErrorKind::kLost);
}

TEST(DaemonPulse, ADaemonThatCountsNoMoreHangsAfterTheLimit) {
  DaemonPulse pulse(1000);
  TimeUs now_us = 0;
  for (std::uint64_t beats = 1; beats < 100; ++beats) EXPECT_FALSE(pulse.look(beats, now_us += 900));
  EXPECT_FALSE(pulse.look(99, now_us += 250));
  EXPECT_FALSE(pulse.look(99, now_us += 250));
  EXPECT_FALSE(pulse.look(99, now_us += 250));
  EXPECT_EQ(pulse.look(99, now_us += 250), 1000);
}

TEST(DaemonPulse, AStandstillOfBothCountsAsOneLook) {
  DaemonPulse pulse(1000);
  EXPECT_FALSE(pulse.look(1, 0));
  EXPECT_FALSE(pulse.look(1, 60'000'000));
  EXPECT_FALSE(pulse.look(2, 60'000'100));
  EXPECT_FALSE(pulse.look(2, 120'000'000));
}

TEST(DaemonPulse, ADaemonThatNeverCountsIsNotWatched) {
  DaemonPulse pulse(1000);
  for (TimeUs now_us = 0; now_us < 100'000; now_us += 250) EXPECT_FALSE(pulse.look(0, now_us));
}

TEST(LookClock, AStandstillCountsAsOneLook) {
  ManualClock machine;
  const LookClock clock(machine);
  for (int i = 0; i < 10; ++i) {
    machine.advance(LookClock::kMostUs / 2);
    EXPECT_EQ(clock.now_us(), (i + 1) * LookClock::kMostUs / 2);
  }
  machine.advance(60'000'000);
  EXPECT_EQ(clock.now_us(), 6 * LookClock::kMostUs);
  machine.advance(1);
  EXPECT_EQ(clock.now_us(), 6 * LookClock::kMostUs + 1);
}

TEST(TensorProgress, GenerationsOfATensorNeverGoBack) {
  TensorProgress progress(3);
  progress.finish(0, 2, 4);
  progress.finish(0, 1, 2);
  EXPECT_TRUE(progress.finished(0, 2, 4));
  EXPECT_FALSE(progress.finished(0, 1, 5));
  EXPECT_FALSE(progress.finished(0, 3, 0));
}

// A connection whose daemon is the test: rings, doorbells and a socket pair in this process.
class PartsTest : public ::testing::Test, public ArrivalReceiver {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    daemon_ = ipc::MessageSocket(Descriptor(ends[0]));
    auto segment = *shm::Segment::create("test-control", shm::kControlSegmentBytes);
    const auto view = shm::ControlSegment::format(segment, 1);
    submissions_.emplace(view.submission(), view.submission_records());
    completions_.emplace(view.completion(), view.completion_records());
    connection_.emplace(Attachment{ipc::MessageSocket(Descriptor(ends[1])),
                                   std::move(segment),
                                   view,
                                   *shm::Doorbell::create(),
                                   *shm::Doorbell::create(),
                                   World{},
                                   1'000'000,
                                   0,
                                   {{5, {"workertcp", "lo", "127.0.0.1"}, "p"}},
                                   0},
                        *this);
  }
  bool receive(Arrivals arrivals) override {
    if (throws_) throw std::bad_alloc();
    records_ += arrivals.records.size();
    if (arrivals.broken) connection_->failure().fail(*arrivals.broken);
    return false;
  }
  void push(const shm::Record& record) {
    if (completions_->push(record) != shm::Push::kWake) return;
    ASSERT_TRUE(daemon_.send(ipc::encode(ipc::Wake{}, ipc::MessageKind::kWake)));
  }

  ipc::MessageSocket daemon_;
  std::optional<shm::Consumer> submissions_;
  std::optional<shm::Producer> completions_;
  std::optional<Connection> connection_;
  std::size_t records_ = 0;
  bool throws_ = false;
};

TEST_F(PartsTest, WhatIsSubmittedReachesTheDaemon) {
  ASSERT_TRUE(connection_->submit(shm::FlushRecord{.group = 1, .step = 2}));
  shm::Record record;
  ASSERT_EQ(submissions_->pop(record), shm::Pop::kRecord);
  EXPECT_EQ(record.as<shm::FlushRecord>().step, 2u);
}

TEST_F(PartsTest, AWaitEndsWhenItsConditionHolds) {
  std::thread other([this] {
    for (int i = 0; i < 3; ++i) push(shm::FailedRecord{});
  });
  EXPECT_TRUE(connection_->wait([this] { return records_ == 3; }));
  other.join();
}

TEST_F(PartsTest, ANudgeMakesAWaiterAskAgain) {
  TimeUs shortest_us = std::numeric_limits<TimeUs>::max();  // a busy machine may make some of the waits long
  for (int trial = 0; trial < 5; ++trial) {
    std::atomic<bool> asked{false}, ready{false};
    std::thread other([&] {
      while (!asked) std::this_thread::yield();
      ready = true;
      connection_->nudge();
    });
    const TimeUs before_us = MonotonicClock::now();
    EXPECT_TRUE(connection_->wait([&] {
      asked = true;
      return ready.load();
    }));
    other.join();
    shortest_us = std::min(shortest_us, MonotonicClock::now() - before_us);
  }
  EXPECT_LT(shortest_us, 400'000) << "it slept on";
}

TEST_F(PartsTest, TheEndOfTheSocketEndsAWait) {
  daemon_.close();
  const auto waited = connection_->wait([] { return false; });
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error().kind, ErrorKind::kLost);
  EXPECT_FALSE(connection_->submit(shm::FlushRecord{}));
}

TEST_F(PartsTest, WhatIsLostForWantOfMemoryFailsAllWaits) {
  throws_ = true;
  push(shm::FailedRecord{});
  const auto in_a_while = [] { return MonotonicClock::now() + 10'000'000; };
  EXPECT_FALSE(connection_->wait([] { return false; }, nullptr, in_a_while()));
  EXPECT_FALSE(connection_->wait([] { return false; }, nullptr, in_a_while()));
  EXPECT_FALSE(connection_->submit(shm::FlushRecord{}));
}

TEST_F(PartsTest, AConditionThatThrowsHoldsNoEndUp) {
  EXPECT_THROW(static_cast<void>(connection_->wait([]() -> bool { throw std::bad_alloc(); })), std::bad_alloc);
  connection_->end();
}

TEST_F(PartsTest, AFullRingThatNobodyReadsIsATimeoutInTheEnd) {
  for (std::uint32_t i = 0; i < shm::kRingCapacity; ++i) ASSERT_TRUE(connection_->submit(shm::FlushRecord{}));
  const auto submitted = connection_->submit(shm::FlushRecord{});
  ASSERT_FALSE(submitted);
  EXPECT_EQ(submitted.error().kind, ErrorKind::kTimeout);
}

TEST_F(PartsTest, GroupsAreNumberedInOrderAndRecordsForOthersAreViolations) {
  GroupTable groups(*connection_);
  const auto progress = std::make_shared<TensorProgress>(4);
  EXPECT_EQ(groups.add(std::make_shared<TensorProgress>(1), std::make_shared<Generations>(1, 1)), 0u);
  EXPECT_EQ(groups.add(progress, std::make_shared<Generations>(4, 1)), 1u);
  EXPECT_TRUE(groups.finish({.group = 1, .first_tensor = 2, .tensors = 2, .generation = 0}));
  EXPECT_TRUE(progress->finished(2, 2, 0));
  for (const shm::FinishRecord& wrong : {shm::FinishRecord{.group = 1, .first_tensor = 3, .tensors = 2},
                                         {.group = 1, .first_tensor = ~0U, .tensors = 2},
                                         {.group = 2, .first_tensor = 0, .tensors = 0}})
    EXPECT_EQ(groups.finish(wrong).error().kind, ErrorKind::kViolation);
  EXPECT_EQ(groups.take_plan(shm::PlanRecord{.group = 2}).error().kind, ErrorKind::kViolation);
  EXPECT_EQ(groups.take_plan(shm::PlanGenerationRecord{.group = 1}).error().kind, ErrorKind::kViolation)
      << "without a PLAN before it";
}

TEST_F(PartsTest, AReleasedGroupIsKnownUntilTheDaemonSaysThatNothingOfItIsUnderWay) {
  GroupTable groups(*connection_);
  const auto progress = std::make_shared<TensorProgress>(1);
  EXPECT_EQ(groups.add(progress, std::make_shared<Generations>(1, 1)), 0u);
  EXPECT_EQ(groups.forget({.group = 0}).error().kind, ErrorKind::kViolation) << "this worker uses it";
  EXPECT_EQ(groups.forget({.group = 1}).error().kind, ErrorKind::kViolation);
  auto memory = std::make_shared<int>(1);
  const std::weak_ptr<int> kept = memory;
  groups.release(0, std::move(memory));
  EXPECT_TRUE(groups.finish({.group = 0, .tensors = 1, .generation = 4})) << "it was under way";
  EXPECT_TRUE(progress->finished(0, 1, 4));
  EXPECT_FALSE(kept.expired());
  EXPECT_TRUE(groups.forget({.group = 0}));
  EXPECT_TRUE(kept.expired());
  EXPECT_EQ(groups.finish({.group = 0, .tensors = 1}).error().kind, ErrorKind::kViolation);
  EXPECT_EQ(groups.forget({.group = 0}).error().kind, ErrorKind::kViolation);
  EXPECT_EQ(groups.add(progress, std::make_shared<Generations>(1, 1)), 1u) << "a number is never used again";
}

TEST_F(PartsTest, AnOperationEndsByItsRecordOrByItsError) {
  RequestTable requests(*connection_);
  const auto first = requests.next_operation(), second = requests.next_operation();
  EXPECT_NE(first, second);
  requests.expect(first);
  requests.expect(second);
  EXPECT_FALSE(requests.result_of(first));
  requests.end({.operation = first}, 0);
  requests.fail(second, {ErrorKind::kMismatch, "differs", "", ""});
  EXPECT_TRUE(*requests.finished(first));
  EXPECT_EQ(requests.finished(second).error().what, "differs");
  EXPECT_EQ(requests.wait_for(second).error().kind, ErrorKind::kMismatch);
  requests.forget(second);
  EXPECT_TRUE(requests.result_of(second).value()) << "whoever asks later is not kept waiting";
  requests.end({.operation = 99}, 0);  // nobody asked
  requests.fail(99, {});
}

TEST_F(PartsTest, AnOperationWhoseTextDoesNotComeFailsWithItsKind) {
  RequestTable requests(*connection_);
  requests.expect(7);
  EXPECT_FALSE(requests.give_up_on_texts(0));
  requests.end({.operation = 7, .error_kind = static_cast<std::uint32_t>(ErrorKind::kTimeout)}, 100);
  EXPECT_TRUE(requests.give_up_on_texts(100 + kTextDueUs - 1));
  EXPECT_FALSE(requests.result_of(7));
  EXPECT_FALSE(requests.give_up_on_texts(100 + kTextDueUs));
  EXPECT_EQ(requests.result_of(7)->error().kind, ErrorKind::kTimeout);
}

TEST_F(PartsTest, AnAnswerIsFoundByKindAndNumberAndMayBeLate) {
  RequestTable requests(*connection_);
  ipc::Packet packet;
  packet.bytes.resize(3);
  requests.take_answer(ipc::MessageKind::kStoreValue, 5, std::move(packet));
  EXPECT_EQ(requests.answer(ipc::MessageKind::kStoreValue, 5)->bytes.size(), 3u);
  const auto late = requests.answer(ipc::MessageKind::kStoreValue, 5, MonotonicClock::now());
  EXPECT_EQ(late.error().kind, ErrorKind::kTimeout) << "an answer is taken once";
}

TEST_F(PartsTest, StartsAreTakenInOrderByLink) {
  StartQueues starts(*connection_);
  EXPECT_TRUE(starts.push(5, shm::StartRecord{.link = 5, .launch = 1}));
  EXPECT_TRUE(starts.push(5, shm::StartRecord{.link = 5, .launch = 2}));
  EXPECT_EQ(starts.push(6, shm::StartRecord{.link = 6}).error().kind, ErrorKind::kViolation);
  for (std::uint64_t launch : {1U, 2U}) EXPECT_EQ(starts.next(5)->as<shm::StartRecord>().launch, launch);
  daemon_.close();
  EXPECT_FALSE(starts.next(5));
}

}  // namespace
}  // namespace deft::client
