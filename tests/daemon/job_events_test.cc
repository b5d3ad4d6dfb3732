// What workers and the leader say reaches the part of a job that it is for; and who pays for what is wrong.
#include <gtest/gtest.h>

#include "daemon/node/leader_messages.h"
#include "daemon/node/worker_events.h"
#include "tests/daemon/fake_node.h"

namespace deft::daemon {
namespace {

// A job whose links are never opened: no thread, no network.
struct JobEvents : testing::Test, FakeNode {
  Reactor reactor;
  FakeControl control;
  LinkMaker links = link_maker("");
  std::unique_ptr<JobParts> parts = std::make_unique<JobParts>(
      JobParts::Surroundings{reactor, members, leader, &scheduler, control, "hosta", links}, view);
  WorkerEvents workers{members, parts, leader, control, "hosta"};
  LeaderMessages messages{members, parts, leader, control, "hosta"};

  static CollectiveRequest barrier() {
    CollectiveRequest request;
    request.name = "epoch";
    request.call.operation = 11;
    request.call.collective = ipc::Collective::kBarrier;
    return request;
  }
};

TEST_F(JobEvents, AWorkerThatBreaksTheRulesIsDroppedWithTheReason) {
  workers.record(first, shm::Record());
  ASSERT_EQ(first.closed.size(), 1u);
  EXPECT_NE(first.closed[0].message().find("a record of an unknown kind"), std::string::npos);
  ASSERT_EQ(first.errors.size(), 1u);
  workers.record(second, shm::ReadyRecord{.group = 7, .tensors = 1});
  EXPECT_EQ(second.closed.size(), 1u);
  EXPECT_TRUE(control.failures.empty()) << "the job fails when the worker's session ends";
}

TEST_F(JobEvents, WorkersThatContradictEachOtherFailTheJob) {
  workers.declare(first, declaration({64}));
  EXPECT_TRUE(control.failures.empty());
  workers.declare(second, declaration({65}));
  EXPECT_EQ(control.failures.size(), 1u);
  EXPECT_TRUE(second.closed.empty());
}

TEST_F(JobEvents, ACollectiveThatIsUnderWayIsRefusedToItsCallerAlone) {
  workers.request(first, barrier());
  workers.request(first, barrier());
  ASSERT_EQ(first.errors.size(), 1u);
  EXPECT_EQ(first.errors[0].second, 11u);
  EXPECT_TRUE(control.failures.empty());
  EXPECT_TRUE(first.closed.empty());
}

TEST_F(JobEvents, AFailedLinkOfAWorkerIsASuspicionIfAPeerMayBeLost) {
  workers.link_failed(first, {ErrorKind::kLost, "reset", "", {}});
  workers.link_failed(first, {ErrorKind::kInternal, "no such symbol", "", {}});
  ASSERT_EQ(control.suspicions.size(), 1u);
  EXPECT_NE(control.suspicions[0].message().find("rank 0 on hosta"), std::string::npos)
      << control.suspicions[0].message();
  EXPECT_EQ(control.failures.size(), 1u);
}

TEST_F(JobEvents, AWorkerThatSaysGoodbyeHasLeftAndTheLeaderHearsOfIt) {
  workers.worker_ended(second, true, {});
  EXPECT_TRUE(members.has_left(1));
  const auto left = leader.all<wire::Leave>();
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].ranks, std::vector<std::uint32_t>{1});
  workers.worker_ended(second, true, {});
  EXPECT_EQ(leader.all<wire::Leave>().size(), 1u);
}

TEST_F(JobEvents, AWorkerThatDiesFailsTheJobWithItsHost) {
  workers.worker_ended(first, false, {ErrorKind::kLost, "rank 0 (pid 1000) died", "", {}});
  ASSERT_EQ(control.failures.size(), 1u);
  EXPECT_NE(control.failures[0].message().find("on hosta"), std::string::npos);
  EXPECT_FALSE(members.has_left(0));
}

TEST_F(JobEvents, NothingIsTakenFromAStrangerOrOnceTheJobHasEnded) {
  FakeWorker stranger(0, 4, 0, 2);
  workers.declare(stranger, declaration({64}));
  members.advance(JobState::kEnded);
  workers.declare(first, declaration({64}));
  workers.record(first, shm::Record());
  messages(wire::LaunchOrder{5, {}});
  EXPECT_TRUE(parts->groups.groups().empty());
  EXPECT_TRUE(first.closed.empty());
  EXPECT_TRUE(control.failures.empty());
}

TEST_F(JobEvents, AHeartbeatIsAnsweredAndAnAnswerIsNot) {
  messages(wire::Heartbeat{});
  messages(wire::Heartbeat{.reply = true});
  const auto answers = leader.all<wire::Heartbeat>();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_TRUE(answers[0].reply);
}

TEST_F(JobEvents, TheLeadersDecisionsReachTheJob) {
  messages(wire::Begin{});
  messages(wire::Failure{{ErrorKind::kLost, "node 1 was lost", "", {}}, false});
  messages(wire::Leave{{3}});
  EXPECT_EQ(control.begun, 1);
  ASSERT_EQ(control.ends.size(), 1u);
  EXPECT_EQ(control.ends[0].what, "node 1 was lost");
  EXPECT_TRUE(members.has_left(3));
}

TEST_F(JobEvents, ALeaderThatIsWrongFailsTheJobAndNamesThisNode) {
  wire::Launch launch;
  launch.bytes = 4;
  messages(wire::LaunchOrder{1, {launch}});  // number 0 is due
  messages(wire::LaunchOrder{0, {launch}});  // of no group
  messages(wire::CollectiveStart{1, 0, "epoch", {0, 0, 0, 0}});
  messages(wire::PlanOrder{});
  ASSERT_EQ(control.failures.size(), 4u);
  for (const Error& error : control.failures)
    EXPECT_NE(error.message().find("on hosta"), std::string::npos) << error.message();
}

TEST_F(JobEvents, MessagesAreCheckedAgainstWhatTheJobKnows) {
  const JobFacts facts(members, 2, parts.get());
  EXPECT_EQ(facts.world(), 4u);
  EXPECT_EQ(facts.local_ranks(), (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(facts.link_epochs(), (std::vector<std::uint32_t>{0, 0}));
  EXPECT_EQ(facts.next_number(), 0u);
  EXPECT_FALSE(facts.group(0));
  workers.request(first, barrier());
  ASSERT_TRUE(facts.collective("epoch"));
  EXPECT_EQ(facts.collective("epoch")->counts.size(), 1u);
  EXPECT_FALSE(facts.keys_asked(1));
  const JobFacts before(members, 2, nullptr);
  EXPECT_EQ(before.link_epochs().size(), 2u);
  EXPECT_FALSE(before.collective("epoch"));
}

}  // namespace
}  // namespace deft::daemon
