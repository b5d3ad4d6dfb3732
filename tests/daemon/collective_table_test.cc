// Collectives on a node: gathered from its workers, started by the leader only as they were asked for, answered once.
#include "daemon/node/collective_table.h"

#include <gtest/gtest.h>

#include "tests/daemon/fake_node.h"

namespace deft::daemon {
namespace {

struct Collectives : testing::Test, FakeNode {
  CollectiveTable table{members, leader, view};
  std::shared_ptr<shm::Segment> buffer =
      std::make_shared<shm::Segment>(shm::Segment::create("test-buffer", 4096).value());

  CollectiveRequest asks(ipc::Collective collective, std::uint64_t count, std::uint64_t operation,
                         std::uint64_t capacity = 0, std::uint32_t root = 0) {
    CollectiveRequest request;
    request.name = "loss";
    request.staging_buffer = collective == ipc::Collective::kBarrier ? nullptr : buffer;
    request.call.operation = operation;
    request.call.collective = collective;
    request.call.count = count;
    request.call.capacity = capacity;
    request.call.dtype = static_cast<std::uint32_t>(model::DType::kFloat32);
    request.call.reduce_op = static_cast<std::uint32_t>(model::ReduceOp::kSum);
    request.call.root = root;
    return request;
  }
  void both_ask(ipc::Collective collective, std::uint64_t count, std::uint64_t capacity = 0, std::uint32_t root = 0) {
    ASSERT_TRUE(table.request(0, asks(collective, count, 11, capacity, root), 100));
    ASSERT_TRUE(table.request(1, asks(collective, count, 12, capacity, root), 100));
  }
  static wire::CollectiveStart start(std::vector<std::uint64_t> counts) { return {3, 1, "loss", std::move(counts)}; }
};

TEST_F(Collectives, TheLeaderHearsOfOneWhenAllLocalWorkersHaveAsked) {
  ASSERT_TRUE(table.request(1, asks(ipc::Collective::kAllReduce, 5, 12), 100));
  EXPECT_TRUE(leader.sent.empty());
  ASSERT_TRUE(table.request(0, asks(ipc::Collective::kAllReduce, 5, 11), 100));
  const auto ready = leader.all<wire::CollectiveReady>();
  ASSERT_EQ(ready.size(), 1u);
  ASSERT_EQ(ready[0].specs.size(), 2u);
  EXPECT_EQ(ready[0].specs[1].rank, 1u);
  EXPECT_EQ(ready[0].specs[1].count, 5u);
}

TEST_F(Collectives, WhatACollectiveDoesNotUseIsNotTold) {
  both_ask(ipc::Collective::kAllReduce, 5, 99);
  EXPECT_EQ(leader.all<wire::CollectiveReady>()[0].specs[0].capacity, 0u);
  table.fail({"loss", {}});
  both_ask(ipc::Collective::kAllGather, 5, 99);
  EXPECT_EQ(leader.all<wire::CollectiveReady>()[1].specs[0].capacity, 99u);
}

TEST_F(Collectives, ANameThatIsStillUnderWayIsRefusedToThatCallerAlone) {
  ASSERT_TRUE(table.request(0, asks(ipc::Collective::kAllReduce, 5, 11), 100));
  const auto again = table.request(0, asks(ipc::Collective::kAllReduce, 5, 13), 100);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().kind, ErrorKind::kInvalid);
  EXPECT_TRUE(table.request(1, asks(ipc::Collective::kAllReduce, 5, 12), 100));
}

TEST_F(Collectives, EachWorkerIsAnsweredByItsOwnNumberAndTheNameIsFree) {
  both_ask(ipc::Collective::kAllReduce, 5);
  const auto task = table.start(start({5, 5, 5, 5}));
  ASSERT_TRUE(task);
  EXPECT_EQ(task->number, 3u);
  EXPECT_TRUE(table.can_start(*task));
  EXPECT_EQ(table.transfer_of(*task).buffers.size(), 2u);
  EXPECT_EQ(table.transfer_of(*task).count, 5u);
  ASSERT_TRUE(table.finish(*task, {}));
  ASSERT_EQ(first.records.size(), 1u);
  EXPECT_EQ(first.records[0].as<shm::OperationDoneRecord>().operation, 11u);
  EXPECT_EQ(second.records[0].as<shm::OperationDoneRecord>().operation, 12u);
  EXPECT_FALSE(table.finish(*task, {})) << "done twice";
  EXPECT_TRUE(table.request(0, asks(ipc::Collective::kAllReduce, 5, 14), 200));
}

TEST_F(Collectives, AStartThatNobodyAskedForIsAViolation) {
  const auto unknown = table.start(start({5, 5, 5, 5}));
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().kind, ErrorKind::kViolation);
  ASSERT_TRUE(table.request(0, asks(ipc::Collective::kAllReduce, 5, 11), 100));
  EXPECT_FALSE(table.start(start({5, 5, 5, 5}))) << "rank 1 has not asked";
  ASSERT_TRUE(table.request(1, asks(ipc::Collective::kAllReduce, 5, 12), 100));
  EXPECT_TRUE(table.start(start({5, 5, 5, 5})));
  EXPECT_FALSE(table.start(start({5, 5, 5, 5}))) << "it runs";
}

