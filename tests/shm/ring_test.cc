#include "core/shm/ring.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <new>
#include <vector>

namespace deft::shm {
namespace {

constexpr std::size_t kRecords = 8;

Record numbered(std::uint64_t number) { return RanRecord{.link = 1, .launch = number}; }

std::uint64_t number_of(const Record& record) { return record.as<RanRecord>().launch; }

class RingTest : public ::testing::Test {
 protected:
  RingControl control_;
  std::array<Record, kRecords> records_{};
  Producer producer_{control_, records_};
  Consumer consumer_{control_, records_};
};

TEST_F(RingTest, AllZeroMemoryIsAnEmptyRing) {
  alignas(RingControl) std::array<std::byte, sizeof(RingControl)> zeros{};
  auto& control = *reinterpret_cast<RingControl*>(zeros.data());
  std::array<Record, kRecords> records{};
  Consumer consumer(control, records);
  Producer producer(control, records);
  Record record;
  EXPECT_EQ(consumer.pop(record), Pop::kEmpty);
  EXPECT_EQ(producer.push(numbered(1)), Push::kDone);
  EXPECT_EQ(consumer.pop(record), Pop::kRecord);
  EXPECT_EQ(number_of(record), 1u);
}

TEST_F(RingTest, RecordsComeInOrderOverManyRounds) {
  std::uint64_t next_in = 0, next_out = 0;
  for (std::size_t round = 0; round < 100; ++round) {
    for (std::size_t i = 0; i < round % (kRecords + 1); ++i)
      ASSERT_EQ(producer_.push(numbered(next_in++)), Push::kDone);
    Record record;
    while (consumer_.pop(record) == Pop::kRecord) ASSERT_EQ(number_of(record), next_out++);
  }
  EXPECT_EQ(next_in, next_out);
}

TEST_F(RingTest, AFullRingTakesNothingAndLosesNothing) {
  for (std::uint64_t i = 0; i < kRecords; ++i) ASSERT_EQ(producer_.push(numbered(i)), Push::kDone);
  EXPECT_EQ(producer_.push(numbered(99)), Push::kFull);
  Record record;
  ASSERT_EQ(consumer_.pop(record), Pop::kRecord);
  EXPECT_EQ(number_of(record), 0u);
  EXPECT_EQ(producer_.push(numbered(kRecords)), Push::kDone);
  for (std::uint64_t i = 1; i <= kRecords; ++i) {
    ASSERT_EQ(consumer_.pop(record), Pop::kRecord);
    EXPECT_EQ(number_of(record), i);
  }
  EXPECT_EQ(consumer_.pop(record), Pop::kEmpty);
}

TEST_F(RingTest, AnAwakeConsumerIsNotWoken) { EXPECT_EQ(producer_.push(numbered(0)), Push::kDone); }

TEST_F(RingTest, ASleepingConsumerIsWokenOnce) {
  ASSERT_TRUE(consumer_.prepare_to_sleep());
  EXPECT_EQ(producer_.push(numbered(0)), Push::kWake);
  EXPECT_EQ(producer_.push(numbered(1)), Push::kDone);
}

TEST_F(RingTest, AConsumerWithARecordLeftDoesNotSleep) {
  ASSERT_EQ(producer_.push(numbered(0)), Push::kDone);
  EXPECT_FALSE(consumer_.prepare_to_sleep());
  EXPECT_EQ(producer_.push(numbered(1)), Push::kDone) << "the announcement was not taken back";
}

TEST_F(RingTest, AConsumerThatWokeByItselfIsNotWokenAgain) {
  ASSERT_TRUE(consumer_.prepare_to_sleep());
  consumer_.woke();
  EXPECT_EQ(producer_.push(numbered(0)), Push::kDone);
}

// A hostile producer sets the tail; whatever it sets, at most the ring's own records are read.
TEST_F(RingTest, MaliciousTailBeyondTheCapacity) {
  control_.tail = kRecords + 1;
  Record record;
  EXPECT_EQ(consumer_.pop(record), Pop::kCorrupt);
}

TEST_F(RingTest, MaliciousTailGoesBack) {
  ASSERT_EQ(producer_.push(numbered(0)), Push::kDone);
  Record record;
  ASSERT_EQ(consumer_.pop(record), Pop::kRecord);
  control_.tail = 0;
  EXPECT_EQ(consumer_.pop(record), Pop::kCorrupt);
}

TEST_F(RingTest, MaliciousTailAtTheLargestNumber) {
  control_.tail = ~std::uint64_t{0};
  Record record;
  EXPECT_EQ(consumer_.pop(record), Pop::kCorrupt);
}

TEST_F(RingTest, MaliciousHeadWrittenBackIsIgnoredByTheConsumer) {
  for (std::uint64_t i = 0; i < 3; ++i) ASSERT_EQ(producer_.push(numbered(i)), Push::kDone);
  Record record;
  ASSERT_EQ(consumer_.pop(record), Pop::kRecord);
  control_.head = 7;  // the producer's side may write here, but nobody reads it on ours
  ASSERT_EQ(consumer_.pop(record), Pop::kRecord);
  EXPECT_EQ(number_of(record), 1u);
}

TEST_F(RingTest, MaliciousHeadBeyondTheTail) {
  for (std::uint64_t i = 0; i < kRecords; ++i) ASSERT_EQ(producer_.push(numbered(i)), Push::kDone);
  control_.head = kRecords + 1;
  EXPECT_EQ(producer_.push(numbered(99)), Push::kCorrupt);
}

TEST_F(RingTest, MaliciousHeadGoesBack) {
  Record record;
  for (std::uint64_t i = 0; i < 2 * kRecords; ++i) {
    ASSERT_EQ(producer_.push(numbered(i)), Push::kDone);
    ASSERT_EQ(consumer_.pop(record), Pop::kRecord);
  }
  for (std::uint64_t i = 0; i < kRecords; ++i) ASSERT_NE(producer_.push(numbered(i)), Push::kCorrupt);
  control_.head = 0;
  EXPECT_EQ(producer_.push(numbered(99)), Push::kCorrupt);
}

}  // namespace
}  // namespace deft::shm
