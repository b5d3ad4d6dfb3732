// A job's recorder, whose files a test reads.
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "core/trace/trace_file.h"
#include "daemon/node/job_recorder.h"
#include "tests/daemon/fake_node.h"

namespace deft::daemon {

class Recording : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // A job of `uid` that wants this.
  void make(const std::string& wishes, uid_t uid = ::geteuid(), Offload offload = {}) {
    auto settings = job_settings(Config(), wishes);
    ASSERT_TRUE(settings) << settings.error().message();
    recorder_.reset();
    members_ = std::make_unique<Membership>(JobIdentity{"my/job", uid, 4, 2, "", ""}, *settings);
    recorder_ = std::make_unique<JobRecorder>(
        *members_, node_.view,
        JobRecorder::Place{.host = "hosta", .state_folder = folder_.string(), .offload = std::move(offload)});
  }
  // What the recorder tells at once: it has no other thread.
  Result<void> begin() {
    Result<void> told = fail(ErrorKind::kInternal, "nothing was told");
    recorder_->begin([&](Result<void> ready) { told = std::move(ready); });
    return told;
  }
  Result<std::string> obey(const wire::TraceOrder& order) {
    Result<std::string> told = fail(ErrorKind::kInternal, "nothing was told");
    recorder_->obey(order, [&](Result<std::string> path) { told = std::move(path); });
    return told;
  }
  void step(std::uint64_t number) {
    const auto at_us = static_cast<TimeUs>(number) * 1000 + 1000;
    for (const std::size_t worker : {0U, 1U}) {
      recorder_->stage_began(worker, {.stage = 1, .step = number}, at_us);
      recorder_->stage_began(worker, {.stage = 2, .step = number}, at_us + 300);
    }
  }
  trace::NodeTrace written() {
    recorder_.reset();  // finishes the file
    auto trace = trace::read_trace((folder_ / "my_job-node0.trace").string());
    EXPECT_TRUE(trace) << trace.error().message();
    return trace ? *std::move(trace) : trace::NodeTrace{};
  }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("deft-recording-" + std::to_string(::getpid()));
  FakeNode node_;
  std::unique_ptr<Membership> members_;
  std::unique_ptr<JobRecorder> recorder_;
};

// While it lives, a new thread needs a stack that no machine has.
struct NoThreads {
  NoThreads() {
    pthread_getattr_default_np(&before);
    pthread_attr_t huge = before;
    pthread_attr_setstacksize(&huge, std::size_t{1} << 48);
    EXPECT_EQ(pthread_setattr_default_np(&huge), 0);
  }
  ~NoThreads() { pthread_setattr_default_np(&before); }
  pthread_attr_t before{};
};

// The files of the state folder, by name.
inline std::map<std::string, trace::NodeTrace> dumps_in(const std::filesystem::path& folder) {
  std::map<std::string, trace::NodeTrace> dumps;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder / "traces"))
    if (entry.path().extension() == ".trace")
      dumps[entry.path().filename().string()] = *trace::read_trace(entry.path().string());
  return dumps;
}

}  // namespace deft::daemon
