// The folder of a trace is on a server that does not answer yet: the job goes on meanwhile, and nothing of the trace is lost.
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "tests/daemon/recording.h"

namespace deft::daemon {
namespace {

class SlowFolder : public Recording {
 protected:
  // A job whose folder answers when the test says so.
  void make_slow(const std::string& wishes) {
    make(wishes, ::geteuid(), [this](std::function<void()> work, std::function<void()> done) {
      ++asked_;
      answer_ = [work = std::move(work), done = std::move(done)] {
        work();
        done();
      };
    });
    std::filesystem::create_directories(folder_);
  }
  std::set<std::uint64_t> written_steps() {
    while (!recorder_->finished()) std::this_thread::yield();
    std::set<std::uint64_t> steps;
    for (const auto& record : written().records) steps.insert(record.as<trace::StageTrace>().step);
    return steps;
  }

  int asked_ = 0;
  std::function<void()> answer_;
};

using Steps = std::set<std::uint64_t>;

TEST_F(SlowFolder, TheTraceBeginsWhereItWasWanted) {
  make_slow("trace=" + folder_.string());
  bool is_ready = false;
  recorder_->begin([&](const Result<void>& ready) { is_ready = ready.has_value(); });
  step(1);
  EXPECT_FALSE(is_ready || recorder_->is_writing() || recorder_->finished());
  answer_();
  EXPECT_TRUE(is_ready && recorder_->is_writing());
  step(2);
  recorder_->end(true);
  EXPECT_EQ(written_steps(), (Steps{1, 2}));
}

TEST_F(SlowFolder, AJobThatEndsBeforeHasItsTraceToo) {
  make_slow("trace=" + folder_.string());
  recorder_->begin([](const Result<void>&) {});
  step(1);
  recorder_->end(true);
  EXPECT_FALSE(recorder_->finished());
  answer_();
  EXPECT_EQ(written_steps(), Steps{1});
}

TEST_F(SlowFolder, TheWantedStepsAreWrittenWhenItAnswersInTheirMidst) {
  make_slow("trace=" + folder_.string() + "\ntrace_steps=2-4");
  recorder_->begin([](const Result<void>&) {});
  answer_();  // the folder is there
  step(1);
  step(2);
  EXPECT_EQ(asked_, 2);
  step(3);
  EXPECT_EQ(asked_, 2) << "it is asked once";
  answer_();
  for (const std::uint64_t number : {4U, 5U, 6U}) step(number);
  EXPECT_FALSE(recorder_->is_writing());
  EXPECT_EQ(written_steps(), (Steps{2, 3, 4, 5})) << "the forward of step 5 tells when step 4 has ended";
}

TEST_F(SlowFolder, AUserHearsOfTheFileWhenItIsOpen) {
  make_slow("");
  std::string path;
  recorder_->obey({ipc::TraceAction::kStart, folder_.string()}, [&](const Result<std::string>& told) { path = *told; });
  EXPECT_EQ(path, "");
  EXPECT_NE(obey({ipc::TraceAction::kStart, folder_.string()}).error().what.find("is being opened"), std::string::npos);
  EXPECT_FALSE(obey({ipc::TraceAction::kStop, ""}));
  answer_();
  EXPECT_EQ(path, (folder_ / "my_job-node0.trace").string());
  EXPECT_EQ(*obey({ipc::TraceAction::kStop, ""}), path);
}

TEST_F(SlowFolder, NobodyHearsOfItAfterTheJobsEnd) {
  make_slow("trace=" + folder_.string());
  recorder_->begin([](const Result<void>&) { FAIL(); });
  recorder_.reset();
  answer_();
}

}  // namespace
}  // namespace deft::daemon
