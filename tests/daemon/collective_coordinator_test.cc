// Collectives on the leader: they run when all ask alike, and nodes that do not ask are named.
#include "daemon/leader/collective_coordinator.h"

#include <gtest/gtest.h>

namespace deft::daemon {
namespace {

constexpr LateNodes::Timing kTiming{.warning_us = 100, .stall_timeout_us = 1000, .gone_us = 50};

wire::CollectiveReady ask(std::uint32_t rank, std::uint64_t count, ipc::Collective kind = ipc::Collective::kAllReduce,
                          std::uint64_t capacity = 0, std::uint32_t root = 0) {
  wire::CollectiveSpec spec{.rank = rank, .collective = kind, .root = root, .count = count, .capacity = capacity};
  return {"loss", {spec}};
}

bool nobody(std::size_t) { return false; }

TEST(CollectiveCoordinator, IsReadyWhenTheLastNodeAsks) {
  CollectiveCoordinator collectives(2, 2, kTiming);
  EXPECT_FALSE(collectives.ask(1, ask(1, 5), 0));
  EXPECT_FALSE(collectives.ask(1, ask(1, 5), 0)) << "the same node again";
  const auto ready = collectives.ask(0, ask(0, 5), 0);
  ASSERT_TRUE(ready);
  EXPECT_FALSE(ready->mismatch);
  EXPECT_EQ(ready->name, "loss");
  EXPECT_EQ(ready->counts, (std::vector<std::uint64_t>{5, 5}));
  EXPECT_EQ(ready->bytes, 20U);
  EXPECT_FALSE(collectives.ask(0, ask(0, 5), 0)) << "the name may be used anew";
}

TEST(CollectiveCoordinator, NamesBothSidesOfAMismatch) {
  CollectiveCoordinator collectives(2, 2, kTiming);
  collectives.ask(0, ask(0, 6), 0);
  const auto ready = collectives.ask(1, ask(1, 5), 0);
  ASSERT_TRUE(ready && ready->mismatch);
  EXPECT_EQ(ready->mismatch->what,
            "'loss' is an allreduce of 6 float32 (sum) on rank 0 and an allreduce of 5 float32 (sum) on rank 1");
}

TEST(CollectiveCoordinator, EqualCountsWithOtherTermsAreAMismatch) {
  CollectiveCoordinator collectives(2, 2, kTiming);
  auto flat = ask(0, 6);
  flat.specs[0].terms = "shape [6]";
  auto table = ask(1, 6);
  table.specs[0].terms = "shape [2, 3]";
  collectives.ask(0, flat, 0);
  const auto ready = collectives.ask(1, table, 0);
  ASSERT_TRUE(ready && ready->mismatch);
  EXPECT_EQ(ready->mismatch->what,
            "'loss' is an allreduce of 6 float32 (sum) (shape [6]) on rank 0 and an allreduce of 6 float32 (sum) "
            "(shape [2, 3]) on rank 1");
  table.specs[0].terms = "shape [6]";
  collectives.ask(0, flat, 0);
  EXPECT_FALSE(collectives.ask(1, table, 0)->mismatch) << "the job goes on";
}

TEST(CollectiveCoordinator, ABarrierIsNoReduction) {
  CollectiveCoordinator collectives(2, 2, kTiming);
  auto barrier = ask(1, 0, ipc::Collective::kBarrier);
  barrier.specs[0].terms = "shape [0]";
  collectives.ask(0, ask(0, 6), 0);
  EXPECT_EQ(collectives.ask(1, barrier, 0)->mismatch->what,
            "'loss' is an allreduce of 6 float32 (sum) on rank 0 and a barrier (shape [0]) on rank 1");
}

TEST(CollectiveCoordinator, BlocksOfAnAllGatherMustAddUp) {
  constexpr auto kGather = ipc::Collective::kAllGather;
  CollectiveCoordinator collectives(2, 2, kTiming);
  collectives.ask(0, ask(0, 2, kGather, 7), 0);
  const auto wrong = collectives.ask(1, ask(1, 4, kGather, 7), 0);
  EXPECT_EQ(wrong->mismatch->what, "'loss': the ranks bring 6 elements where 7 are expected");
  collectives.ask(0, ask(0, 3, kGather, 7), 0);
  const auto right = collectives.ask(1, ask(1, 4, kGather, 7), 0);
  EXPECT_FALSE(right->mismatch);
  EXPECT_EQ(right->counts, (std::vector<std::uint64_t>{3, 4}));
}

TEST(CollectiveCoordinator, ARootThatIsNoRankFailsTheCollectiveAlone) {
  CollectiveCoordinator collectives(1, 2, kTiming);
  const auto ready = collectives.ask(0, ask(0, 1, ipc::Collective::kBroadcast, 0, 2), 0);
  ASSERT_TRUE(ready && ready->mismatch);
  EXPECT_EQ(ready->mismatch->what, "'loss': there is no rank 2");
}

TEST(CollectiveCoordinator, ReportsWhoOwesARequestOnceAnInterval) {
  CollectiveCoordinator collectives(2, 2, kTiming);
  collectives.ask(0, ask(0, 5), 0);
  std::vector<TimeUs> told;
  for (TimeUs now = 0; now <= 400; now += 10)
    for (const auto& owed : collectives.watch(now, nobody)) {
      EXPECT_EQ(owed.node, 1U);
      EXPECT_FALSE(owed.too_long || owed.gone);
      told.push_back(owed.age_us);
    }
  EXPECT_EQ(told, (std::vector<TimeUs>{100, 200, 300, 400}));
  EXPECT_TRUE(collectives.watch(1001, nobody).back().too_long);
}

TEST(CollectiveCoordinator, ReportsWhoOwesARequestAlsoIfItLooksLate) {
  CollectiveCoordinator collectives(2, 2, kTiming);
  collectives.ask(0, ask(0, 5), 0);
  std::vector<TimeUs> told;
  for (const TimeUs now : {0, 95, 130, 185, 190, 420, 430})
    for (const auto& owed : collectives.watch(now, nobody)) told.push_back(owed.age_us);
  EXPECT_EQ(told, (std::vector<TimeUs>{130, 420}));
}

// The daemons' clock never goes back. If it did, the age would be told as an endless one, and that ended a job.
TEST(CollectiveCoordinator, AClockThatGoesBackMakesNobodyLate) {
  CollectiveCoordinator collectives(2, 2, kTiming);
  collectives.ask(0, ask(0, 5), 1000);
  EXPECT_TRUE(collectives.watch(1050, nobody).empty());
  EXPECT_TRUE(collectives.watch(600, nobody).empty());
  ASSERT_EQ(collectives.watch(1100, nobody).size(), 1U);
  EXPECT_EQ(collectives.watch(1200, nobody).front().age_us, 200);
}

TEST(CollectiveCoordinator, WhatNeedsANodeThatEndedFailsSoon) {
  CollectiveCoordinator collectives(2, 2, kTiming);
  collectives.ask(0, ask(0, 5), 0);
  const auto gone = [](std::size_t node) { return node == 1; };
  EXPECT_TRUE(collectives.watch(50, gone).empty());
  ASSERT_EQ(collectives.watch(51, gone).size(), 1U);
  EXPECT_TRUE(collectives.watch(51, gone).front().gone);
}

}  // namespace
}  // namespace deft::daemon
