// A leader that lies, against a real job: every field of every message to a node is spoiled, one at a time, and the message is given to
// the job at each stage of its life. The job ends with an error that names the leader, or goes on; the daemon and other jobs live.
#include <glog/logging.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "core/base/text.h"
#include "tests/daemon/fake_daemon.h"
#include "tests/daemon/spoiler.h"

namespace deft::daemon {
namespace {

using Stage = FakeDaemon::Stage;

// What a spoiled message may do to its job.
struct Outcomes {
  std::map<std::string, int> ended, survived;  // by field
};

class HostileLeader : public ::testing::Test {
 protected:
  // Thousands of jobs begin and end, and nobody reads what they log.
  void SetUp() override { FLAGS_minloglevel = google::GLOG_FATAL; }

  void start(Stage stage) {
    daemon_ = std::make_unique<FakeDaemon>();
    bystander_ = std::make_unique<FakeWorker>(2, 4, 0, 1);
    bystander_->attached.job = "another";
    bystander_->attached.leader = FakeDaemon::kLeader;
    daemon_->bring_to(stage);
    ASSERT_TRUE(daemon_->attach(*bystander_));
    ASSERT_TRUE(daemon_->end().empty()) << daemon_->end();
  }

  // The message, and what follows from it. Gives the error with which the job ended.
  std::string give(const std::string& bytes) {
    const std::uint64_t failed_before = failed_callbacks();
    daemon_->deliver("leader", bytes);
    daemon_->open_links();
    daemon_->finish_launches();
    daemon_->advance(100'000);
    EXPECT_EQ(failed_callbacks(), failed_before) << "the job's code threw";
    EXPECT_FALSE(daemon_->jobs.status().dump().empty());
    EXPECT_TRUE(bystander_->errors.empty());
    return daemon_->end();
  }

  // The codec names the wrong field; the part of the job that cannot follow an order says what is wrong with it.
  static void check_end(const std::string& end, const wire::ToNode& message, const std::string& path) {
    EXPECT_TRUE(is_utf8(end)) << path;
    if (std::holds_alternative<wire::Failure>(message)) return;  // the leader's own word on why the job ends
    EXPECT_NE(end.find("the leader at 10.0.0.1:29610"), std::string::npos) << path << ": " << end;
  }

  void spoil(const wire::ToNode& message, Stage stage, Outcomes& outcomes) {
    proto::Envelope envelope;
    ASSERT_TRUE(
        envelope.ParseFromString(wire::encode({.job = "job", .incarnation = FakeDaemon::kIncarnation}, message)));
    start(stage);
    samples::Spoiler spoiler([&](const std::string& path) {
      const std::string end = give(envelope.SerializeAsString());
      ++(end.empty() ? outcomes.survived : outcomes.ended)[path];
      if (!end.empty()) check_end(end, message, path);
      start(stage);  // what was taken has changed the job
    });
    spoiler.spoil_all(*envelope.mutable_to_node(), "");
  }

  std::unique_ptr<FakeDaemon> daemon_;
  std::unique_ptr<FakeWorker> bystander_;
};

TEST_F(HostileLeader, UnspoiledEveryMessageIsTakenAtSomeStage) {
  std::set<std::size_t> taken;
  for (const Stage stage : FakeDaemon::kStages)
    for (const auto& message : samples::messages_to_job(stage >= Stage::kBusy)) {
      start(stage);
      const std::string end = give(wire::encode({.job = "job", .incarnation = FakeDaemon::kIncarnation}, message));
      if (end.empty() || std::holds_alternative<wire::Failure>(message)) taken.insert(message.index());
    }
  EXPECT_EQ(taken.size(), std::variant_size_v<wire::ToNode>);
}

// Sanitizers take ten times as long. What they look for shows at one stage as at another.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr Stage kSpoiledStages[] = {Stage::kJoining, Stage::kRunning, Stage::kBusy};
#else
constexpr auto& kSpoiledStages = FakeDaemon::kStages;
#endif

TEST_F(HostileLeader, EndsTheJobWithItsNameWhateverFieldItSpoilsWhenever) {
  Outcomes outcomes;
  for (const Stage stage : kSpoiledStages)
    for (const auto& message : samples::messages_to_job(stage >= Stage::kBusy)) spoil(message, stage, outcomes);
  for (const char* const path :
       {"joined.node", "joined.nodes.ranks", "declare_agreed.buckets.offset", "declare_agreed.hash",
        "launch_order.first", "launch_order.launches.link", "launch_order.launches.bytes",
        "launch_order.launches.generation", "plan_order.plan.generations.apply_step", "collective_start.counts",
        "collective_start.name", "link_stop.link", "link_replaced.epoch", "job_progress.links.finished_below",
        "leave.ranks", "stalled.rank", "waiting.bucket"})
    EXPECT_GT(outcomes.ended[path], 0) << path;
  EXPECT_GT(outcomes.survived.size(), 10u) << "a job goes on if nothing wrong was said";
}

}  // namespace
}  // namespace deft::daemon
