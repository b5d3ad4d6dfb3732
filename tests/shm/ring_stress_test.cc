// The ring between two threads and between two processes, at full speed: the order of memory, lost wake-ups, and a
// producer that is killed at any point. Runs under ThreadSanitizer too.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "core/shm/control_segment.h"
#include "core/shm/doorbell.h"
#include "core/shm/ring.h"

namespace deft::shm {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kMany = 100'000;
#else
constexpr std::uint64_t kMany = 1'000'000;
#endif
constexpr TimeUs kLost = 60'000'000;

// Every word depends on the number, so that a torn or stale record shows.
Record make(std::uint64_t number) {
  std::array<std::uint64_t, kRecordBytes / sizeof number> words{};
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = number * (2 * i + 1);
  return std::bit_cast<Record>(words);
}

bool same(const Record& a, const Record& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

void produce(Producer& producer, const Doorbell& bell, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    Push pushed = producer.push(make(i));
    while (pushed == Push::kFull) {
      std::this_thread::yield();
      pushed = producer.push(make(i));
    }
    if (pushed == Push::kWake) bell.ring();
  }
}

// Consumes until `count` records have come, sleeping whenever there is none. Gives how many came in order and whole.
std::uint64_t consume(Consumer& consumer, const Doorbell& bell, std::uint64_t count) {
  std::uint64_t next = 0;
  while (next < count) {
    Record record;
    const Pop popped = consumer.pop(record);
    if (popped == Pop::kCorrupt) return next;
    if (popped == Pop::kRecord) {
      if (!same(record, make(next))) return next;
      ++next;
    } else if (consumer.prepare_to_sleep()) {
      if (!bell.wait(MonotonicClock::now() + kLost)) return next;  // a lost wake-up
      consumer.woke();
    }
  }
  return next;
}

TEST(RingStress, TwoThreadsLoseNothingAndNoWakeUp) {
  auto segment = Segment::create("test-ring", kControlSegmentBytes);
  ASSERT_TRUE(segment) << segment.error().message();
  const auto view = ControlSegment::format(*segment, 1);
  auto bell = Doorbell::create();
  ASSERT_TRUE(bell);
  Producer producer(view.submission(), view.submission_records());
  Consumer consumer(view.submission(), view.submission_records());
  std::thread other([&] { produce(producer, *bell, kMany); });
  EXPECT_EQ(consume(consumer, *bell, kMany), kMany);
  other.join();
}

// One record at a time each way: both sides fall asleep all the time, which is where wake-ups would get lost.
TEST(RingStress, PingPongBetweenSleepers) {
  auto segment = Segment::create("test-ring", kControlSegmentBytes);
  ASSERT_TRUE(segment) << segment.error().message();
  const auto view = ControlSegment::format(*segment, 1);
  auto there = Doorbell::create();
  auto back = Doorbell::create();
  ASSERT_TRUE(there && back);
  constexpr std::uint64_t kRounds = 20'000;
  const auto wait_for_one = [](Consumer& consumer, const Doorbell& bell) {
    Record record;
    while (consumer.pop(record) != Pop::kRecord)
      if (consumer.prepare_to_sleep()) {
        if (!bell.wait(MonotonicClock::now() + kLost)) return false;
        consumer.woke();
      }
    return true;
  };
  std::thread echo([&] {
    Consumer in(view.submission(), view.submission_records());
    Producer out(view.completion(), view.completion_records());
    for (std::uint64_t i = 0; i < kRounds && wait_for_one(in, *there); ++i)
      if (out.push(make(i)) == Push::kWake) back->ring();
  });
  Producer out(view.submission(), view.submission_records());
  Consumer in(view.completion(), view.completion_records());
  std::uint64_t done = 0;
  for (; done < kRounds; ++done) {
    if (out.push(make(done)) == Push::kWake) there->ring();
    if (!wait_for_one(in, *back)) break;
  }
  EXPECT_EQ(done, kRounds);
  echo.join();
}

TEST(RingStress, TwoProcessesLoseNothing) {
  auto segment = Segment::create("test-ring", kControlSegmentBytes);
  ASSERT_TRUE(segment) << segment.error().message();
  const auto view = ControlSegment::format(*segment, 1);
  auto bell = Doorbell::create();
  ASSERT_TRUE(bell);
  const pid_t child = fork();
  if (child == 0) {
    Producer producer(view.submission(), view.submission_records());
    produce(producer, *bell, kMany);
    _exit(0);
  }
  Consumer consumer(view.submission(), view.submission_records());
  EXPECT_EQ(consume(consumer, *bell, kMany), kMany);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

// A producer killed in mid-write leaves whole records up to some point and nothing after it.
TEST(RingStress, AProducerKilledAtAnyPointLeavesAWholePrefix) {
  std::mt19937 random(20261121);
  for (int round = 0; round < 40; ++round) {
    auto segment = Segment::create("test-ring", kControlSegmentBytes);
    ASSERT_TRUE(segment) << segment.error().message();
    const auto view = ControlSegment::format(*segment, 1);
    auto bell = Doorbell::create();
    ASSERT_TRUE(bell);
    const pid_t child = fork();
    if (child == 0) {
      Producer producer(view.submission(), view.submission_records());
      produce(producer, *bell, ~std::uint64_t{0});
      _exit(0);
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 5000);
    Consumer consumer(view.submission(), view.submission_records());
    std::uint64_t next = 0;
    Record record;
    const auto take_all = [&] {
      Pop popped = Pop::kEmpty;
      while ((popped = consumer.pop(record)) == Pop::kRecord) ASSERT_TRUE(same(record, make(next++)));
      ASSERT_EQ(popped, Pop::kEmpty);
    };
    while (std::chrono::steady_clock::now() < end) {
      if (consumer.pop(record) != Pop::kRecord) continue;
      ASSERT_TRUE(same(record, make(next++)));
    }
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    take_all();
    EXPECT_EQ(next, view.submission().tail.load());
  }
}

}  // namespace
}  // namespace deft::shm
