// The list of jobs that a daemon keeps: who may join, command and end which of them. No network, no process; time is the test's own.
#include "daemon/server/job_table.h"

#include <gtest/gtest.h>

#include <list>

#include "tests/daemon/fake_daemon.h"

namespace deft::daemon {
namespace {

using Stage = FakeDaemon::Stage;
constexpr TimeUs kSecond = 1'000'000;

TEST(JobTable, AWorkerWithABadSettingMakesNoJob) {
  FakeDaemon daemon;
  daemon.first.attached.settings = "policy=fastest\n";
  EXPECT_FALSE(daemon.attach(daemon.first));
  EXPECT_TRUE(daemon.jobs.empty());
}

TEST(JobTable, AConfigThatIsReloadedBetweenTwoWorkersOfAJobIsForLaterJobs) {
  FakeDaemon daemon;
  ASSERT_TRUE(daemon.attach(daemon.first));
  const std::vector<std::string> flags{"--partition_bytes=3MB"};
  daemon.config = Config::load(flags, {}, Audience::kDaemon).value();
  const auto second = daemon.attach(daemon.second);
  EXPECT_TRUE(second) << second.error().message();
  EXPECT_EQ(daemon.state(), "joining");
}

TEST(JobTable, WorkersThatContradictEachOtherEndTheirJobForAll) {
  FakeDaemon daemon;
  ASSERT_TRUE(daemon.attach(daemon.first));
  daemon.second.attached.rank = 2;
  const auto refused = daemon.attach(daemon.second);
  ASSERT_FALSE(refused);
  EXPECT_TRUE(says(refused.error().what, "two workers have rank 2"));
  EXPECT_TRUE(says(daemon.end(), "two workers have rank 2"));
}

TEST(JobTable, ANameCanBeUsedAgainWhenItsJobIsEnding) {
  FakeDaemon daemon;
  daemon.bring_to(Stage::kRunning);
  FakeWorker next(0, 1, 0, 1);
  EXPECT_FALSE(daemon.attach(next)) << "it runs";
  daemon.ask(daemon.first, [&](JobPort& job) { job.worker_ended(daemon.first, true, {}); });
  ASSERT_TRUE(daemon.attach(next)) << "a worker has left: the next run begins";
  EXPECT_EQ(daemon.jobs.status().size(), 2u);
}

TEST(JobTable, OnlyTheOwnerAndRootChangeSettingsAndOnlyWhereTheJobIsLed) {
  FakeDaemon daemon;
  const uid_t owner = daemon.first.identity.uid;
  const auto refusal = [&](uid_t user, const std::string& job) {
    return daemon.jobs.change_settings(user, job, {.policy = "p3"}).error().message();
  };
  daemon.bring_to(Stage::kRunning);
  const std::string name = daemon.first.attached.job;
  EXPECT_TRUE(says(refusal(owner, "another"), "no job 'another'"));
  EXPECT_TRUE(says(refusal(owner + 1, name), "belongs to the user with the id " + std::to_string(owner)));
  for (const uid_t user : {owner, uid_t{0}})
    EXPECT_TRUE(says(refusal(user, name), std::string("on the node of rank 0, at ") + FakeDaemon::kLeader));
}

TEST(JobTable, OnlyTheOwnerAndRootTraceAJobAndOnlyWhereItIsLed) {
  FakeDaemon daemon;
  const uid_t owner = daemon.first.identity.uid;
  const auto refusal = [&](uid_t user, const std::string& job) {
    std::string said;
    daemon.jobs.trace(user, job, {ipc::TraceAction::kDump, ""},
                      [&](const Result<std::string>& path) { said = path.error().message(); });
    return said;
  };
  EXPECT_TRUE(says(refusal(owner, ""), "no job of yours runs on this daemon"));
  daemon.bring_to(Stage::kRunning);
  const std::string name = daemon.first.attached.job;
  EXPECT_TRUE(says(refusal(owner, "another"), "no job 'another'"));
  EXPECT_TRUE(says(refusal(owner + 1, name), "belongs to the user with the id " + std::to_string(owner)));
  for (const uid_t user : {owner, uid_t{0}})
    for (const auto& job : {name, std::string()})  // empty: the only one
      EXPECT_TRUE(says(refusal(user, job), std::string("on the node of rank 0, at ") + FakeDaemon::kLeader));
}

TEST(JobTable, WithoutANameTheUsersOnlyJobIsTraced) {
  FakeDaemon daemon;
  const auto refusal = [&](uid_t user, const std::string& job) {
    std::string said;
    daemon.jobs.trace(user, job, {ipc::TraceAction::kDump, ""},
                      [&](const Result<std::string>& path) { said = path.error().message(); });
    return said;
  };
  daemon.bring_to(Stage::kRunning);
  const std::string not_led = "this node does not lead job 'job'", not_running = "job 'theirs' does not run";
  FakeWorker other(0, 2), set(0, 2);
  other.identity.uid = 8;
  other.attached.job = "theirs";
  set.attached.job = "job.set1";
  for (FakeWorker* const worker : {&other, &set}) ASSERT_TRUE(daemon.attach(*worker));
  EXPECT_TRUE(says(refusal(7, ""), not_led)) << "a process set is a part of its job";
  EXPECT_TRUE(says(refusal(8, ""), not_running));
  EXPECT_TRUE(says(refusal(9, ""), "no job of yours runs on this daemon"));
  EXPECT_TRUE(says(refusal(0, ""), "2 jobs run on this daemon"));
  daemon.ask(daemon.first, [&](JobPort& job) { job.worker_ended(daemon.first, true, {}); });
  EXPECT_TRUE(says(refusal(0, ""), not_running)) << "a job that ends does not count";
  EXPECT_TRUE(says(refusal(7, "job"), "no job 'job' runs on this daemon any more: workers have left it"));
}

TEST(JobTable, FailAllEndsEveryJobWithTheReason) {
  FakeDaemon daemon;
  daemon.bring_to(Stage::kBusy);
  daemon.jobs.fail_all({ErrorKind::kLost, "the daemon on host1 was stopped", "", {}});
  daemon.turn();
  EXPECT_TRUE(says(daemon.end(), "the daemon on host1 was stopped"));
  EXPECT_FALSE(daemon.jobs.running());
  daemon.advance(kSecond);
  EXPECT_TRUE(daemon.empty);
}

TEST(JobTable, FailAllEndsAJobWhoseWorkersHaveLeftAndFailsNobody) {
  FakeDaemon daemon;
  daemon.bring_to(Stage::kBusy);
  for (FakeWorker* const worker : {&daemon.first, &daemon.second})
    daemon.ask(*worker, [&](JobPort& job) { job.worker_ended(*worker, true, {}); });
  daemon.jobs.fail_all({ErrorKind::kLost, "the daemon on host1 was stopped", "", {}});
  daemon.turn();
  EXPECT_FALSE(daemon.jobs.running());
  EXPECT_TRUE(daemon.sent<wire::Failure>().empty()) << "the other nodes need not end";
}

// --- Users ---

TEST(JobTable, JobsOfTwoUsersMayHaveOneName) {
  FakeDaemon daemon;
  ASSERT_TRUE(daemon.attach(daemon.first));
  FakeWorker other(0, 1);
  other.identity.uid = 8;
  other.attached.leader = "10.0.0.9:29610";
  ASSERT_TRUE(daemon.attach(other));
  EXPECT_EQ(daemon.jobs.status().size(), 2u);
  for (const uid_t user : {7, 8}) {
    ASSERT_EQ(daemon.jobs.status(user).size(), 1u) << "of user " << user;
    EXPECT_EQ(daemon.jobs.status(user)[0]["uid"], user);
  }
  EXPECT_TRUE(daemon.jobs.status(9).empty());
}

TEST(JobTable, AProcessSetBelongsToTheJobThatIsNamedBeforeIt) {
  FakeDaemon daemon;
  daemon.bring_to(Stage::kRunning);
  const uid_t owner = daemon.first.peer().uid;
  for (const char* theirs : {"job", "job.set1", "job.set20"}) EXPECT_TRUE(daemon.jobs.has(theirs, owner)) << theirs;
  for (const char* other : {"another", "another.set1", "job.set", "job.set1a", "job.settle1", "job1", ".set1"})
    EXPECT_FALSE(daemon.jobs.has(other, owner)) << other;
  EXPECT_FALSE(daemon.jobs.has("job.set1", owner + 1));
}

TEST(JobTable, AUserHasSoManyJobsAndNoMore) {
  FakeDaemon daemon;
  std::list<FakeWorker> workers;
  Result<void> attached;
  for (int i = 0; i < 300 && attached; ++i) {
    FakeWorker& worker = workers.emplace_back(0, 2);
    worker.attached.job = "job-" + std::to_string(i);
    attached = daemon.attach(worker);
  }
  ASSERT_FALSE(attached);
  EXPECT_EQ(workers.size(), 257u);
  EXPECT_EQ(attached.error().kind, ErrorKind::kExhausted);
  EXPECT_NE(attached.error().message().find("user 7 has 256 jobs"), std::string::npos) << attached.error().message();
  EXPECT_NE(attached.error().fix.find("jobs in the option user_limits"), std::string::npos);
  FakeWorker other(0, 2);
  other.identity.uid = 8;
  EXPECT_TRUE(daemon.attach(other)) << "another user has room";
}

}  // namespace
}  // namespace deft::daemon
