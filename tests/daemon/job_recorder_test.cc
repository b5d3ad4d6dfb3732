#include "daemon/node/job_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <thread>
#include <tuple>

#include "core/shm/memory_records.h"
#include "tests/daemon/fake_worker.h"
#include "tests/daemon/recording.h"

namespace deft::daemon {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using trace::TraceKind;

TEST_F(Recording, WritesNothingUnlessAsked) {
  make("");
  ASSERT_TRUE(begin());
  step(0);
  recorder_.reset();
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(Recording, WritesAllEventsWithWhoAndWhen) {
  make("trace=" + folder_.string());
  ASSERT_TRUE(begin());
  step(0);
  recorder_->gradients_ready(1, {.group = 0, .first_tensor = 2, .tensors = 3, .generation = 4, .last_step = 5}, 2000);
  recorder_->ordered(
      {.link = 1, .group = 0, .bucket = 6, .generation = 4, .offset = 128, .bytes = std::uint64_t{5} << 32}, 9, 2100);
  TransferDone done;
  done.token = 9, done.bytes = 4096, done.wire_bytes = 1040;
  done.spans = {{trace::TransferStage::kSum, 2200, 2200},
                {trace::TransferStage::kEncode, 2200, 2250},
                {trace::TransferStage::kLink, 2250, 2250},
                {trace::TransferStage::kDecode, 2250, 2300}};
  recorder_->transferred(1, done, 2350);
  recorder_->clock_answered(3000, 777'000, 3200);
  const auto trace = written();
  EXPECT_EQ(trace.header.job, "my/job");
  EXPECT_EQ(trace.header.incarnation, node_.view->epoch());
  EXPECT_EQ(trace.header.links, (std::vector<std::string>{"gloo:eth0", "gloo:eth1"}));
  ASSERT_EQ(trace.records.size(), 4U + 1 + 1 + 4 + 1);
  std::map<TraceKind, std::size_t> kinds;
  for (const auto& record : trace.records) ++kinds[record.kind()];
  EXPECT_EQ(kinds[TraceKind::kTransfer], 4U) << "a sum that took no time is left out, a link's time never";
  for (const auto& record : trace.records) {
    switch (record.kind()) {
      case TraceKind::kOrder: EXPECT_EQ(record.as<trace::OrderTrace>().bytes(), std::uint64_t{5} << 32); break;
      case TraceKind::kGradient: EXPECT_EQ(record.as<trace::GradientTrace>().first_tensor, 2U); break;
      case TraceKind::kClock: EXPECT_EQ(record.as<trace::ClockTrace>().leader_us, 777'000); break;
      case TraceKind::kTransfer:
        EXPECT_EQ(record.as<trace::TransferTrace>().number, 9U);
        EXPECT_EQ(record.as<trace::TransferTrace>().wire_bytes, 1040U);
        break;
      default: EXPECT_EQ(record.kind(), TraceKind::kStage);
    }
  }
}

// All stages of both workers in these steps, and the forward that ends the last one.
void expect_steps(std::vector<trace::TraceRecord> records, std::uint64_t first, std::uint64_t last) {
  ASSERT_FALSE(records.empty());
  const auto closing = records.back().as<trace::StageTrace>();
  EXPECT_EQ(closing.step, last + 1);
  EXPECT_EQ(closing.stage, 1U);
  records.pop_back();
  std::map<std::uint64_t, int> stages;
  for (const auto& record : records) ++stages[record.as<trace::StageTrace>().step];
  EXPECT_EQ(stages.size(), last - first + 1);
  for (const auto& [number, count] : stages) {
    EXPECT_TRUE(number >= first && number <= last) << number;
    EXPECT_EQ(count, 4) << number;
  }
}

TEST_F(Recording, WritesTheWantedStepsOnly) {
  make("trace=" + folder_.string() + "\ntrace_steps=3-4");
  ASSERT_TRUE(begin());
  for (std::uint64_t number = 0; number < 8; ++number) step(number);
  expect_steps(written().records, 3, 4);
}

TEST_F(Recording, AFileSaysWhatTheUserHasSetMeanwhile) {
  make("policy=fifo\npartition_bytes=64KB");
  ASSERT_TRUE(begin());
  recorder_->settings_changed({{"policy", "p3"}, {"credit_bytes", "4096"}}, 1000);
  recorder_->settings_changed({{"policy", "bytescheduler"}}, 1100);
  ASSERT_TRUE(obey({ipc::TraceAction::kStart, folder_.string()}));
  recorder_->settings_changed({{"policy", "usbyte"}}, 1200);
  const auto trace = written();
  ASSERT_EQ(trace.records.size(), 1U) << "of what changed while the file was written";
  EXPECT_EQ(trace.records.front().kind(), TraceKind::kSettings);
  const auto& options = trace.header.options;
  EXPECT_EQ(options.at("policy"), "bytescheduler");
  EXPECT_EQ(options.at("credit_bytes"), "4096");
  EXPECT_EQ(options.at("partition_bytes"), "65536");
}

TEST_F(Recording, AFileNamesTheCodecsOfTheJob) {
  make("policy=knapsack");
  ASSERT_TRUE(begin());
  ASSERT_TRUE(obey({ipc::TraceAction::kStart, folder_.string()}));
  EXPECT_EQ(written().header.codecs, (std::vector<std::string>{"none", "bf16", "int8"}));
}

TEST_F(Recording, AJobThatFailsLeavesItsNewestEvents) {
  make("");
  ASSERT_TRUE(begin());
  for (std::uint64_t number = 0; number < 8; ++number) step(number);
  recorder_->end(false);
  recorder_.reset();
  const auto dumps = dumps_in(folder_);
  ASSERT_EQ(dumps.size(), 1U);
  EXPECT_EQ(dumps.begin()->first, "my_job-node0.trace");
  EXPECT_EQ(dumps.begin()->second.records.size(), 32U);
  EXPECT_TRUE(dumps.begin()->second.complete);
}

TEST_F(Recording, AJobThatEndsWellOrHasWrittenAllLeavesNone) {
  make("");
  step(1);
  recorder_->end(true);
  make("trace=" + (folder_ / "wanted").string());
  fs::create_directories(folder_);
  ASSERT_TRUE(begin());
  step(1);
  recorder_->end(false);
  recorder_.reset();
  EXPECT_FALSE(fs::exists(folder_ / "traces"));
}

// No file can grow meanwhile: the disk is full.
class FullDisk {
 public:
  FullDisk() : old_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    struct ::rlimit none = before_;
    none.rlim_cur = 1;
    ::setrlimit(RLIMIT_FSIZE, &none);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, old_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  struct ::rlimit before_ {};
  void (*const old_)(int);
};

TEST_F(Recording, AJobThatFailsAfterItsFileBrokeOffLeavesItsNewestEvents) {
  make("trace=" + (folder_ / "wanted").string());
  fs::create_directories(folder_);
  ASSERT_TRUE(begin());
  {
    const FullDisk full;
    step(1);
    while (!recorder_->finished()) std::this_thread::yield();
  }
  recorder_->end(false);
  recorder_.reset();
  const auto dumps = dumps_in(folder_);
  ASSERT_EQ(dumps.size(), 1U);
  EXPECT_EQ(dumps.begin()->second.records.size(), 4U);
}

TEST_F(Recording, AFileThatBrokeOffDoesNotHinderAnother) {
  make("");
  fs::create_directories(folder_);
  ASSERT_TRUE(obey({ipc::TraceAction::kStart, (folder_ / "first").string()}));
  {
    const FullDisk full;
    step(1);
    while (!recorder_->finished()) std::this_thread::yield();
  }
  const auto again = obey({ipc::TraceAction::kStart, folder_.string()});
  ASSERT_TRUE(again) << again.error().message();
  step(2);
  EXPECT_EQ(written().records.size(), 4U);
}

// A job of many small parts fills the ring between two answers.
TEST_F(Recording, ADumpHasAnswersOfTheClockThatTheRingHasLost) {
  make("");
  ASSERT_TRUE(begin());
  for (TimeUs at_us = 1000; at_us < 101'000; at_us += 1000)
    recorder_->clock_answered(at_us, at_us + 777'000, at_us + 200);
  for (std::uint64_t number = 200; number < 200 + trace::Recorder::kRecords / 3; ++number) step(number);
  recorder_->clock_answered(99'999'000, 100'777'000, 99'999'200);
  ASSERT_TRUE(obey({ipc::TraceAction::kDump, ""}));
  recorder_.reset();
  const auto dump = dumps_in(folder_).begin()->second;
  std::vector<TimeUs> asked_us;
  for (const auto& record : dump.records)
    if (record.kind() == TraceKind::kClock) asked_us.push_back(record.begin_us());
  ASSERT_EQ(asked_us.size(), 64U) << "the newest ones, each once";
  EXPECT_EQ(asked_us.front(), 38'000);
  EXPECT_EQ(asked_us.back(), 99'999'000);
}

TEST_F(Recording, AStallIsWrittenNowAndThen) {
  make("");
  step(1);
  recorder_->stalled(1'000'000);
  recorder_.reset();
  EXPECT_EQ(dumps_in(folder_).size(), 1U);
  fs::remove_all(folder_);
  make("");
  step(1);
  recorder_->stalled(1'000'000);
  while (!recorder_->finished()) std::this_thread::yield();
  fs::remove_all(folder_);
  recorder_->stalled(2'000'000);
  EXPECT_FALSE(fs::exists(folder_)) << "a second ago it was written";
  recorder_->stalled(99'000'000);
  recorder_.reset();
  EXPECT_EQ(dumps_in(folder_).size(), 1U);
}

TEST_F(Recording, AUserStartsAndStopsATraceOfARunningJob) {
  make("");
  ASSERT_TRUE(begin());
  step(1);
  EXPECT_THAT(obey({ipc::TraceAction::kStop, ""}).error().message(), HasSubstr("writes no trace"));
  const auto path = obey({ipc::TraceAction::kStart, folder_.string()});
  ASSERT_TRUE(path) << path.error().message();
  EXPECT_THAT(obey({ipc::TraceAction::kStart, folder_.string()}).error().message(), HasSubstr("already"));
  step(2);
  EXPECT_EQ(*obey({ipc::TraceAction::kStop, ""}), *path);
  step(3);
  while (!recorder_->finished()) std::this_thread::yield();
  std::set<std::uint64_t> steps;
  const auto trace = trace::read_trace(*path);
  ASSERT_TRUE(trace);
  for (const auto& record : trace->records) steps.insert(record.as<trace::StageTrace>().step);
  EXPECT_EQ(steps, std::set<std::uint64_t>{2});
  ASSERT_TRUE(obey({ipc::TraceAction::kStart, folder_.string()})) << "once more";
  make("", ::geteuid() + 1);
  EXPECT_THAT(obey({ipc::TraceAction::kStart, folder_.string()}).error().message(),
              HasSubstr("belongs to another user"));
}

// The records that a worker got and that say that a trace has begun.
std::size_t told_of_traces(const FakeWorker& worker) {
  return static_cast<std::size_t>(std::ranges::count(worker.records, shm::RecordKind::kTraceBegan, &shm::Record::kind));
}

TEST_F(Recording, WorkersHearOnceOfEachTrace) {
  make("");
  ASSERT_TRUE(begin());
  FakeWorker first(0, 4, 0, 2), second(1, 4, 1, 2);
  ASSERT_TRUE(members_->attach(first) && members_->attach(second));
  step(1);
  EXPECT_EQ(told_of_traces(first), 0U) << "nothing is written";
  for (std::size_t traces = 1; traces <= 2; ++traces) {
    ASSERT_TRUE(obey({ipc::TraceAction::kStart, folder_.string()}));
    EXPECT_EQ(told_of_traces(first), traces - 1) << "a worker hears of it with its next stage";
    step(2 * traces);
    step(2 * traces + 1);
    EXPECT_EQ(told_of_traces(first), traces);
    EXPECT_EQ(told_of_traces(second), traces);
    ASSERT_TRUE(obey({ipc::TraceAction::kStop, ""}));
  }
  ASSERT_TRUE(members_->detach(second));
  ASSERT_TRUE(obey({ipc::TraceAction::kStart, folder_.string()}));
  step(9);
  EXPECT_EQ(told_of_traces(first), 3U);
}

TEST_F(Recording, WritesWhatWorkersTellOfTheirMemory) {
  make("trace=" + folder_.string());
  ASSERT_TRUE(begin());
  recorder_->memory_told(1, shm::LayerRecord{.group = 3, .layer = 0, .tensor = 7, .forward_ns = 5000}, 2000);
  recorder_->memory_told(
      1, shm::MemoryRecord{.part = 6, .begin = 2, .end = 9, .input_of = 1, .bytes = 4096, .growing = 1024}, 2000);
  recorder_->memory_told(1, shm::MemoryStepRecord{.layers = 1, .amounts = 1, .samples = 32, .step = 8}, 2001);
  const auto trace = written();
  ASSERT_EQ(trace.records.size(), 3U);
  const auto layer = trace.records[0].as<trace::LayerTrace>();
  EXPECT_EQ(std::tie(layer.worker, layer.group, layer.layer, layer.tensor), std::make_tuple(1U, 3U, 0U, 7U));
  EXPECT_EQ(layer.forward_ns, 5000U);
  const auto amount = trace.records[1].as<trace::MemoryTrace>();
  EXPECT_EQ(std::tie(amount.worker, amount.part, amount.begin, amount.end), std::make_tuple(1U, 6U, 2U, 9U));
  EXPECT_EQ(std::tie(amount.input_of, amount.bytes, amount.growing), std::make_tuple(1U, 4096U, 1024U));
  const auto end = trace.records[2].as<trace::MemoryStepTrace>();
  EXPECT_EQ(std::tie(end.worker, end.layers, end.amounts, end.samples), std::make_tuple(1U, 1U, 1U, 32U));
  EXPECT_EQ(end.step, 8U);
}

// One bucket with a large matrix, a small one and a bias of each type.
TEST_F(Recording, WritesWhichGradientsACodecMayEncode) {
  make("trace=" + folder_.string() + "\ncompression_min_bytes=20000");
  ASSERT_TRUE(begin());
  std::vector<model::TensorSpec> specs;
  const auto add = [&](const char* name, model::DType dtype, std::vector<std::uint64_t> shape) {
    specs.push_back({name, dtype, std::move(shape), static_cast<std::uint32_t>(specs.size())});
  };
  add("large", model::DType::kFloat32, {80, 64});
  add("small", model::DType::kFloat32, {64, 64});
  add("bias", model::DType::kFloat32, {9000});
  add("large half", model::DType::kBFloat16, {160, 64});
  add("small half", model::DType::kBFloat16, {100, 64});
  const auto layout = model::lay_out(specs, 1);
  ASSERT_TRUE(layout);
  Gradients gradients(specs, *layout, 2);
  std::vector<model::Bucket> buckets;
  for (const auto& region : layout->regions) buckets.push_back({"b", region.offset, region.bytes, region.dtype});
  ASSERT_TRUE(gradients.set_buckets(buckets));
  recorder_->declared(3, "model", gradients);
  const auto groups = written().groups;
  ASSERT_EQ(groups.size(), 1U);
  ASSERT_EQ(groups.front().buckets.size(), 2U);
  EXPECT_EQ(groups.front().buckets[0].elements, (trace::TraceGroup::Elements{model::DType::kFloat32, 20'480}));
  EXPECT_EQ(groups.front().buckets[1].elements, (trace::TraceGroup::Elements{model::DType::kBFloat16, 20'480}));
  EXPECT_EQ(groups.front().tensors[0].elements, (trace::TraceGroup::Elements{model::DType::kFloat32, 20'480}));
  EXPECT_EQ(groups.front().tensors[2].elements, (trace::TraceGroup::Elements{model::DType::kFloat32, 0}));
}

trace::TraceHeader header_of(std::uint64_t incarnation) {
  trace::TraceHeader header;
  header.job = "j", header.incarnation = incarnation;
  return header;
}

TEST(RingDump, KeepsTheNewestJobsAndLeavesFoldersOfOthersAlone) {
  const fs::path folder = fs::temp_directory_path() / ("deft-dumps-" + std::to_string(::getpid()));
  const auto recorder = std::make_shared<trace::Recorder>(64);
  for (std::uint64_t incarnation = 1; incarnation <= 20; ++incarnation)
    RingDump({recorder, header_of(incarnation), {}}, folder.string(), "a test");
  std::size_t jobs = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder / "traces")) ++jobs;
  EXPECT_EQ(jobs, 16U);
  // The clock of day went back: all others seem to be newer.
  for (const auto& entry : fs::directory_iterator(folder / "traces"))
    fs::last_write_time(entry.path(), fs::file_time_type::clock::now() + std::chrono::hours(1));
  {
    const RingDump dump({recorder, header_of(21), {}}, folder.string(), "a test");
    while (!dump.ended()) std::this_thread::yield();
    EXPECT_TRUE(fs::exists(dump.path()));
  }
  fs::remove_all(folder);
  fs::create_directory_symlink("/tmp", folder);  // not ours to write through
  const RingDump dump({recorder, header_of(1), {}}, folder.string(), "a test");
  while (!dump.ended()) std::this_thread::yield();
  EXPECT_FALSE(fs::exists(dump.path()));
  fs::remove(folder);
}

TEST(RingDump, AUserWhoFailsManyJobsTakesNoTraceOfOthersAway) {
  const fs::path folder = fs::temp_directory_path() / ("deft-users-" + std::to_string(::getpid()));
  auto dump = [&, incarnation = std::uint64_t{0}](uid_t user) mutable {
    const RingDump one({std::make_shared<trace::Recorder>(64), header_of(++incarnation), {}, user}, folder.string(),
                       "");
    while (!one.ended()) std::this_thread::yield();
    return fs::path(one.path());
  };
  const auto all_are_older = [&] {  // than a minute
    for (const auto& entry : fs::directory_iterator(folder / "traces"))
      fs::last_write_time(entry.path(), fs::last_write_time(entry.path()) - std::chrono::minutes(2));
  };
  const fs::path of_victim = dump(7);
  for (int i = 0; i < 16; ++i) EXPECT_TRUE(fs::exists(dump(8)));
  const fs::path one_too_many = dump(8);
  EXPECT_FALSE(fs::exists(one_too_many.parent_path())) << "within a minute";
  for (uid_t user = 9; user < 60; ++user) {
    all_are_older();
    EXPECT_TRUE(fs::exists(dump(8))) << user;
    EXPECT_TRUE(fs::exists(dump(user))) << user;
    EXPECT_EQ(fs::exists(of_victim), user < 55) << "with " << user << ": who has most gives way";
  }
  fs::remove_all(folder);
}

// The unit's daemon has the umask 077, and an older one has left such a folder.
TEST(RingDump, UsersOfASharedDaemonMayReadTheTracesOfTheirJobs) {
  const fs::path folder = fs::temp_directory_path() / ("deft-shared-" + std::to_string(::getpid()));
  const auto mode_of = [](const fs::path& path) { return static_cast<mode_t>(fs::status(path).permissions()); };
  const mode_t before = ::umask(077);
  fs::create_directories(folder / "traces");
  std::string path;
  {
    const RingDump dump({std::make_shared<trace::Recorder>(64), header_of(1), {}}, folder.string(), "a test");
    path = dump.path();
  }
  ::umask(before);
  EXPECT_EQ(mode_of(folder / "traces"), 0711U);
  EXPECT_EQ(mode_of(fs::path(path).parent_path()), 0755U);
  EXPECT_EQ(mode_of(path), 0644U);
  fs::remove_all(folder);
}

// A volume of Kubernetes belongs to root. The daemon's state folder is one that it makes inside.
TEST(RingDump, TheFolderAboveTheStateFolderMayBeAnotherUsers) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to give a folder away";
  const fs::path volume = fs::temp_directory_path() / ("deft-volume-" + std::to_string(::getpid()));
  fs::create_directories(volume);
  ASSERT_EQ(::chown(volume.c_str(), 61'000, 61'000), 0);
  const auto is_kept_in = [](const fs::path& state) {
    std::string path;
    {
      const RingDump dump({std::make_shared<trace::Recorder>(64), header_of(1), {}}, state.string(), "a test");
      path = dump.path();
    }
    return fs::exists(path);
  };
  EXPECT_FALSE(is_kept_in(volume));
  EXPECT_TRUE(is_kept_in(volume / "state"));
  fs::remove_all(volume);
}

TEST_F(Recording, ATraceOfSomeStepsEndsByItself) {
  make("");
  recorder_->clock_answered(3000, 777'000, 3200);
  step(7);
  ASSERT_TRUE(obey({ipc::TraceAction::kStart, folder_.string(), 2}));
  for (std::uint64_t number = 8; number < 12; ++number) step(number);
  EXPECT_THAT(obey({ipc::TraceAction::kStop, ""}).error().message(), HasSubstr("writes no trace"));
  auto records = written().records;
  ASSERT_EQ(records.front().kind(), TraceKind::kClock) << "a short trace can be aligned by an older answer";
  records.erase(records.begin());
  expect_steps(std::move(records), 8, 9);
}

TEST_F(Recording, ATraceThatAUserStartsBeforeDoesNotForgetTheWantedSteps) {
  make("trace=" + folder_.string() + "\ntrace_steps=4-6");
  ASSERT_TRUE(begin());
  step(0);
  ASSERT_TRUE(obey({ipc::TraceAction::kStart, (folder_ / "own").string(), 2}));
  for (std::uint64_t number = 1; number < 9; ++number) step(number);
  expect_steps(written().records, 4, 6);
}

TEST_F(Recording, ADaemonOfAnotherUserWritesNothingForAJob) {
  make("trace=" + folder_.string(), ::geteuid() + 1);
  const auto ok = begin();
  ASSERT_FALSE(ok);
  EXPECT_THAT(ok.error().message(), HasSubstr("belongs to another user"));
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(Recording, AFolderThatCannotBeMadeIsAnErrorThatNamesIt) {
  make("trace=/proc/no/such/folder");
  const auto ok = begin();
  ASSERT_FALSE(ok);
  EXPECT_THAT(ok.error().message(), HasSubstr("/proc/no/such/folder"));
}

TEST_F(Recording, WithoutAThreadThereIsNoFileAndTheJobGoesOn) {
  make("");
  ASSERT_TRUE(begin());
  step(0);
  const NoThreads none;
  for (const auto action : {ipc::TraceAction::kStart, ipc::TraceAction::kDump}) {
    const auto obeyed = obey({action, folder_.string()});
    ASSERT_FALSE(obeyed);
    EXPECT_THAT(obeyed.error().message(), HasSubstr("no thread"));
  }
  recorder_->stalled(1000);
  recorder_->end(false);
}

TEST_F(Recording, TimesThatCannotBeAreIgnored) {
  make("trace=" + folder_.string());
  ASSERT_TRUE(begin());
  recorder_->clock_answered(0, 5, 100);              // of a leader that does not tell
  recorder_->clock_answered(200, 5, 100);            // from the future
  recorder_->clock_answered(1, 5, 120'000'000'000);  // too old to say anything
  EXPECT_TRUE(written().records.empty());
}

TEST(StepRange, ReadsAStepOrARange) {
  EXPECT_EQ(parse_step_range("7")->last, 7U);
  EXPECT_EQ(parse_step_range("100-119")->first, 100U);
  EXPECT_EQ(parse_step_range("100-119")->last, 119U);
  for (const char* text : {"", "-", "5-", "-5", "9-3", "1-2-3", "a", "1 -2", "99999999999999999999"})
    EXPECT_FALSE(parse_step_range(text)) << text;
}

}  // namespace
}  // namespace deft::daemon
