// What a transfer tells of its segments, in the files of a trace.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "core/trace/segment_trace.h"
#include "tests/daemon/recording.h"

namespace deft::daemon {
namespace {

using trace::TraceKind;

std::vector<trace::SegmentTrace> segments_of(const trace::NodeTrace& trace) {
  std::vector<trace::SegmentTrace> segments;
  for (const auto& record : trace.records)
    if (record.kind() == TraceKind::kSegment) segments.push_back(record.as<trace::SegmentTrace>());
  return segments;
}

// They would push all else out of the ring that is always on.
TEST_F(Recording, SegmentsGoIntoFilesOnly) {
  const auto log = std::make_shared<link::SegmentLog>(7, 2);
  log->moved({.request = 8,
              .peer = 1,
              .round = 3,
              .bytes = 65536,
              .began_us = 1200,
              .ended_us = 1300,
              .part = model::SegmentPart::kResult,
              .is_sent = true});
  TransferDone done;
  done.token = 9, done.segments = log;
  make("");
  ASSERT_TRUE(begin());
  recorder_->transferred(1, done, 1400);
  EXPECT_FALSE(recorder_->is_writing());
  ASSERT_TRUE(obey({ipc::TraceAction::kStart, folder_.string()}));
  EXPECT_TRUE(recorder_->is_writing());
  done.token = 10;
  recorder_->transferred(1, done, 1500);
  ASSERT_TRUE(obey({ipc::TraceAction::kDump, ""}));
  const auto trace = written();
  for (const auto& segments : {segments_of(trace), segments_of(dumps_in(folder_).begin()->second)}) {
    ASSERT_EQ(segments.size(), 1U);
    EXPECT_EQ(segments[0].number, 10U);
    EXPECT_EQ(segments[0].request, 1U);
    EXPECT_EQ(segments[0].bytes, 65536U);
    EXPECT_EQ(segments[0].peer, 1U);
    EXPECT_EQ(segments[0].round, 3U);
    EXPECT_EQ(segments[0].link, 1U);
    EXPECT_EQ(segments[0].is_sent, 1U);
    EXPECT_EQ(segments[0].is_server, 0U);
    EXPECT_EQ(segments[0].part, static_cast<std::uint8_t>(model::SegmentPart::kResult));
  }
  const auto record = std::ranges::find(trace.records, TraceKind::kSegment, &trace::TraceRecord::kind);
  EXPECT_EQ(record->begin_us(), 1200);
  EXPECT_EQ(record->end_us(), 1300);
}

}  // namespace
}  // namespace deft::daemon
