// Who is late: warned of in time, named in the error when it is too late, and at once when it can never come.
#include "daemon/node/stall_watchdog.h"

#include <gtest/gtest.h>

#include <set>

#include "daemon/leader/leader.h"
#include "tests/daemon/fake_node.h"

namespace deft::daemon {
namespace {

constexpr TimeUs kBegin = 100'000'000;  // when something was first owed
constexpr TimeUs kGrace = 750'000;      // of fake_settings()
constexpr TimeUs kWarning = 1'000'000;
constexpr TimeUs kTooLate = 10'000'000;

struct Watchdog : testing::Test, FakeNode {
  GradientGroups groups{members, leader, nullptr, 2, [](const Error& error) { FAIL() << error.message(); }};
  CollectiveTable collectives{members, leader, view};
  StallWatchdog watchdog{members, view, groups, collectives, leader};

  void agree() {
    for (const std::size_t worker : {0, 1}) ASSERT_TRUE(groups.declare(worker, declaration({64, 32})));
    wire::DeclareAgreed agreed;
    agreed.buckets = {{0, 256}, {256, 128}};
    agreed.hash = group_hash(leader.all<wire::Declare>().back().tensors, agreed);
    ASSERT_TRUE(groups.agree(agreed));
    leader.sent.clear();
  }
  void hand_in(std::size_t worker, std::uint32_t tensor) {
    ASSERT_TRUE(groups.ready(worker, {.group = 0, .first_tensor = tensor, .tensors = 1}, kBegin));
  }
  void ask(std::size_t worker) {
    CollectiveRequest request;
    request.name = "loss";
    request.call.collective = ipc::Collective::kBarrier;
    ASSERT_TRUE(collectives.request(worker, request, kBegin));
  }
  std::string error_at(TimeUs now_us) {
    const auto ok = watchdog.check(now_us);
    return ok ? "" : ok.error().what;
  }
};

TEST_F(Watchdog, SaysNothingWhileNobodyIsLate) {
  agree();
  hand_in(0, 0);
  EXPECT_EQ(error_at(kBegin + kWarning - 1), "");
  EXPECT_TRUE(leader.sent.empty());
}

TEST_F(Watchdog, ReportsWhoOwesATensorAndAgainAtEachInterval) {
  agree();
  hand_in(0, 0);
  EXPECT_EQ(error_at(kBegin + kWarning), "");
  EXPECT_EQ(error_at(kBegin + kWarning + 1000), "");
  auto told = leader.all<wire::Stalled>();
  ASSERT_EQ(told.size(), 1u) << "not with every heartbeat";
  EXPECT_EQ(told[0].rank, 1u);
  EXPECT_EQ(told[0].tensor, "t0");
  EXPECT_EQ(told[0].age_ms, 1000u);
  EXPECT_EQ(error_at(kBegin + 2 * kWarning), "");
  EXPECT_EQ(leader.all<wire::Stalled>().size(), 2u);
}

TEST_F(Watchdog, AWorkerThatOwesForTooLongEndsTheJob) {
  agree();
  hand_in(0, 0);
  EXPECT_EQ(error_at(kBegin + kTooLate + 1'000'000), "rank 1 (pid 1001) has not handed in 't0' of step 0 for 11 s");
}

TEST_F(Watchdog, AWorkerThatLeftWhileItOwesEndsTheJobAfterTheGrace) {
  agree();
  hand_in(0, 0);
  leave(second);
  EXPECT_EQ(error_at(kBegin + kGrace - 1), "");
  EXPECT_EQ(error_at(kBegin + kGrace),
            "rank 1 (pid 1001) has ended without handing in 't0' of step 0, for which others wait");
}

TEST_F(Watchdog, WorkersThatHaveAllLeftOweWhatTheLeaderOrdered) {
  agree();
  leave(first), leave(second);
  wire::Launch launch;
  launch.bytes = 256;
  ASSERT_TRUE(groups.order(launch, 0, kBegin));
  EXPECT_TRUE(watchdog.check_left(kBegin + kGrace - 1));
  const auto owed = watchdog.check_left(kBegin + kGrace);
  ASSERT_FALSE(owed);
  EXPECT_EQ(owed.error().what, "rank 0 (pid 1000) has ended without handing in 't0' of step 0, for which others wait");
}

TEST_F(Watchdog, WorkersThatHaveAllLeftOweNothingThatNobodyWaitsFor) {
  agree();
  hand_in(0, 0);
  ask(0);
  leave(first), leave(second);
  EXPECT_TRUE(watchdog.check_left(kBegin + kTooLate));
}

TEST_F(Watchdog, AsksTheLeaderForWhatIsReadyAndNotOrdered) {
  agree();
  for (const std::size_t worker : {0, 1}) hand_in(worker, 1);
  EXPECT_EQ(error_at(kBegin + kWarning - 1), "");
  EXPECT_TRUE(leader.sent.empty());
  EXPECT_EQ(error_at(kBegin + kWarning), "");
  const auto waiting = leader.all<wire::Waiting>();
  ASSERT_EQ(waiting.size(), 1u);
  EXPECT_EQ(waiting[0].bucket, 1u);
}

TEST_F(Watchdog, WhatIsReadyAndCanNeverBeOrderedEndsTheJob) {
  agree();
  for (const std::size_t worker : {0, 1}) hand_in(worker, 1);
  const std::uint32_t ranks[] = {1};  // of the leader's node
  members.mark_left(ranks);
  EXPECT_EQ(error_at(kBegin + kGrace), "rank 1 has ended without handing in 't1' of step 0, for which others wait");
}

TEST_F(Watchdog, AnotherNodesQuestionNamesTheLocalWorkerThatOwes) {
  agree();
  hand_in(0, 0);
  ASSERT_TRUE(watchdog.answer({0, 0, 0}, kBegin));
  ASSERT_EQ(leader.all<wire::Stalled>().size(), 1u);
  EXPECT_EQ(leader.all<wire::Stalled>()[0].rank, 1u);
  EXPECT_TRUE(watchdog.answer({1, 0, 0}, kBegin)) << "no such group";
  EXPECT_TRUE(watchdog.answer({0, 2, 0}, kBegin)) << "no such bucket";
  leave(second);
  EXPECT_FALSE(watchdog.answer({0, 0, 0}, kBegin));
}

TEST_F(Watchdog, AWorkerThatOwesWhatAnotherNodeWaitsForEndsTheJobWhenItIsTooLong) {
  agree();  // nobody here has handed in anything: only the other node knows that somebody waits
  const auto ask_at = [&](TimeUs now_us, std::uint64_t generation = 0) {
    const auto ok = watchdog.answer({0, 0, generation}, now_us);
    return ok ? "" : ok.error().what;
  };
  const TimeUs end = kBegin + kTooLate - kWarning;  // the other node had waited for an interval before it asked
  for (TimeUs now = kBegin; now <= end; now += kWarning / 2) EXPECT_EQ(ask_at(now), "");
  EXPECT_EQ(leader.all<wire::Stalled>().back().age_ms, 10'000U) << "the age grows";
  EXPECT_EQ(ask_at(end + 1'000'000, 1), "") << "another step was waited for just now";
  EXPECT_EQ(ask_at(end + kTooLate + 1'000'001, 1), "rank 0 (pid 1000) has not handed in 't0' of step 1 for 11 s");
}

TEST_F(Watchdog, AQuestionForAReadyBucketFindsTheOneBehindItThatItMayBeMergedWith) {
  agree();
  for (const std::size_t worker : {0, 1}) hand_in(worker, 0);
  hand_in(1, 1);
  ASSERT_TRUE(watchdog.answer({0, 0, 0}, kBegin));
  const auto told = leader.all<wire::Stalled>();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].rank, 0u);
  EXPECT_EQ(told[0].tensor, "t1");
}

TEST_F(Watchdog, ADeclarationThatCanNeverBeCompleteEndsTheJob) {
  ASSERT_TRUE(groups.declare(0, declaration({64})));
  EXPECT_EQ(error_at(kBegin), "");
  leave(second);
  EXPECT_EQ(error_at(kBegin), "rank 1 has ended without declaring group 0, which others did");
}

TEST_F(Watchdog, AWorkerThatDoesNotDeclareIsReportedAndEndsTheJobLater) {
  ASSERT_TRUE(groups.declare(0, declaration({64})));
  EXPECT_EQ(error_at(kBegin), "");
  EXPECT_EQ(error_at(kBegin + kWarning - 1), "");
  EXPECT_TRUE(leader.sent.empty());
  EXPECT_EQ(error_at(kBegin + kWarning), "");
  ASSERT_EQ(leader.all<wire::Stalled>().size(), 1u);
  EXPECT_EQ(leader.all<wire::Stalled>()[0].rank, 1u);
  EXPECT_EQ(error_at(kBegin + kTooLate + 1'000'000),
            "rank 1 (pid 1001) has not declared group 0 for 11 s, which others did");
}

TEST_F(Watchdog, ADeclarationThatAnotherNodesRankLeftBehindEndsTheJob) {
  ASSERT_TRUE(groups.declare(0, declaration({64})));
  const std::uint32_t ranks[] = {3};
  members.mark_left(ranks);
  EXPECT_EQ(error_at(kBegin), "rank 3 has ended, and group 0 needs it");
}

TEST_F(Watchdog, ACollectiveThatSomeDoNotAskForIsReportedAndEndsTheJobLater) {
  ask(0);
  EXPECT_EQ(error_at(kBegin + kWarning), "");
  ASSERT_EQ(leader.all<wire::Stalled>().size(), 1u);
  EXPECT_EQ(leader.all<wire::Stalled>()[0].tensor, "loss");
  EXPECT_EQ(error_at(kBegin + kTooLate + 1'000'000), "rank 1 has not asked for 'loss' for 11 s");
  leave(second);
  EXPECT_EQ(error_at(kBegin + kGrace), "rank 1 has ended, and 'loss' needs it");
}

TEST_F(Watchdog, ACollectiveThatAllWorkersOfTheLeadersNodeLeftBehindEndsTheJobAfterTheGrace) {
  for (const std::size_t worker : {0, 1}) ask(worker);
  const std::uint32_t zero[] = {0};
  members.mark_left(zero);
  EXPECT_EQ(error_at(kBegin + kGrace), "") << "the leader's daemon still serves rank 1";
  const std::uint32_t one[] = {1};
  members.mark_left(one);
  EXPECT_EQ(error_at(kBegin + kGrace - 1), "");
  EXPECT_EQ(error_at(kBegin + kGrace), "rank 0 has ended, and 'loss' needs it");
}

std::set<std::uint32_t> ranks_of(const std::vector<wire::Stalled>& told) {
  std::set<std::uint32_t> ranks;
  for (const auto& one : told) ranks.insert(one.rank);
  return ranks;
}

TEST_F(Watchdog, ALeaderThatFindsThisNodeLateHearsOfAllWorkersIfNoneHasCome) {
  ASSERT_TRUE(watchdog.answer(wire::Late{"loss", 0, 1200}));
  EXPECT_EQ(ranks_of(leader.all<wire::Stalled>()), (std::set<std::uint32_t>{0, 1}));
  EXPECT_EQ(leader.all<wire::Stalled>()[0].age_ms, 1200u);
  EXPECT_EQ(leader.all<wire::Stalled>()[0].duty, wire::Duty::kCollective);
  leader.sent.clear();
  ASSERT_TRUE(watchdog.answer(wire::Late{"", 0, 1200}));
  EXPECT_EQ(ranks_of(leader.all<wire::Stalled>()), (std::set<std::uint32_t>{0, 1}));
  EXPECT_EQ(leader.all<wire::Stalled>()[0].duty, wire::Duty::kDeclaration);
  leader.sent.clear();
  leave(first);
  const auto gone = watchdog.answer(wire::Late{"", 0, 1200});
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().what, "rank 0 has ended, and 'the gradients of group 0' needs it");
}

