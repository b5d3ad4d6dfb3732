// A job from its first worker to its end, without a network, a process or a thread: LeaderLine and Job. Time is the
// test's own. (For the way into a job see join_phase_test.cc, for the list of jobs job_table_test.cc.)
#include "daemon/node/job.h"

#include <gtest/gtest.h>

#include <new>

#include "tests/daemon/fake_daemon.h"

namespace deft::daemon {
namespace {

using Stage = FakeDaemon::Stage;
constexpr TimeUs kSecond = 1'000'000;

std::string join_of_node_one() {
  auto join = std::get<wire::Join>(samples::messages_to_leader().front());
  join.refusal.reset();
  const auto own = job_settings(Config(), FakeDaemon().first.attached.settings).value().agreed();
  join.settings = own;
  join.settings["links (their kinds)"] = "gloo gloo";
  join.deft_version = DEFT_VERSION;
  return wire::encode({.job = "job"}, wire::ToLeader(join));
}

std::string to_leader(const wire::ToLeader& message) {
  return wire::encode({.job = "job", .incarnation = FakeDaemon::kIncarnation}, message);
}

// --- LeaderLine ---

TEST(LeaderLine, AnAddressThatIsNoneEndsTheJob) {
  FakeDaemon daemon;
  daemon.control.refuses = Error{ErrorKind::kInvalid, "'10.0.0.1' is no address", "", {}};
  daemon.bring_to(Stage::kJoining);
  EXPECT_TRUE(says(daemon.end(), "'10.0.0.1' is no address"));
  EXPECT_TRUE(daemon.control.sent.empty());
}

TEST(LeaderLine, NobodyButTheLeaderIsHeard) {
  FakeDaemon daemon;
  daemon.bring_to(Stage::kRunning);
  daemon.tell(wire::Failure{{ErrorKind::kLost, "says who?", "", {}}, false}, "stranger");
  EXPECT_EQ(daemon.state(), "running");
  EXPECT_EQ(daemon.inbox.unclaimed(), 1u);
  daemon.deliver("leader", wire::encode({.job = "another", .incarnation = 7}, wire::ToNode(wire::Begin{})));
  EXPECT_EQ(daemon.inbox.unclaimed(), 2u);
}

TEST(LeaderLine, TheConnectionEndsWithTheJob) {
  FakeDaemon daemon;
  daemon.bring_to(Stage::kRunning);
  EXPECT_EQ(daemon.control.connected, (std::vector<std::string>{FakeDaemon::kLeader}));
  EXPECT_TRUE(daemon.control.disconnected.empty());
  daemon.tell(wire::Failure{{ErrorKind::kLost, "node 1 was lost", "", {}}, false});
  daemon.advance(kSecond);
  EXPECT_EQ(daemon.control.disconnected, (std::vector<Peer>{"leader"}));
}

TEST(LeaderLine, ALeaderOfThisDaemonHearsItsOwnNodeAndTheOthers) {
  FakeDaemon daemon(true);
  daemon.bring_to(Stage::kJoining);
  EXPECT_TRUE(daemon.control.connected.empty());
  EXPECT_EQ(daemon.state(), "joining");
  daemon.deliver("b", join_of_node_one());
  EXPECT_EQ(daemon.state(), "connecting") << daemon.end();
  ASSERT_EQ(daemon.control.sent.size(), 1u) << "JOINED";
  EXPECT_EQ(daemon.control.sent[0].first, "b");
  daemon.open_links();
  daemon.deliver("b", to_leader(wire::LinksOpen{}));
  EXPECT_EQ(daemon.state(), "running");
  ASSERT_EQ(daemon.first.starts.size(), 1u);
  EXPECT_EQ(daemon.first.starts[0].nodes, 2u);
}

TEST(LeaderLine, ALeaderTakesNothingOfAnotherRunOfItsJob) {
  FakeDaemon daemon(true);
  daemon.bring_to(Stage::kJoining);
  daemon.deliver("b", join_of_node_one());
  daemon.open_links();
  daemon.deliver("b", wire::encode({.job = "job", .incarnation = 6}, wire::ToLeader(wire::LinksOpen{})));
  EXPECT_EQ(daemon.inbox.unclaimed(), 1u);
  EXPECT_EQ(daemon.state(), "connecting");
  daemon.deliver("stranger", wire::encode({.job = "job", .incarnation = 7}, wire::ToLeader(wire::StepTime{-1})));
  EXPECT_EQ(daemon.inbox.rejected(), 1u) << "it has not joined";
  EXPECT_EQ(daemon.state(), "connecting");
}

TEST(LeaderLine, ALeaderNamesTheRanksThatDidNotCome) {
  FakeDaemon daemon(true);
  daemon.bring_to(Stage::kJoining);
  daemon.advance(9 * kSecond + 50'000);
  EXPECT_TRUE(says(daemon.end(), "2-3"));
  EXPECT_EQ(daemon.state(), "ended");
}

std::string message_of_version(std::uint32_t version) {
  return wire::encode({.job = "job", .version = version}, wire::ToLeader(wire::LinksOpen{}));
}

TEST(LeaderLine, AStrangerOfAnotherVersionEndsNoJob) {
  FakeDaemon daemon(true);
  daemon.bring_to(Stage::kJoining);
  daemon.deliver("stranger", message_of_version(99));
  daemon.deliver("another", wire::encode_refusal({.job = "job"}, {ErrorKind::kMismatch, "give up", "", {}}));
  EXPECT_EQ(daemon.state(), "joining") << daemon.end();
  daemon.deliver("b", join_of_node_one());
  EXPECT_EQ(daemon.state(), "connecting") << daemon.end();
}

TEST(LeaderLine, TheDeadlineNamesTheDaemonOfAnotherVersionThatCame) {
  FakeDaemon daemon(true);
  daemon.bring_to(Stage::kJoining);
  daemon.deliver("stranger", message_of_version(99));
  daemon.advance(9 * kSecond + 50'000);
  EXPECT_TRUE(says(daemon.end(), "rank 2-3 of 4 is missing"));
  EXPECT_TRUE(says(daemon.end(), "another one version 99 (install the same version of Deft on all nodes)"));
}

TEST(LeaderLine, ADaemonOfAnotherVersionThatHoldsTheKeyEndsTheJobAtOnce) {
  FakeDaemon daemon(true);
  daemon.config = Config::load(std::vector<std::string>{"--secret-file=/key"}, {}, Audience::kDaemon).value();
  daemon.bring_to(Stage::kJoining);
  daemon.deliver("b", message_of_version(99));
  EXPECT_TRUE(says(daemon.end(), "another one version 99"));
}

TEST(LeaderLine, ALeaderOfAnotherVersionEndsTheJobAtOnce) {
  FakeDaemon daemon;
  daemon.bring_to(Stage::kJoining);
  daemon.deliver("leader", wire::encode_refusal({.job = "job"}, {ErrorKind::kMismatch, "version 99 here", "", {}}));
  EXPECT_TRUE(says(daemon.end(), "version 99 here"));
}

TEST(LeaderLine, ANodeThatIsSilentIsLostByName) {
  FakeDaemon daemon(true);
  daemon.bring_to(Stage::kJoining);
  daemon.deliver("b", join_of_node_one());
  daemon.open_links();
  daemon.deliver("b", to_leader(wire::LinksOpen{}));
  daemon.advance(4 * kSecond);
  EXPECT_EQ(daemon.state(), "running") << daemon.end();
  daemon.advance(2 * kSecond);
  EXPECT_TRUE(says(daemon.end(), "node 1: host1 (rank 2-3) was lost: no sign of life"));
}

// --- Job ---

TEST(Job, PassesThroughItsStatesInOrder) {
  FakeDaemon daemon;
  EXPECT_EQ(daemon.state(), "ended") << "there is none";
  ASSERT_TRUE(daemon.attach(daemon.first));
  EXPECT_EQ(daemon.state(), "attaching");
  ASSERT_TRUE(daemon.attach(daemon.second));
  EXPECT_EQ(daemon.state(), "joining");
  daemon.tell(wire::Begin{});
  EXPECT_EQ(daemon.state(), "joining") << "a BEGIN before JOINED changes nothing";
  daemon.tell(samples::messages_to_node().front());
  EXPECT_EQ(daemon.state(), "connecting");
  ASSERT_EQ(daemon.drivers.drivers.size(), 2u);
  daemon.drivers.drivers[0]->opened();
  EXPECT_TRUE(daemon.sent<wire::LinksOpen>().empty());
  daemon.drivers.drivers[1]->opened();
  EXPECT_EQ(daemon.sent<wire::LinksOpen>().size(), 1u);
  EXPECT_TRUE(daemon.first.starts.empty());
  daemon.tell(wire::Begin{});
  EXPECT_EQ(daemon.state(), "running");
  ASSERT_EQ(daemon.second.starts.size(), 1u);
  EXPECT_EQ(daemon.second.starts[0].node, 1u);
  EXPECT_EQ(daemon.second.starts[0].node_of_rank, (std::vector<std::uint32_t>{0, 0, 1, 1}));
  daemon.tell(wire::Begin{});
  EXPECT_EQ(daemon.second.starts.size(), 1u) << "a second BEGIN changes nothing";
}

TEST(Job, EndsWithTheLeadersErrorOnEveryWorkerAndIsPutAway) {
  FakeDaemon daemon;
  daemon.bring_to(Stage::kBusy);
  daemon.drivers.ends_at_once = false;
  daemon.tell(wire::Failure{{ErrorKind::kLost, "node 0 was lost", "", {}}, false});
  for (const FakeWorker* const worker : {&daemon.first, &daemon.second}) {
    ASSERT_EQ(worker->errors.size(), 1u);
    EXPECT_EQ(worker->errors[0].first.what, "node 0 was lost");
    EXPECT_EQ(worker->records.back().kind(), shm::RecordKind::kFailed);
  }
  EXPECT_EQ(daemon.jobs.history().count(), 1u);
  EXPECT_FALSE(daemon.jobs.running());
  daemon.advance(kSecond);
  EXPECT_FALSE(daemon.jobs.empty()) << "a link still uses the arenas";
  daemon.drivers.ends_at_once = true;
  daemon.advance(kSecond);
  EXPECT_TRUE(daemon.jobs.empty());
  EXPECT_TRUE(daemon.empty);
  EXPECT_TRUE(daemon.first.job.expired());
}

TEST(Job, ASilentLeaderIsLostByName) {
  FakeDaemon daemon;
  daemon.bring_to(Stage::kRunning);
  daemon.advance(4 * kSecond);
  EXPECT_EQ(daemon.state(), "running");
  EXPECT_FALSE(daemon.sent<wire::Heartbeat>().empty());
  daemon.advance(2 * kSecond);
  EXPECT_TRUE(says(daemon.end(), "node 0: host0, the leader, was lost: no sign of life for"));
}

// Without waiting for the first heartbeat: the job may be short, and its trace is to be put on the leader's clock.
TEST(Job, TheLeadersClockIsAskedWhenTheJobBegins) {
  FakeDaemon connecting, running;
  for (FakeDaemon* const daemon : {&connecting, &running}) daemon->advance(kSecond);
  connecting.bring_to(Stage::kConnecting);
  EXPECT_TRUE(connecting.sent<wire::Heartbeat>().empty());
  running.bring_to(Stage::kRunning);
  ASSERT_EQ(running.sent<wire::Heartbeat>().size(), 1u);
  EXPECT_GE(running.sent<wire::Heartbeat>().front().sent_us, kSecond);
}

TEST(Job, ALeaderThatAnswersKeepsTheJobAlive) {
  FakeDaemon daemon;
  daemon.bring_to(Stage::kRunning);
  advance_with_heartbeats(daemon, 60 * kSecond);
  EXPECT_EQ(daemon.state(), "running") << daemon.end();
}

// A link that breaks while the job connects cannot be replaced: who is lost?
TEST(Job, ABrokenLinkIsTheLeadersFaultIfTheLeaderDoesNotAnswer) {
  FakeDaemon daemon;
  daemon.bring_to(Stage::kConnecting);
  daemon.advance(kSecond);
  daemon.drivers.drivers[0]->opened(tl::unexpected(Error{ErrorKind::kLost, "connection reset", "", {}}));
  const auto told = daemon.sent<wire::Failure>();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_TRUE(told[0].suspected);
  EXPECT_TRUE(says(told[0].error.message(), "on host1"));
  daemon.advance(2 * kSecond);
  EXPECT_EQ(daemon.state(), "connecting");
  daemon.advance(2 * kSecond);
  EXPECT_TRUE(says(daemon.end(), "node 0: host0, the leader, was lost"));
  EXPECT_TRUE(says(daemon.end(), "connection reset"));
}

TEST(Job, ABrokenLinkEndsTheJobByItselfIfNobodyIsLost) {
  FakeDaemon daemon;
  daemon.bring_to(Stage::kConnecting);
  daemon.drivers.drivers[0]->opened(tl::unexpected(Error{ErrorKind::kLost, "connection reset", "", {}}));
  advance_with_heartbeats(daemon, 5 * kSecond);
  EXPECT_EQ(daemon.state(), "connecting") << daemon.end();
  advance_with_heartbeats(daemon, 2 * kSecond);
  EXPECT_TRUE(says(daemon.end(), "connection reset"));
  EXPECT_EQ(daemon.end().find("lost:"), std::string::npos) << daemon.end();
}

TEST(Job, RankZeroThatHasEndedIsTheCauseOfASuspicion) {
  FakeDaemon daemon;
  daemon.bring_to(Stage::kRunning);
  daemon.tell(wire::Leave{{0, 1}});
  daemon.ask(daemon.first, [&](JobPort& job) {
    job.link_failed(daemon.first, {ErrorKind::kLost, "the ring is broken", "", {}});
  });
  daemon.advance(kSecond);
  EXPECT_TRUE(says(daemon.end(), "rank 0 has ended, while others still need it"));
}

// Nobody waits for anything.
void run_idle(FakeDaemon& daemon) {
  daemon.bring_to(Stage::kConnecting);
  daemon.open_links();
  daemon.tell(wire::Begin{});
}

// So that no other link can stand in.
void break_link(FakeDaemon& daemon) {
  daemon.drivers.drivers[1]->opened(fail(ErrorKind::kInternal, "the wire was cut"));
  daemon.turn();
}

// The workers of node 0 have left, and its daemon keeps its links for the others. So another node may be lost, which the leader finds out.
TEST(Job, ALeaderThatAnswersIsNotBlamedForALinkAfterItsWorkersHaveLeft) {
  FakeDaemon daemon;
  run_idle(daemon);
  daemon.tell(wire::Leave{{0, 1}});
  break_link(daemon);
  ASSERT_EQ(daemon.sent<wire::Failure>().size(), 1u);
  advance_with_heartbeats(daemon, 2 * kSecond);
  EXPECT_EQ(daemon.state(), "running") << daemon.end();
  advance_with_heartbeats(daemon, 5 * kSecond);
  EXPECT_TRUE(says(daemon.end(), "the wire was cut"));
  EXPECT_FALSE(says(daemon.end(), "rank 0 has ended"));
}

TEST(Job, ALeaderThatHasEndedWithItsWorkersIsTheCauseOfASuspicion) {
  FakeDaemon daemon;
  run_idle(daemon);
  daemon.tell(wire::Leave{{0, 1}});
  daemon.advance(20 * kSecond);
  EXPECT_EQ(daemon.state(), "running") << "its silence is no failure";
  break_link(daemon);
  daemon.advance(kSecond);
  EXPECT_TRUE(says(daemon.end(), "rank 0 has ended, while others still need it"));
}

TEST(Job, ALeaderThatFallsSilentIsLostIfOtherWorkersOfItsNodeHaveNotLeft) {
  FakeDaemon daemon;
  run_idle(daemon);
  daemon.tell(wire::Leave{{0}});
  daemon.advance(6 * kSecond);
  EXPECT_TRUE(says(daemon.end(), "node 0: host0, the leader, was lost"));
}

TEST(Job, AWorkerThatDiesEndsTheJobEverywhere) {
  FakeDaemon daemon;
  daemon.bring_to(Stage::kBusy);
  daemon.ask(daemon.second, [&](JobPort& job) {
    job.worker_ended(daemon.second, false, {ErrorKind::kLost, "rank 3 (pid 1003) died", "", {}});
  });
  EXPECT_TRUE(says(daemon.end(), "rank 3 (pid 1003) died"));
  const auto told = daemon.sent<wire::Failure>();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_FALSE(told[0].suspected);
  EXPECT_TRUE(daemon.second.errors.empty()) << "it is gone";
}

void leave(FakeDaemon& daemon) {
  for (FakeWorker* const worker : {&daemon.first, &daemon.second})
    daemon.ask(*worker, [&](JobPort& job) { job.worker_ended(*worker, true, {}); });
}

TEST(Job, EndsWithItsWorkersIfThoseOfAllOtherNodesHaveLeftBefore) {
  FakeDaemon daemon;
  daemon.bring_to(Stage::kAgreed);
  daemon.tell(wire::Leave{{0, 1}});
  EXPECT_EQ(daemon.state(), "running");
  leave(daemon);  // and the leader, which has ended, says nothing more
  EXPECT_EQ(daemon.sent<wire::Leave>().size(), 2u);
  daemon.advance(kSecond);
  EXPECT_EQ(daemon.state(), "ended");
  EXPECT_TRUE(daemon.sent<wire::Failure>().empty());
}

TEST(Job, NamesItsRankThatEndedWhileOthersWaitForAGradient) {
  FakeDaemon daemon;
  daemon.bring_to(Stage::kAgreed);
  leave(daemon);
  daemon.tell(wire::LaunchOrder{0, {samples::launch(0, 0, 0)}});
  daemon.advance(2 * kSecond);
  EXPECT_EQ(daemon.state(), "ended");
  const auto told = daemon.sent<wire::Failure>();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_TRUE(says(told[0].error.message(), "rank 2 (pid 1002) has ended without handing in 'fc.weight' of step 0"));
}

TEST(Job, KeepsItsLinksForASilenceAtMost) {
  FakeDaemon daemon;
  daemon.bring_to(Stage::kBusy);  // launch 1 runs, and will not end
  leave(daemon);
  daemon.advance(4 * kSecond);
  EXPECT_EQ(daemon.state(), "running");
  daemon.advance(2 * kSecond);
  EXPECT_EQ(daemon.state(), "ended");
}

TEST(Job, WhatItsCodeThrowsFailsThisJobAlone) {
  FakeDaemon daemon;
  FakeWorker other(2, 4, 0, 1);
  other.attached.job = "another";
  other.attached.leader = FakeDaemon::kLeader;
  ASSERT_TRUE(daemon.attach(other));
  daemon.bring_to(Stage::kRunning);
  daemon.ask(daemon.first, [](JobPort&) { throw std::bad_alloc(); });
  EXPECT_TRUE(says(daemon.end(), "the daemon is out of memory, at a test"));
  EXPECT_TRUE(says(daemon.end(), "host1"));
  EXPECT_TRUE(other.errors.empty());
  EXPECT_EQ(daemon.jobs.status().size(), 1u);
}

TEST(Job, ATimerThatThrowsFailsTheJobThatMadeIt) {
  FakeDaemon daemon;
  daemon.bring_to(Stage::kJoining);
  daemon.ask(daemon.first, [&](JobPort&) { daemon.reactor.after(kSecond, [] { throw std::bad_alloc(); }); });
  daemon.advance(kSecond);
  EXPECT_TRUE(says(daemon.end(), "the daemon is out of memory, at a timer"));
}

// --- ControlInbox ---

TEST(ControlInbox, WhatIsNoMessageIsCountedAndDropped) {
  FakeDaemon daemon;
  daemon.bring_to(Stage::kRunning);
  for (const std::string& bytes : {std::string(), std::string("GET / HTTP/1.1\r\n"), std::string(4, '\xff')})
    daemon.deliver("leader", bytes);
  EXPECT_EQ(daemon.inbox.rejected(), 3u);
  EXPECT_EQ(daemon.state(), "running");
}

TEST(ControlInbox, ATruncatedMessageEndsNoJob) {
  FakeDaemon daemon;
  daemon.bring_to(Stage::kRunning);
  const std::string whole =
      wire::encode({.job = "job", .incarnation = FakeDaemon::kIncarnation}, wire::ToNode(samples::agreement()));
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) daemon.deliver("stranger", whole.substr(0, bytes));
  EXPECT_EQ(daemon.state(), "running");
  EXPECT_EQ(daemon.inbox.rejected() + daemon.inbox.unclaimed(), whole.size());
}

}  // namespace
}  // namespace deft::daemon
