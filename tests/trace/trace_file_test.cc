#include "core/trace/trace_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "core/base/policy_traits.h"
#include "core/model/codec_cost.h"
#include "core/model/daemon_thread.h"
#include "core/model/policy_reason.h"
#include "core/model/segment_part.h"
#include "core/trace/link_cost_trace.h"
#include "core/trace/segment_trace.h"
#include "core/trace/trace_stream.h"

namespace deft::trace {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

TraceHeader header() {
  return {.job = "job",
          .incarnation = 77,
          .node = 1,
          .nodes = 2,
          .host = "b",
          .begun_s = 1'790'000'000,
          .ranks = {2, 3},
          .links = {"gloo:eth0"},
          .options = {{"policy", "fifo"}, {"plan", ""}},
          .codecs = {"none", "int8"}};
}

TraceGroup group() {
  return {.group = 0,
          .name = "model",
          .tensors = {{"w", 4096, 0, TraceGroup::Elements{model::DType::kBFloat16, 4096}},
                      {"b", 64, 1, TraceGroup::Elements{model::DType::kBFloat16, 0}}},
          .buckets = {{4160, 0, {0, 1}, TraceGroup::Elements{model::DType::kBFloat16, 4096}}}};
}

TraceRecord stage(TimeUs at_us, std::uint64_t step) {
  return {at_us, at_us, StageTrace{.worker = 0, .stage = 1, .step = step, .waited_us = 5}};
}

class TraceFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("deft-trace-test-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  [[nodiscard]] TraceFolder folder() const { return *TraceFolder::open(folder_.string()); }
  [[nodiscard]] std::string path(const std::string& name = "a.trace") const { return (folder_ / name).string(); }
  std::vector<std::byte> write(std::size_t records) {
    auto writer = TraceWriter::create(folder(), "a.trace", header());
    EXPECT_TRUE(writer && (*writer)->group(group()));
    std::vector<TraceRecord> list;
    for (std::size_t i = 0; i < records; ++i) list.push_back(stage(static_cast<TimeUs>(i), i));
    EXPECT_TRUE((*writer)->records(list) && (*writer)->finish(3));
    std::ifstream in(path(), std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
  }

  fs::path folder_;
};

TEST_F(TraceFile, KeepsEverything) {
  write(1000);
  const auto trace = read_trace(path());
  ASSERT_TRUE(trace) << trace.error().message();
  EXPECT_EQ(trace->header, header());
  EXPECT_THAT(trace->groups, testing::ElementsAre(group()));
  ASSERT_EQ(trace->records.size(), 1000U);
  EXPECT_EQ(trace->records[999].as<StageTrace>().step, 999U);
  EXPECT_EQ(trace->records[999].as<StageTrace>().waited_us, 5U);
  EXPECT_EQ(trace->lost, 3U);
  EXPECT_TRUE(trace->complete);
  EXPECT_THAT(trace->problems, IsEmpty());
}

TEST_F(TraceFile, GroupsThatWouldTakeAllMemoryAreRefused) {
  auto overlapping = group();
  overlapping.buckets.assign(40, overlapping.buckets.front());
  for (auto& bucket : overlapping.buckets) bucket.tensors.assign(100'000, 0);
  TraceGroup large{.group = 0, .name = "large", .buckets = {}};
  for (int i = 0; i < 3600; ++i) large.tensors.push_back({std::string(4000, 'n'), 4, 0});
  auto writer = TraceWriter::create(folder(), "a.trace", header());
  ASSERT_TRUE(writer && (*writer)->group(overlapping));
  for (; large.group < 12; ++large.group) ASSERT_TRUE((*writer)->group(large));
  ASSERT_TRUE((*writer)->finish(0));
  EXPECT_LT(fs::file_size(path()), 1U << 20U);
  const auto trace = read_trace(path());
  ASSERT_TRUE(trace);
  EXPECT_EQ(trace->groups.size(), 4U) << "of 14 MB each";
  for (const char* problem : {"buckets that overlap", "too many groups", "its text is too long"})
    EXPECT_THAT(trace->problems, Contains(HasSubstr(problem)));
}

TEST_F(TraceFile, AGroupCountsOnce) {
  auto writer = TraceWriter::create(folder(), "a.trace", header());
  auto other = group();
  other.name = "other";
  ASSERT_TRUE(writer && (*writer)->group(group()) && (*writer)->group(other) && (*writer)->finish(0));
  const auto trace = read_trace(path());
  ASSERT_TRUE(trace);
  EXPECT_THAT(trace->groups, testing::ElementsAre(group()));
  EXPECT_THAT(trace->problems, Contains(HasSubstr("a group that was there before")));
}

// A trace of an older version does not tell them.
TEST_F(TraceFile, TensorsAndBucketsNeedNotTellTheirElements) {
  auto older = group();
  older.buckets.push_back({64, 1, {1}});
  older.tensors.push_back({"c", 64, 2});
  auto writer = TraceWriter::create(folder(), "a.trace", header());
  ASSERT_TRUE(writer && (*writer)->group(older) && (*writer)->finish(0));
  const auto trace = read_trace(path());
  ASSERT_TRUE(trace);
  EXPECT_THAT(trace->problems, IsEmpty());
  EXPECT_THAT(trace->groups, testing::ElementsAre(older));
}

TEST_F(TraceFile, ElementsThatCannotBeAreRefused) {
  for (const TraceGroup::Elements elements :
       {TraceGroup::Elements{model::DType::kFloat32, 4161}, TraceGroup::Elements{model::DType::kInt32, 1},
        TraceGroup::Elements{model::DType(0), 0}, TraceGroup::Elements{model::DType(9), 0}}) {
    auto of_bucket = group(), of_tensor = group(), odd = group();
    of_bucket.buckets.front().elements = elements;
    of_tensor.tensors.front().elements = elements;
    odd.tensors.front().bytes = 4097;
    for (const TraceGroup& wrong : {of_bucket, of_tensor, odd}) {
      auto writer = TraceWriter::create(folder(), "a.trace", header());
      ASSERT_TRUE(writer && (*writer)->group(wrong) && (*writer)->finish(0));
      const auto trace = read_trace(path());
      ASSERT_TRUE(trace);
      EXPECT_THAT(trace->groups, IsEmpty());
      EXPECT_THAT(trace->problems, Contains(HasSubstr("wrong content")));
    }
  }
}

TEST_F(TraceFile, ATruncatedFileIsUsedAsFarAsItGoes) {
  const auto content = write(1000);
  std::size_t usable = 0;
  for (std::size_t bytes = 0; bytes < content.size(); ++bytes) {
    const auto trace = parse_trace(std::span(content).first(bytes));
    if (!trace) continue;
    ++usable;
    EXPECT_FALSE(trace->complete);
    EXPECT_THAT(trace->problems, Contains(HasSubstr("was not finished")));
    EXPECT_EQ(trace->header, header());
  }
  EXPECT_GT(usable, 10U);  // from the end of the header's frame on
}

bool same(const NodeTrace& a, const NodeTrace& b) {
  return a.header == b.header && a.groups == b.groups && a.lost == b.lost && a.complete == b.complete &&
         std::ranges::equal(std::as_bytes(std::span(a.records)), std::as_bytes(std::span(b.records)));
}

// Some bits of a zstd frame mean nothing (RFC 8878, section 3.1.1.1.1.3): a change of them changes nothing that is read.
RC_GTEST_FIXTURE_PROP(TraceFile, DamageIsAlwaysNoticed, ()) {
  static const auto content = write(50);
  static const auto whole = parse_trace(content).value();
  auto spoiled = content;
  const auto changes = *rc::gen::inRange<std::size_t>(1, 8);
  for (std::size_t i = 0; i < changes; ++i)
    spoiled[*rc::gen::inRange<std::size_t>(0, spoiled.size())] =
        static_cast<std::byte>(*rc::gen::arbitrary<unsigned char>());
  const auto trace = parse_trace(spoiled);
  if (!trace) return;
  RC_ASSERT(!trace->problems.empty() || same(*trace, whole));
  RC_ASSERT(trace->records.size() <= 50U);
  for (const auto& record : trace->records) RC_ASSERT(record.end_us() >= record.begin_us());
}

struct NewerTrace {
  static constexpr auto kKind = static_cast<TraceKind>(static_cast<std::uint16_t>(kLastTraceKind) + 1);
  std::uint64_t unknown = 1;
};

TEST_F(TraceFile, ImpossibleRecordsAreLeftOutAndCounted) {
  auto writer = TraceWriter::create(folder(), "a.trace", header());
  ASSERT_TRUE(writer);
  const std::vector<TraceRecord> records = {
      stage(1, 1),
      stage(5, 2).at(5, 4),
      stage(-3, 2),
      TraceRecord(1, 1, StageTrace{.worker = 0, .stage = 9}),
      TraceRecord(),
      TraceRecord(1, 1, TransferTrace{.stage = 77}),
      TraceRecord(1, 1, NewerTrace{}),
      TraceRecord(1, 1, MemoryTrace{.part = 0}),
      TraceRecord(1, 1, MemoryTrace{.part = 8}),
      TraceRecord(1, 1, MemoryTrace{.part = 7}),
      TraceRecord(1, 1, PolicyTrace{.policy = static_cast<std::uint8_t>(PolicyId::kAuto) + 1, .reason = 1}),
      TraceRecord(1, 1, PolicyTrace{.reason = 0}),
      TraceRecord(1, 1, PolicyTrace{.reason = static_cast<std::uint8_t>(model::kLastPolicyReason) + 1}),
      TraceRecord(1, 1, PolicyTrace{.policy = static_cast<std::uint8_t>(PolicyId::kAuto), .reason = 1}),
      TraceRecord(1, 1, CpuTrace{.thread = 0}),
      TraceRecord(1, 1, CpuTrace{.thread = static_cast<std::uint16_t>(model::kLastDaemonThread) + 1}),
      TraceRecord(1, 1, CpuTrace{.thread = static_cast<std::uint16_t>(model::kLastDaemonThread)}),
      TraceRecord(1, 1, OrderTrace{.codec = model::kMaxCodecs}),
      TraceRecord(1, 1, OrderTrace{.codec = model::kWithResiduals}),
      TraceRecord(1, 1, LinkCostTrace{.latency_us = -1, .bytes_per_us = 4}),
      TraceRecord(1, 1, LinkCostTrace{.latency_us = 200, .bytes_per_us = 0}),
      TraceRecord(1, 1, LinkCostTrace{.latency_us = 200, .bytes_per_us = std::numeric_limits<double>::infinity()}),
      TraceRecord(1, 1, LinkCostTrace{.latency_us = std::numeric_limits<double>::quiet_NaN(), .bytes_per_us = 4}),
      TraceRecord(1, 1, LinkCostTrace{.latency_us = 0, .bytes_per_us = 4}),
      TraceRecord(1, 1, SegmentTrace{.part = 0}),
      TraceRecord(1, 1, SegmentTrace{.part = static_cast<std::uint8_t>(model::kLastSegmentPart) + 1}),
      TraceRecord(1, 1, SegmentTrace{.part = 1, .is_sent = 2}),
      TraceRecord(1, 1, SegmentTrace{.part = 1, .is_server = 2}),
      TraceRecord(1, 1, SegmentTrace{.part = static_cast<std::uint8_t>(model::kLastSegmentPart), .is_sent = 1}),
  };
  ASSERT_TRUE((*writer)->records(records) && (*writer)->finish(0));
  const auto trace = read_trace(path());
  ASSERT_TRUE(trace);
  EXPECT_EQ(trace->records.size(), 7U);
  EXPECT_THAT(trace->problems, Contains(HasSubstr("22 records are impossible, or of a newer version")));
}

// Files have these numbers, so they never change, whatever is added.
TEST_F(TraceFile, PoliciesReasonsThreadsAndPartsKeepTheirNumbers) {
  using model::SegmentPart;
  constexpr SegmentPart kParts[] = {SegmentPart::kSegment, SegmentPart::kResult, SegmentPart::kBlock};
  for (std::size_t i = 0; i < std::size(kParts); ++i) EXPECT_EQ(static_cast<std::size_t>(kParts[i]), i + 1);
  EXPECT_EQ(static_cast<int>(TraceKind::kSegment), 13);
  EXPECT_EQ(static_cast<int>(TraceKind::kLinkCost), 15);
  constexpr PolicyId kPolicies[] = {PolicyId::kFifo,     PolicyId::kMgwfbp,        PolicyId::kMergeComp,
                                    PolicyId::kP3,       PolicyId::kByteScheduler, PolicyId::kProphet,
                                    PolicyId::kUsByte,   PolicyId::kDear,          PolicyId::kKnapsackPaper,
                                    PolicyId::kKnapsack, PolicyId::kAuto};
  for (std::size_t i = 0; i < std::size(kPolicies); ++i) EXPECT_EQ(static_cast<std::size_t>(kPolicies[i]), i);
  using model::PolicyReason;
  constexpr PolicyReason kReasons[] = {PolicyReason::kBegan,    PolicyReason::kForecast, PolicyReason::kConfirmed,
                                       PolicyReason::kNoBetter, PolicyReason::kKept,     PolicyReason::kUser,
                                       PolicyReason::kLinkLost};
  for (std::size_t i = 0; i < std::size(kReasons); ++i) EXPECT_EQ(static_cast<std::size_t>(kReasons[i]), i + 1);
  using model::DaemonThread;
  constexpr DaemonThread kThreads[] = {DaemonThread::kReactor,  DaemonThread::kAll,  DaemonThread::kLink,
                                       DaemonThread::kReceives, DaemonThread::kAdds, DaemonThread::kCollects,
                                       DaemonThread::kEncrypts};
  for (std::size_t i = 0; i < std::size(kThreads); ++i) EXPECT_EQ(static_cast<std::size_t>(kThreads[i]), i + 1);
}

TEST_F(TraceFile, RecordsBeyondTheWantedOnesAreLeftOutWithAWord) {
  const auto content = write(100);
  for (const std::size_t most : {100U, 99U, 1U, 0U}) {
    const auto trace = parse_trace(content, most);
    ASSERT_TRUE(trace);
    EXPECT_EQ(trace->records.size(), most);
    EXPECT_TRUE(trace->complete);
    if (most == 100)
      EXPECT_THAT(trace->problems, IsEmpty());
    else
      EXPECT_THAT(trace->problems, Contains(HasSubstr("trace fewer steps")));
  }
}

TEST_F(TraceFile, WhatIsNoTraceIsRefusedByName) {
  std::ofstream(path("x.trace")) << "hello";
  auto trace = read_trace(path("x.trace"));
  ASSERT_FALSE(trace);
  EXPECT_THAT(trace.error().message(), HasSubstr("x.trace"));
  EXPECT_FALSE(read_trace(path("absent.trace")));
  EXPECT_FALSE(read_trace(folder_.string()));
}

TEST_F(TraceFile, APipeIsNoTraceAndHoldsNobodyUp) {
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  const auto read = read_trace(path());
  ASSERT_FALSE(read || glance_at_trace(path()));
  EXPECT_THAT(read.error().message(), HasSubstr("it is no file"));
}

// Names of unknown options are shown.
TEST_F(TraceFile, NamesOfOptionsThatCommandATerminalAreRefused) {
  auto wrong = header();
  wrong.options["new\x1b]0;title\x07"] = "on";
  auto writer = TraceWriter::create(folder(), "a.trace", wrong);
  ASSERT_TRUE(writer && (*writer)->finish(0));
  EXPECT_FALSE(read_trace(path()));
}

TEST_F(TraceFile, AWriterFollowsNoLink) {
  const std::string target = path("target");
  std::ofstream(target) << "precious";
  fs::create_symlink(target, path());
  ASSERT_TRUE(TraceWriter::create(folder(), "a.trace", header()));
  EXPECT_FALSE(fs::is_symlink(path()));
  std::ifstream in(target);
  EXPECT_EQ(std::string((std::istreambuf_iterator<char>(in)), {}), "precious");
}

TEST_F(TraceFile, AFullDiskIsAnErrorThatNamesTheFile) {
  auto writer = TraceWriter::create(folder(), "a.trace", header());
  ASSERT_TRUE(writer);
  struct ::rlimit before {
  }, none{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  none = before, none.rlim_cur = 512;
  auto* const old = ::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &none);
  std::vector<TraceRecord> records;
  for (std::uint64_t i = 0; i < 5000; ++i) records.push_back(stage(static_cast<TimeUs>(i * i * 7919 % 100'003), i * i));
  const auto ok = (*writer)->records(records);
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, old);
  ASSERT_FALSE(ok);
  EXPECT_EQ(ok.error().kind, ErrorKind::kExhausted);
  EXPECT_THAT(ok.error().message(), HasSubstr(path()));
  EXPECT_FALSE((*writer)->finish(0));
}

TEST_F(TraceFile, AStreamWhoseFileIsFullIsNotWhole) {
  auto recorder = std::make_shared<Recorder>(1024);
  const auto made = [&](std::uint64_t most_bytes) {
    auto writer = TraceWriter::create(folder(), "a.trace", header(), most_bytes);
    EXPECT_TRUE(writer);
    return std::make_unique<TraceStream>(recorder, std::move(*writer), recorder->now(),
                                         [](const Error& error) { FAIL() << error.message(); });
  };
  auto stream = made(kMaxTraceBytes);
  recorder->add(stage(1, 1));
  stream->end();
  while (!stream->ended()) std::this_thread::yield();
  EXPECT_TRUE(stream->is_whole());
  stream = made(1);
  recorder->add(stage(2, 2));
  while (stream->is_whole()) std::this_thread::yield();
  stream.reset();
  EXPECT_EQ(read_trace(path())->lost, 1U);
}

TEST_F(TraceFile, AStreamWritesWhatIsRecordedWhileItLives) {
  auto recorder = std::make_shared<Recorder>(1024);
  recorder->add(stage(0, 0));
  {
    auto writer = TraceWriter::create(folder(), "a.trace", header());
    ASSERT_TRUE(writer);
    TraceStream stream(recorder, std::move(*writer), recorder->now(),
                       [](const Error& error) { FAIL() << error.message(); });
    stream.add(group());
    for (std::uint64_t i = 1; i <= 900; ++i) recorder->add(stage(static_cast<TimeUs>(i), i));
  }
  recorder->add(stage(5000, 5000));
  const auto trace = read_trace(path());
  ASSERT_TRUE(trace);
  EXPECT_TRUE(trace->complete);
  EXPECT_EQ(trace->groups.size(), 1U);
  ASSERT_EQ(trace->records.size() + trace->lost, 900U);
  EXPECT_EQ(trace->records.back().as<StageTrace>().step, 900U);
}

}  // namespace
}  // namespace deft::trace