TEST_F(Watchdog, ALeaderThatFindsThisNodeLateHearsNothingNewIfSomeHaveCome) {
  ask(0);
  ASSERT_TRUE(groups.declare(1, declaration({64})));
  for (const wire::Late& late : {wire::Late{"loss", 0, 1200}, wire::Late{"", 0, 1200}})
    ASSERT_TRUE(watchdog.answer(late));
  EXPECT_TRUE(leader.all<wire::Stalled>().empty()) << "check() reports the others";
}

TEST_F(Watchdog, NamesThatAreNumbersAreNoPartOfTheRank) {
  watchdog.note({1, "12", 0, 1200, wire::Duty::kCollective}, kBegin);
  watchdog.note({11, "2", 0, 1200, wire::Duty::kCollective}, kBegin);
  EXPECT_EQ(watchdog.status().size(), 2u);
}

TEST_F(Watchdog, TheStatusShowsStallsOfTheLastMoments) {
  watchdog.note({3, "t9", 4, 1200}, kBegin);
  const auto status = watchdog.status();
  ASSERT_EQ(status.size(), 1u);
  EXPECT_EQ(status[0]["owes"], "t9");
  EXPECT_EQ(error_at(kBegin + 2 * kWarning + 1), "");
  EXPECT_TRUE(watchdog.status().empty());
}

