#include "core/trace/recorder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace deft::trace {
namespace {

TraceRecord numbered(std::uint64_t number) {
  const auto at_us = static_cast<TimeUs>(number);
  return {at_us, at_us + 1,
          TransferTrace{.number = number, .bytes = ~number, .wire_bytes = number * 3, .stage = 1, .link = 2}};
}

void expect_whole(const TraceRecord& record) {
  const auto transfer = record.as<TransferTrace>();
  const std::uint64_t number = transfer.number;
  EXPECT_EQ(record.begin_us(), static_cast<TimeUs>(number));
  EXPECT_EQ(record.end_us(), static_cast<TimeUs>(number) + 1);
  EXPECT_EQ(transfer.bytes, ~number);
  EXPECT_EQ(transfer.wire_bytes, number * 3);
}

TEST(Recorder, GivesEachRecordOnce) {
  Recorder recorder(16);
  Recorder::Cursor cursor;
  std::vector<TraceRecord> read;
  std::uint64_t next = 0;
  for (const std::size_t burst : {3U, 0U, 12U, 15U, 1U}) {
    for (std::size_t i = 0; i < burst; ++i) recorder.add(numbered(next++));
    recorder.read(cursor, read);
  }
  ASSERT_EQ(read.size(), next);
  EXPECT_EQ(cursor.lost, 0U);
  for (std::size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(read[i].as<TransferTrace>().number, i);
    expect_whole(read[i]);
  }
}

TEST(Recorder, CountsWhatWasOverwritten) {
  Recorder recorder(16);
  Recorder::Cursor cursor;
  for (std::uint64_t i = 0; i < 100; ++i) recorder.add(numbered(i));
  std::vector<TraceRecord> read;
  recorder.read(cursor, read);
  ASSERT_FALSE(read.empty());
  EXPECT_EQ(cursor.lost + read.size(), 100U);
  EXPECT_GE(read.size(), 15U);  // all but the place that a writer may be at
  EXPECT_EQ(read.back().as<TransferTrace>().number, 99U);
}

// A dump tells what was overwritten while it was written. What had been overwritten long before is not lost.
TEST(Recorder, ACursorOfWhatIsHeldCountsOnlyWhatIsOverwrittenLater) {
  Recorder recorder(16);
  EXPECT_EQ(recorder.held().next, 0U);
  for (std::uint64_t i = 0; i < 100; ++i) recorder.add(numbered(i));
  auto cursor = recorder.held(), late = cursor;
  std::vector<TraceRecord> read;
  recorder.read(cursor, read);
  EXPECT_EQ(cursor.lost, 0U);
  EXPECT_EQ(read.size(), 15U);
  for (std::uint64_t i = 100; i < 105; ++i) recorder.add(numbered(i));
  read.clear();
  recorder.read(late, read, 100);
  EXPECT_EQ(late.lost, 5U);
  EXPECT_EQ(read.size(), 10U);
}

TEST(Recorder, ACursorOfNowSeesOnlyWhatComes) {
  Recorder recorder(16);
  recorder.add(numbered(0));
  auto cursor = recorder.now();
  recorder.add(numbered(1));
  std::vector<TraceRecord> read;
  recorder.read(cursor, read);
  ASSERT_EQ(read.size(), 1U);
  EXPECT_EQ(read[0].as<TransferTrace>().number, 1U);
}

// A small ring and a writer that never waits: the reader is overtaken all the time, and must never see half a record.
TEST(Recorder, AReaderSeesWholeRecordsWhileTheyAreOverwritten) {
  constexpr std::uint64_t kCount = 200'000;
  Recorder recorder(64);
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (std::uint64_t i = 0; i < kCount; ++i) recorder.add(numbered(i));
    done = true;
  });
  Recorder::Cursor cursor;
  std::vector<TraceRecord> read;
  std::uint64_t seen = 0;
  std::int64_t newest = -1;
  for (bool last = false; !last;) {
    last = done;
    read.clear();
    recorder.read(cursor, read);
    seen += read.size();
    for (const auto& record : read) {
      expect_whole(record);
      EXPECT_GT(record.begin_us(), newest);
      newest = record.begin_us();
    }
  }
  writer.join();
  EXPECT_EQ(seen + cursor.lost, kCount);
  EXPECT_EQ(newest, static_cast<std::int64_t>(kCount) - 1);
}

}  // namespace
}  // namespace deft::trace
