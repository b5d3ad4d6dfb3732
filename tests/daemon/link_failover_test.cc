// Links that are lost or stall, with a clock that the test moves.
#include "daemon/leader/link_failover.h"

#include <gtest/gtest.h>

namespace deft::daemon {
namespace {

constexpr LinkFailover::Timing kTiming{.timeout_us = 1'200'000, .heartbeat_us = 100'000};
const Error kCut{ErrorKind::kLost, "the cable was cut", "", {}};

std::vector<model::LinkModel> links(std::vector<std::string> names) {
  std::vector<model::LinkModel> models;
  for (auto& name : names) models.push_back({std::move(name), 200, 1000 + static_cast<double>(models.size())});
  return models;
}

std::string name_of(std::size_t node) { return "node " + std::to_string(node) + ": host" + std::to_string(node); }

wire::NodeProgress at(std::vector<wire::NodeProgress::Link> reached) { return {std::move(reached)}; }

TEST(LinkFailover, TheFastestOtherLinkStandsInFromWhereTheSlowestNodeIs) {
  LinkFailover failover(links({"gloo:eth0", "gloo:eth1", "gloo:eth2"}), 2, kTiming);
  const auto lost = failover.remove({1, 0, kCut}, true, 0);
  ASSERT_TRUE(lost && *lost);
  EXPECT_TRUE((*lost)->first);
  EXPECT_EQ((*lost)->by, 2U);
  EXPECT_EQ((*lost)->stop.link, 1U);
  EXPECT_FALSE(*failover.remove({1, 0, kCut}, true, 0)) << "another node tells the same";
  EXPECT_FALSE(failover.stopped(1, {1, 0, 17})) << "one node may still touch its gradients";
  const auto replaced = failover.stopped(0, {1, 0, 12});
  ASSERT_TRUE(replaced);
  EXPECT_EQ(replaced->epoch, 1U);
  EXPECT_EQ(replaced->by, 2U);
  EXPECT_EQ(replaced->from, 12U);
  EXPECT_EQ(failover.epochs(), (std::vector<std::uint32_t>{0, 1, 0}));
  EXPECT_FALSE(*failover.remove({1, 0, kCut}, true, 0)) << "of the epoch before: late news";
}

TEST(LinkFailover, AReplacementThatFailsIsReplacedByAnother) {
  LinkFailover failover(links({"gloo:eth0", "gloo:eth1", "gloo:eth2"}), 1 + 1, kTiming);
  ASSERT_TRUE(failover.remove({0, 0, kCut}, true, 0));
  for (const std::size_t node : {0, 1}) failover.stopped(node, {0, 0, 0});
  const auto again = failover.remove({0, 1, kCut}, true, 0);
  ASSERT_TRUE(again && *again);
  EXPECT_FALSE((*again)->first);
  EXPECT_EQ((*again)->by, 1U) << "not the one that stood in before";
}

TEST(LinkFailover, NoLinkStandsInForTheLastOneOrWhenANodeIsGone) {
  LinkFailover one(links({"gloo:eth0", "nccl"}), 2, kTiming);
  EXPECT_EQ(one.remove({0, 0, kCut}, true, 0).error().what, kCut.what) << "workers run the other one";
  LinkFailover two(links({"gloo:eth0", "gloo:eth1"}), 2, kTiming);
  EXPECT_FALSE(two.remove({0, 0, kCut}, false, 0));
  LinkFailover alone(links({"gloo:eth0", "gloo:eth1"}), 1, kTiming);
  EXPECT_FALSE(alone.remove({0, 0, kCut}, true, 0));
}

TEST(LinkFailover, CollectivesTakeTheLinksInTurnButForThoseThatAreLost) {
  LinkFailover failover(links({"gloo:eth0", "nccl", "gloo:eth1"}), 2, kTiming);
  EXPECT_EQ(failover.next_for_collective(), 0U);
  EXPECT_EQ(failover.next_for_collective(), 2U);
  ASSERT_TRUE(failover.remove({2, 0, kCut}, true, 0));
  EXPECT_EQ(failover.next_for_collective(), 0U);
  EXPECT_EQ(failover.next_for_collective(), 0U);
  EXPECT_FALSE(failover.measure(2, 1000, 10, false)) << "what is lost keeps its last estimate";
  LinkFailover workers(links({"nccl"}), 2, kTiming);
  EXPECT_EQ(workers.next_for_collective(), 0U);
}

// Both nodes report as a heartbeat does; gives the stalls of all that time.
struct Reports {
  explicit Reports(std::string second = "gloo:eth1") : failover(links({"gloo:eth0", std::move(second)}), 2, kTiming) {}
  LinkFailover failover;
  TimeUs now = 0;
  std::vector<wire::LinkFailed> report_for(TimeUs us, wire::NodeProgress::Link first, wire::NodeProgress::Link second) {
    for (const TimeUs until = now + us; now < until; now += kTiming.heartbeat_us) {
      failover.progress(0, at({{0, 9, 9}, first}), now);
      failover.progress(1, at({{0, 9, 9}, second}), now);
      const auto stalls = failover.watch(now, name_of);
      if (!stalls || !stalls->empty()) return stalls.value_or(std::vector<wire::LinkFailed>());
    }
    return {};
  }
};

TEST(LinkFailover, ALinkStallsWhenAllNodesHaveStartedWhatDoesNotEnd) {
  Reports reports;
  EXPECT_TRUE(reports.report_for(kTiming.timeout_us, {0, 5, 5}, {0, 5, 5}).empty()) << "nothing is under way";
  const TimeUs began = reports.now;
  const auto stalls = reports.report_for(kTiming.timeout_us, {0, 5, 7}, {0, 5, 7});
  ASSERT_EQ(stalls.size(), 1U);
  EXPECT_EQ(stalls[0].link, 1U);
  EXPECT_EQ(stalls[0].cause.kind, ErrorKind::kTimeout);
  EXPECT_GE(reports.now - began, kTiming.timeout_us / 4);
  EXPECT_LT(reports.now - began, kTiming.timeout_us / 2);
}

// Nodes say that they have started what their workers wait in, and no other link can stand in.
TEST(LinkFailover, AStallOfALinkThatWorkersRunEndsTheJob) {
  Reports reports("nccl");
  EXPECT_TRUE(reports.report_for(2 * kTiming.timeout_us, {0, 5, 7}, {0, 5, 5}).empty()) << "a worker is stopped";
  const TimeUs began = reports.now;
  const auto stalls = reports.report_for(kTiming.timeout_us, {0, 5, 7}, {0, 5, 7});
  ASSERT_EQ(stalls.size(), 1U);
  EXPECT_GE(reports.now - began, kTiming.timeout_us * 3 / 4);
  const auto removed = reports.failover.remove(stalls[0], true, reports.now);
  ASSERT_FALSE(removed);
  EXPECT_NE(removed.error().what.find("nothing has come through link nccl for "), std::string::npos);
}

TEST(LinkFailover, AStallNamesTheNodesThatLackWhatOthersHave) {
  const std::string all = "with operations under way on all nodes";
  for (const bool is_behind : {false, true}) {
    Reports reports("nccl");
    const auto stalls = reports.report_for(kTiming.timeout_us, {0, is_behind ? 6U : 5U, 7}, {0, 5, 7});
    ASSERT_EQ(stalls.size(), 1U);
    const std::string named = is_behind ? "; the oldest of them has ended everywhere but on node 1: host1" : "";
    EXPECT_TRUE(stalls[0].cause.what.ends_with(all + named)) << stalls[0].cause.what;
  }
}

TEST(LinkFailover, LargeLaunchesMayTakeTheirTime) {
  Reports reports;
  for (int number = 0; number < 8; ++number) reports.failover.order(1, 1 << 20);
  EXPECT_TRUE(reports.report_for(kTiming.timeout_us, {0, 5, 8}, {0, 5, 8}).empty()) << "3 MiB at 10 Mbit/s";
}

TEST(LinkFailover, ANodeThatHasNotBegunIsNoStall) {
  Reports reports;
  EXPECT_TRUE(reports.report_for(2 * kTiming.timeout_us, {0, 5, 9}, {0, 5, 5}).empty());
}

TEST(LinkFailover, ALinkThatMovesIsNoStall) {
  Reports reports;
  for (std::uint64_t number = 0; number < 12; ++number)
    EXPECT_TRUE(reports.report_for(kTiming.timeout_us / 6, {0, number, 20}, {0, number, 20}).empty());
}

TEST(LinkFailover, ANodeThatDoesNotReportIsNoStallOfTheLink) {
  Reports reports;
  ASSERT_TRUE(reports.report_for(kTiming.heartbeat_us, {0, 5, 7}, {0, 5, 7}).empty());
  for (; reports.now < 2 * kTiming.timeout_us; reports.now += kTiming.heartbeat_us) {
    reports.failover.progress(0, at({{0, 9, 9}, {0, 5, 7}}), reports.now);
    if (reports.now < 4 * kTiming.heartbeat_us) continue;
    EXPECT_TRUE(reports.failover.watch(reports.now, name_of)->empty())
        << "the node is silent, and that is found elsewhere";
  }
}

TEST(LinkFailover, ANodeThatDoesNotStopTheLinkIsTheEnd) {
  LinkFailover failover(links({"gloo:eth0", "gloo:eth1"}), 2, kTiming);
  ASSERT_TRUE(failover.remove({1, 0, kCut}, true, 0));
  failover.stopped(0, {1, 0, 0});
  EXPECT_TRUE(failover.watch(kTiming.timeout_us / 2, name_of));
  EXPECT_EQ(failover.watch(kTiming.timeout_us / 2 + 1, name_of).error().what, kCut.what);
}

TEST(LinkFailover, WhatAllHaveFinishedIsToldOnce) {
  LinkFailover failover(links({"gloo:eth0", "gloo:eth1"}), 2, kTiming);
  EXPECT_FALSE(failover.progress(0, at({{0, 12, 12}, {0, 9, 12}}), 0));
  const auto all = failover.progress(1, at({{0, 12, 12}, {0, 4, 12}}), 0);
  ASSERT_TRUE(all);
  EXPECT_EQ(all->links[1].finished_below, 4U);
  EXPECT_FALSE(failover.progress(1, at({{0, 12, 12}, {0, 4, 12}}), 0)) << "no news";
  EXPECT_FALSE(failover.progress(1, at({{0, 12, 12}, {3, 99, 99}}), 0)) << "of an epoch that is not";
}

TEST(LinkFailover, LaunchesAndCollectivesHaveOneCount) {
  LinkFailover failover(links({"gloo:eth0"}), 2, kTiming);
  EXPECT_EQ(failover.order(0, 10), 0U);
  EXPECT_EQ(failover.order(0, 10), 1U);
  EXPECT_EQ(failover.next_number(), 2U);
}

}  // namespace
}  // namespace deft::daemon
