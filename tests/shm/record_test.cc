#include "core/shm/record.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace deft::shm {
namespace {

using Words = std::array<std::uint32_t, kRecordBytes / sizeof(std::uint32_t)>;

TEST(Record, AllZeroMemoryIsAFreeRecord) {
  const auto record = std::bit_cast<Record>(Words{});
  EXPECT_EQ(record.kind(), RecordKind::kNone);
  EXPECT_EQ(std::bit_cast<Words>(Record{}), Words{});
}

TEST(Record, APayloadComesBackAsItWentIn) {
  const Record record = StartCollectiveRecord{.link = 1,
                                              .staging_buffer = 2,
                                              .launch = std::uint64_t{3} << 40,
                                              .offset_bytes = 4,
                                              .bytes = ~std::uint64_t{0},
                                              .collective = 6,
                                              .dtype = 7,
                                              .reduce_op = 8,
                                              .root = 9};
  ASSERT_EQ(record.kind(), RecordKind::kStartCollective);
  const auto start = record.as<StartCollectiveRecord>();
  EXPECT_EQ(start.link, 1u);
  EXPECT_EQ(start.staging_buffer, 2u);
  EXPECT_EQ(start.launch, std::uint64_t{3} << 40);
  EXPECT_EQ(start.offset_bytes, 4u);
  EXPECT_EQ(start.bytes, ~std::uint64_t{0});
  EXPECT_EQ(start.collective, 6u);
  EXPECT_EQ(start.dtype, 7u);
  EXPECT_EQ(start.reduce_op, 8u);
  EXPECT_EQ(start.root, 9u);
}

// Nothing of a former user of the memory reaches the other process.
TEST(Record, WhatAPayloadDoesNotUseIsZero) {
  const auto words = std::bit_cast<Words>(Record(FailedRecord{.error_kind = 5}));
  EXPECT_EQ(words[0], static_cast<std::uint32_t>(RecordKind::kFailed));
  EXPECT_EQ(words[kPayloadOffset / 4], 5u);
  EXPECT_EQ(std::count(words.begin(), words.end(), 0u), static_cast<std::ptrdiff_t>(words.size() - 2));
}

TEST(Record, AKindThatNobodyKnowsIsKeptAsItCame) {
  const auto record = std::bit_cast<Record>(Words{999});
  EXPECT_EQ(static_cast<std::uint32_t>(record.kind()), 999u);
}

TEST(RecordDeathTest, ReadingAnotherKindsPayloadEndsTheProgram) {
  const Record record = RanRecord{.link = 1, .launch = 2};
  EXPECT_DEATH(static_cast<void>(record.as<ReadyRecord>()), "");
}

}  // namespace
}  // namespace deft::shm
