// Who has come, whether the nodes agree, and who has left.
#include "daemon/leader/roster.h"

#include <gtest/gtest.h>

namespace deft::daemon {
namespace {

wire::Join join(std::vector<std::uint32_t> ranks, std::uint32_t world = 4) {
  wire::Join join{.host = "host" + std::to_string(ranks.front()), .deft_version = "1", .world = world};
  join.ranks = std::move(ranks);
  join.links = {{"gloo:eth0", "10.0.0.1"}};
  join.settings = {{"policy", "fifo"}};
  return join;
}

std::string refused(Roster& roster, const wire::Join& one) {
  const auto ok = roster.join("x", one);
  return ok ? "" : ok.error().what;
}

TEST(Roster, NumbersNodesByTheirSmallestRank) {
  Roster roster(4);
  ASSERT_TRUE(roster.join("b", join({3, 1})));
  EXPECT_FALSE(roster.complete());
  ASSERT_TRUE(roster.join("", join({0, 2})));
  ASSERT_TRUE(roster.complete());
  ASSERT_TRUE(roster.check_complete());
  roster.number_nodes();
  EXPECT_EQ(roster.index_of(""), 0U);
  EXPECT_EQ(roster.index_of("b"), 1U);
  EXPECT_EQ(roster.index_of("c"), std::nullopt);
  EXPECT_EQ(roster.peers(), (std::vector<Peer>{"", "b"}));
  EXPECT_EQ(roster.describe(1), "node 1: host3 (rank 3, 1)");
}

TEST(Roster, RefusesNodesThatContradictTheFirst) {
  Roster roster(4);
  ASSERT_TRUE(roster.join("", join({0})));
  EXPECT_EQ(refused(roster, join({1}, 8)), "host1 (rank 1) was started with a world size of 8, the leader with 4");
  EXPECT_EQ(refused(roster, join({0})), "two workers have rank 0: on host0 (rank 0) and on host0 (rank 0)");
  auto other = join({2});
  other.deft_version = "2";
  EXPECT_EQ(refused(roster, other), "host0 (rank 0) runs deftd 1, host2 (rank 2) runs 2");
  other = join({3});
  other.settings = {{"policy", "p3"}};
  EXPECT_EQ(refused(roster, other), "the nodes differ in 'policy': 'fifo' on host0 (rank 0), 'p3' on host3 (rank 3)");
}

TEST(Roster, ANodeThatCannotTakePartIsTheReasonOnceAllHaveCome) {
  Roster roster(2);
  ASSERT_TRUE(roster.join("", join({0}, 2)));
  auto broken = join({1}, 2);
  broken.settings.clear();
  broken.refusal = Error{ErrorKind::kUnavailable, "there is no eth7", "", {}};
  ASSERT_TRUE(roster.join("b", broken)) << "its unknown settings are no contradiction";
  EXPECT_EQ(roster.check_complete().error().what, "there is no eth7");
  EXPECT_EQ(roster.missing(1'000'000).what, "there is no eth7");
}

TEST(Roster, SaysWhoIsMissingAndWhoIsHere) {
  Roster roster(6);
  EXPECT_NE(roster.missing(5'000'000).what.find("after 5 s rank 0-5 of 6 is missing; present: nobody"),
            std::string::npos);
  ASSERT_TRUE(roster.join("", join({0, 3}, 6)));
  EXPECT_EQ(roster.missing(5'000'000).what, "after 5 s rank 1-2, 4-5 of 6 is missing; present: host0 (rank 0, 3)");
}

TEST(Roster, ANodeIsGoneWhenAllItsRanksHaveLeft) {
  Roster roster(4);
  ASSERT_TRUE(roster.join("", join({0, 1})));
  ASSERT_TRUE(roster.join("b", join({2, 3})));
  roster.leave({{2}});
  EXPECT_FALSE(roster.nodes()[1].gone());
  roster.leave({{2}});
  EXPECT_FALSE(roster.nodes()[1].gone()) << "one rank that leaves twice is one rank";
  roster.leave({{3}});
  EXPECT_TRUE(roster.nodes()[1].gone());
  EXPECT_FALSE(roster.nodes()[0].gone());
}

TEST(Roster, TheJobRunsWhenAllHaveTheirLinksOpenAndIsAsFastAsTheSlowest) {
  Roster roster(2);
  ASSERT_TRUE(roster.join("", join({0}, 2)));
  ASSERT_TRUE(roster.join("b", join({1}, 2)));
  EXPECT_FALSE(roster.open_links(1));
  EXPECT_FALSE(roster.open_links(1));
  EXPECT_TRUE(roster.open_links(0));
  EXPECT_EQ(roster.report_step(0, 50), 50);
  EXPECT_EQ(roster.report_step(1, 70), 70);
  EXPECT_EQ(roster.report_step(0, 60), 70);
}

}  // namespace
}  // namespace deft::daemon