TEST_F(Watchdog, WhoHasReleasedWhatAnotherOneWaitsForIsNamedAtOnce) {
  agree();
  for (const std::uint32_t tensor : {0, 1}) hand_in(0, tensor);
  ASSERT_TRUE(groups.release(1, {.group = 0}));
  EXPECT_EQ(error_at(kBegin + kGrace - 1), "");
  const std::string error = error_at(kBegin + kGrace);
  EXPECT_NE(error.find("rank 1"), std::string::npos) << error;
  EXPECT_NE(error.find("has released 'model' without handing in 't0' of step 0"), std::string::npos) << error;
}

TEST_F(Watchdog, AReleaseInTheMiddleOfABackwardIsNoErrorIfNobodyWaits) {
  agree();
  for (const std::size_t worker : {0, 1}) hand_in(worker, 0);
  hand_in(0, 1);
  ASSERT_TRUE(groups.release(0, {.group = 0}));
  ASSERT_TRUE(groups.release(1, {.group = 0}));
  leader.sent.clear();
  EXPECT_EQ(error_at(kBegin + 2 * kTooLate), "") << "all have released it";
  EXPECT_TRUE(leader.sent.empty()) << "no group of another node's is asked for";
}

TEST_F(Watchdog, WhatTheLeaderHasOrderedIsOwedAfterTheReleaseToo) {
  agree();
  ASSERT_TRUE(groups.order({.bucket = 0, .bytes = 256}, 0, kBegin));
  for (const std::size_t worker : {0, 1}) ASSERT_TRUE(groups.release(worker, {.group = 0}));
  EXPECT_NE(error_at(kBegin + kGrace).find("has released 'model' without handing in"), std::string::npos);
}

}  // namespace
}  // namespace deft::daemon