TEST_F(Collectives, AStartWithOtherCountsIsAViolation) {
  both_ask(ipc::Collective::kAllReduce, 5);
  EXPECT_FALSE(table.start(start({5, 5, 5}))) << "one rank has none";
  EXPECT_FALSE(table.start(start({5, 6, 5, 5}))) << "rank 1 brought 5";
  EXPECT_FALSE(table.start(start({std::uint64_t{1} << 40, 5, 5, 5})));
  EXPECT_TRUE(table.start(start({5, 5, 5, 5})));
}

TEST_F(Collectives, AnAllGatherThatDoesNotFitItsBufferIsAViolation) {
  both_ask(ipc::Collective::kAllGather, 2, 8);
  EXPECT_FALSE(table.start(start({2, 2, 2, 3}))) << "9 elements, and room for 8";
  EXPECT_FALSE(table.start(start({2, 2, ~std::uint64_t{0}, 5}))) << "a sum that overflows to 8";
  EXPECT_TRUE(table.start(start({2, 2, 3, 1})));
}

TEST_F(Collectives, ABroadcastFromARankThatDoesNotExistIsAViolation) {
  both_ask(ipc::Collective::kBroadcast, 5, 0, 4);
  EXPECT_FALSE(table.start(start({5, 5, 5, 5})));
}

TEST_F(Collectives, ABroadcastKnowsItsRootsNodeAndPlace) {
  both_ask(ipc::Collective::kBroadcast, 5, 0, 1);
  const auto local = table.transfer_of(table.start(start({5, 5, 5, 5})).value());
  EXPECT_EQ(local.root_node, 0u);
  EXPECT_EQ(local.root_local, 1u);
  table.fail({"loss", {}});
  both_ask(ipc::Collective::kBroadcast, 5, 0, 2);
  EXPECT_EQ(table.transfer_of(table.start(start({5, 5, 5, 5})).value()).root_node, 1u);
}

TEST_F(Collectives, AnAllGatherHasABlockOfEachNodeAndOfEachLocalWorker) {
  both_ask(ipc::Collective::kAllGather, 2, 8);
  const auto task = table.start(start({2, 2, 3, 1})).value();
  const Transfer transfer = table.transfer_of(task);
  EXPECT_EQ(transfer.node_bytes, (std::vector<std::size_t>{16, 16}));
  EXPECT_EQ(transfer.local_bytes, (std::vector<std::size_t>{8, 8}));
}

TEST_F(Collectives, OnALinkOfTheWorkersAnAllGatherIsABroadcastOfEachBlock) {
  both_ask(ipc::Collective::kAllGather, 2, 8);
  const auto records = table.records_of(table.start(start({2, 2, 0, 4})).value());
  ASSERT_EQ(records.size(), 2u);
  ASSERT_EQ(records[0].size(), 3u) << "rank 2 brings nothing";
  const auto last = std::get<shm::StartCollectiveRecord>(records[0][2]);
  EXPECT_EQ(last.collective, static_cast<std::uint32_t>(ipc::Collective::kBroadcast));
  EXPECT_EQ(last.root, 3u);
  EXPECT_EQ(last.offset_bytes, 16u);
  EXPECT_EQ(last.bytes, 16u);
}

TEST_F(Collectives, ABarrierMovesNothing) {
  both_ask(ipc::Collective::kBarrier, 0);
  const auto task = table.start(start({0, 0, 0, 0})).value();
  EXPECT_TRUE(table.transfer_of(task).buffers.empty());
  EXPECT_TRUE(table.records_of(task)[0].empty());
}

TEST_F(Collectives, AFailureGoesToItsCallersAndEndsItAlone) {
  both_ask(ipc::Collective::kAllReduce, 5);
  table.fail({"loss", {ErrorKind::kMismatch, "all ranks must ask for the same", "", {}}});
  ASSERT_EQ(first.errors.size(), 1u);
  EXPECT_EQ(first.errors[0].second, 11u);
  EXPECT_EQ(second.errors[0].second, 12u);
  table.fail({"loss", {}});  // nobody waits for it any more
  EXPECT_EQ(first.errors.size(), 1u);
}

TEST_F(Collectives, WhatSomeAskedForTheOthersOwe) {
  ASSERT_TRUE(table.request(1, asks(ipc::Collective::kAllReduce, 5, 12), 100));
  EXPECT_TRUE(table.owed(99).empty());
  const auto owed = table.owed(100);
  ASSERT_EQ(owed.size(), 1u);
  EXPECT_EQ(owed[0].name, "loss");
  EXPECT_EQ(owed[0].since_us, 100);
  EXPECT_EQ(owed[0].workers, std::vector<std::size_t>{0});
  ASSERT_TRUE(table.request(0, asks(ipc::Collective::kAllReduce, 5, 11), 100));
  EXPECT_TRUE(table.owed(1000).empty());
}

TEST_F(Collectives, MessagesAreCheckedAgainstWhatWasAsked) {
  EXPECT_FALSE(table.facts("loss"));
  ASSERT_TRUE(table.request(0, asks(ipc::Collective::kAllGather, 2, 11, 8), 100));
  EXPECT_EQ(table.facts("loss")->counts.size(), 1u) << "fewer than local workers: not all have asked";
  ASSERT_TRUE(table.request(1, asks(ipc::Collective::kAllGather, 3, 12, 8), 100));
  const auto facts = table.facts("loss");
  EXPECT_EQ(facts->counts, (std::vector<std::uint64_t>{2, 3}));
  EXPECT_EQ(facts->first.capacity, 8u);
  EXPECT_FALSE(facts->started);
}

}  // namespace
}  // namespace deft::daemon
