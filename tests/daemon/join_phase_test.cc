// A node's way into its job, and the deadlines of its start. Time is the test's own.
#include "daemon/node/join_phase.h"

#include <gtest/gtest.h>

#include "tests/daemon/fake_daemon.h"

namespace deft::daemon {
namespace {

using Stage = FakeDaemon::Stage;
constexpr TimeUs kSecond = 1'000'000;

TEST(JoinPhase, JoinIsRepeatedUntilTheLeaderAnswers) {
  FakeDaemon daemon;
  ASSERT_TRUE(daemon.attach(daemon.first));
  daemon.advance(kSecond);
  EXPECT_TRUE(daemon.sent<wire::Join>().empty()) << "a worker is missing";
  ASSERT_TRUE(daemon.attach(daemon.second));
  ASSERT_EQ(daemon.sent<wire::Join>().size(), 1u);
  EXPECT_EQ(daemon.sent<wire::Join>()[0].ranks, (std::vector<std::uint32_t>{2, 3}));
  daemon.advance(kSecond);
  EXPECT_EQ(daemon.sent<wire::Join>().size(), 6u) << "every 200 ms";
  daemon.tell(samples::messages_to_node().front());
  daemon.advance(kSecond);
  EXPECT_EQ(daemon.sent<wire::Join>().size(), 6u);
}

TEST(JoinPhase, TheDeadlineNamesTheWorkerThatDidNotCome) {
  FakeDaemon daemon;
  ASSERT_TRUE(daemon.attach(daemon.first));
  daemon.advance(9 * kSecond - 50'000);
  EXPECT_EQ(daemon.state(), "attaching");
  daemon.advance(50'000);
  EXPECT_TRUE(says(daemon.end(), "the worker with local rank 1 of 2 on host1 did not come within 9 s"));
}

TEST(JoinPhase, TheDeadlineNamesALeaderThatNeverAnswered) {
  FakeDaemon daemon;
  daemon.bring_to(Stage::kJoining);
  daemon.advance(9 * kSecond - 50'000);
  EXPECT_EQ(daemon.state(), "joining");
  daemon.advance(50'000);
  EXPECT_TRUE(says(daemon.end(), "the leader at 10.0.0.1:29610 did not answer within 9 s"));
}

TEST(JoinPhase, TheDeadlineTellsThatTheLeaderMayHaveAnotherKey) {
  FakeDaemon daemon;
  daemon.control.locked_out = true;
  daemon.bring_to(Stage::kJoining);
  daemon.advance(9 * kSecond);
  EXPECT_TRUE(says(daemon.end(), "did not answer within 9 s, because it ends connections before a message can pass"));
}

// Without an address the leader counts as another machine, and links over loopback are refused for that alone.
TEST(JoinPhase, TheDeadlineTellsOfALeaderWithoutAnAddressRatherThanOfRefusedLinks) {
  for (const bool nowhere : {false, true}) {
    FakeDaemon daemon;
    daemon.no_links = Error{ErrorKind::kUnavailable, "lo is the loopback", "", {}};
    daemon.control.nowhere = nowhere;
    daemon.bring_to(Stage::kJoining);
    daemon.advance(9 * kSecond);
    EXPECT_TRUE(says(daemon.end(), nowhere ? "finds no IPv4 address of that name" : "lo is the loopback"));
  }
}

TEST(JoinPhase, ALeaderThatLivesMaySayFirstWhoIsMissing) {
  FakeDaemon daemon;
  daemon.bring_to(Stage::kJoining);
  advance_with_heartbeats(daemon, 9 * kSecond - kSecond / 2);
  EXPECT_TRUE(daemon.sent<wire::Failure>().empty());
  advance_with_heartbeats(daemon, kSecond / 2);
  EXPECT_EQ(daemon.sent<wire::Failure>().size(), 1u) << "the leader is to decide at the first deadline of all nodes";
  EXPECT_EQ(daemon.state(), "joining") << "its decision is on its way";
  daemon.tell(wire::Failure{{ErrorKind::kTimeout, "ranks 0-1 did not come", "", {}}, false});
  EXPECT_TRUE(says(daemon.end(), "ranks 0-1 did not come"));
}

TEST(JoinPhase, ALeaderThatWasHeardAndDecidesNothingIsNotWaitedForForEver) {
  FakeDaemon daemon;
  daemon.bring_to(Stage::kJoining);
  advance_with_heartbeats(daemon, 9 * kSecond + 4 * kSecond);
  EXPECT_EQ(daemon.state(), "joining");
  advance_with_heartbeats(daemon, kSecond);
  EXPECT_TRUE(says(daemon.end(), "did not answer"));
}

TEST(JoinPhase, ALeaderThatIsLostWhileOthersAreMissingIsNamedLongBeforeTheDeadline) {
  FakeDaemon daemon;
  daemon.bring_to(Stage::kJoining);
  daemon.tell(wire::Heartbeat{.reply = true});
  daemon.advance(4 * kSecond);
  EXPECT_EQ(daemon.state(), "joining");
  daemon.advance(kSecond);
  EXPECT_TRUE(says(daemon.end(), "the leader at 10.0.0.1:29610 was lost: no sign of life for"));
  EXPECT_TRUE(says(daemon.end(), "while other nodes were missing"));
}

TEST(JoinPhase, LinksOpenWellWithinTheirTimeout) {
  EXPECT_EQ(time_to_open_us(0, 12 * kSecond), 9 * kSecond) << "the rest is for finding out who is to blame";
  EXPECT_EQ(time_to_open_us(1, 12 * kSecond), 4 * kSecond) << "a replacement is no part of the start";
}

TEST(JoinPhase, TheDeadlineOfALeaderRunsFromTheFirstWorkerOfItsNode) {
  FakeDaemon daemon(true);
  ASSERT_TRUE(daemon.attach(daemon.first));
  daemon.advance(5 * kSecond);
  ASSERT_TRUE(daemon.attach(daemon.second));
  daemon.advance(4 * kSecond - 50'000);
  EXPECT_EQ(daemon.state(), "joining");
  daemon.advance(50'000);
  EXPECT_TRUE(says(daemon.end(), "rank 2-3 of 4 is missing"));
}

TEST(JoinPhase, ANodeWithoutLinksSaysSoInItsJoinAndInItsOwnError) {
  FakeDaemon daemon;
  daemon.no_links = Error{ErrorKind::kInvalid, "no NIC is called eth7", "", {}};
  daemon.bring_to(Stage::kJoining);
  ASSERT_EQ(daemon.sent<wire::Join>().size(), 1u);
  ASSERT_TRUE(daemon.sent<wire::Join>()[0].refusal);
  daemon.advance(9 * kSecond);
  EXPECT_TRUE(says(daemon.end(), "no NIC is called eth7"));
}

TEST(JoinPhase, TheDeadlineEndsWithTheJobsBegin) {
  FakeDaemon daemon;
  daemon.bring_to(Stage::kRunning);
  advance_with_heartbeats(daemon, 30 * kSecond);
  EXPECT_EQ(daemon.state(), "running") << daemon.end();
}

}  // namespace
}  // namespace deft::daemon
