// The workers of a job on a node: who is taken, who is refused, who has left; and the states of a job.
#include "daemon/node/membership.h"

#include <gtest/gtest.h>

#include "tests/daemon/fake_worker.h"

namespace deft::daemon {
namespace {

JobSettings settings(const std::string& policy = "fifo") {
  return job_settings(Config(), "policy=" + policy + "\n").value();
}

struct TwoOfFour : testing::Test {
  Membership members{{"job", 7, 4, 2, "10.0.0.1:29610", ""}, settings()};
  FakeWorker first{2, 4, 0, 2}, second{3, 4, 1, 2};

  TwoOfFour() {
    for (auto* worker : {&first, &second}) worker->attached.leader = "10.0.0.1:29610";
  }

  // Why the second worker cannot be there beside the first one.
  std::string refusal() {
    EXPECT_TRUE(members.attach(first));
    const auto result = members.attach(second);
    EXPECT_FALSE(result);
    return result ? "" : result.error().what;
  }
};

TEST_F(TwoOfFour, IsCompleteWhenAllLocalWorkersAreHere) {
  EXPECT_EQ(members.missing(), "0, 1");
  ASSERT_TRUE(members.attach(second));
  EXPECT_FALSE(members.complete());
  EXPECT_EQ(members.missing(), "0");
  ASSERT_TRUE(members.attach(first));
  EXPECT_TRUE(members.complete());
  EXPECT_EQ(members.ranks(), (std::vector<std::uint32_t>{2, 3}));
  EXPECT_TRUE(members.has_rank(3));
  EXPECT_FALSE(members.has_rank(0));
  EXPECT_EQ(members.index_of(second), 1u);
}

TEST_F(TwoOfFour, AnotherUsersWorkerIsRefused) {
  first.identity.uid = 8;
  const auto result = members.admit(first, settings());
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().what.find("belongs to another user"), std::string::npos);
}

TEST_F(TwoOfFour, AWorkerWithOtherSettingsIsRefusedByTheirName) {
  const auto result = members.admit(first, settings("p3"));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().what, "rank 2 sets 'policy' to 'p3', the others on this node to 'fifo'");
  EXPECT_TRUE(members.admit(first, settings()));
}

TEST_F(TwoOfFour, NobodyIsAdmittedToAJobThatRuns) {
  ASSERT_TRUE(members.attach(first));
  ASSERT_TRUE(members.advance(JobState::kJoining));
  const auto result = members.admit(second, settings());
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().what.find("is running on this daemon with rank 2 (pid 1002)"), std::string::npos);
}

TEST_F(TwoOfFour, WorkersThatContradictEachOtherAreNamed) {
  second.attached.world = 5;
  EXPECT_EQ(refusal(), "rank 3 has a world size of 5, the others on this node have 4");
}

TEST_F(TwoOfFour, OtherContradictionsAreNamedToo) {
  second.attached.local_size = 3;
  EXPECT_EQ(refusal(), "rank 3 expects 3 workers on this node, the others expect 2");
  second = FakeWorker{3, 4, 1, 2};
  members.detach(first);
  EXPECT_EQ(refusal(), "rank 3 has the leader '', the others on this node have '10.0.0.1:29610'");
  second.attached.leader = first.attached.leader;
  second.attached.rank = 2;
  members.detach(first);
  EXPECT_EQ(refusal(), "two workers have rank 2 on this node: pid 1002 and another");
  second.attached.rank = 3;
  second.attached.local_rank = 0;
  members.detach(first);
  EXPECT_EQ(refusal(), "ranks 2 and 3 both have the local rank 0");
}

TEST_F(TwoOfFour, AStrangersEndIsNobodysEnd) {
  ASSERT_TRUE(members.attach(first));
  FakeWorker stranger(2, 4, 0, 2);
  EXPECT_FALSE(members.detach(stranger));
  EXPECT_EQ(members.detach(first), 0u);
  EXPECT_FALSE(members.detach(first)) << "it is gone already";
}

TEST_F(TwoOfFour, RanksThatEndedCleanlyHaveLeft) {
  ASSERT_TRUE(members.attach(first) && members.attach(second));
  members.detach(first);
  const std::uint32_t ranks[] = {2, 0};
  members.mark_left(ranks);
  EXPECT_TRUE(members.workers()[0].left);
  EXPECT_TRUE(members.has_left(0)) << "a rank of another node";
  EXPECT_FALSE(members.all_left());
  members.detach(second);
  const std::uint32_t last[] = {3};
  members.mark_left(last);
  EXPECT_TRUE(members.all_left());
}

TEST_F(TwoOfFour, RecordsGoToTheWorkersThatAreHere) {
  ASSERT_TRUE(members.attach(first) && members.attach(second));
  members.complete_all({});
  members.detach(second);
  members.complete_all({});
  EXPECT_EQ(first.records.size(), 2u);
  EXPECT_EQ(second.records.size(), 1u);
}

TEST(JobStates, FollowTheTableAndEndOnce) {
  constexpr JobState kAll[] = {JobState::kAttaching, JobState::kJoining, JobState::kConnecting, JobState::kRunning,
                               JobState::kEnded};
  for (const JobState from : kAll) {
    for (const JobState to : kAll) {
      Membership members({"job", 7, 1, 1, "", ""}, settings());
      for (const JobState step : kAll)
        if (step != JobState::kAttaching && step <= from && from != JobState::kEnded) members.advance(step);
      if (from == JobState::kEnded) members.advance(JobState::kEnded);
      ASSERT_EQ(members.state(), from);
      const bool next = static_cast<int>(to) == static_cast<int>(from) + 1;
      const bool ends = to == JobState::kEnded && from != JobState::kEnded;
      EXPECT_EQ(members.advance(to), next || ends) << to_string(from) << " -> " << to_string(to);
      EXPECT_EQ(members.state(), next || ends ? to : from);
    }
  }
}

}  // namespace
}  // namespace deft::daemon
