// Groups of gradients on a node, from the declaration to FINISH, and every misuse by a worker or by the leader.
#include "daemon/node/gradient_groups.h"

#include <gtest/gtest.h>

#include "daemon/leader/leader.h"
#include "daemon/node/plan_records.h"
#include "tests/daemon/fake_node.h"

namespace deft::daemon {
namespace {

struct Groups : testing::Test, FakeNode {
  std::vector<Error> failures;
  GradientGroups groups{members, leader, &scheduler, 2, [this](const Error& error) { failures.push_back(error); }};

  // Both workers declare two tensors of 64 and 32 floats, and the leader makes a bucket of each.
  void agree(std::uint32_t slots = 1) {
    for (const std::size_t worker : {0, 1}) ASSERT_TRUE(groups.declare(worker, declaration({64, 32}, 0, slots)));
    ASSERT_TRUE(groups.agree(answer()));
  }
  // What a sound leader answers to the declaration that was sent to it.
  [[nodiscard]] wire::DeclareAgreed answer() const {
    const auto declared = leader.all<wire::Declare>().back();
    wire::DeclareAgreed agreed;
    agreed.group = declared.group;
    agreed.buckets = {{0, 256}, {256, 128}};
    agreed.hash = group_hash(declared.tensors, agreed);
    return agreed;
  }
  Result<bool> hand_in(std::size_t worker, std::uint32_t tensor, std::uint64_t generation = 0) {
    return groups.ready(
        worker, {.group = 0, .first_tensor = tensor, .tensors = 1, .generation = generation, .last_step = generation},
        100);
  }
  static wire::Launch launch(std::uint32_t bucket, std::uint64_t bytes, std::uint64_t offset = 0) {
    wire::Launch launch;
    launch.bucket = bucket;
    launch.offset = offset;
    launch.bytes = bytes;
    return launch;
  }
  [[nodiscard]] static std::vector<std::uint32_t> finished(const FakeWorker& worker) {
    std::vector<std::uint32_t> tensors;
    for (const auto& record : worker.records)
      if (record.kind() == shm::RecordKind::kFinish)
        for (std::uint32_t i = 0; i < record.as<shm::FinishRecord>().tensors; ++i)
          tensors.push_back(record.as<shm::FinishRecord>().first_tensor + i);
    return tensors;
  }
};

TEST_F(Groups, TheLeaderHearsOfADeclarationWhenAllLocalWorkersHaveMadeIt) {
  ASSERT_TRUE(groups.declare(1, declaration({64, 32})));
  EXPECT_TRUE(leader.sent.empty());
  ASSERT_TRUE(groups.declare(0, declaration({64, 32})));
  const auto declared = leader.all<wire::Declare>();
  ASSERT_EQ(declared.size(), 1u);
  EXPECT_EQ(declared[0].name, "model");
  EXPECT_EQ(declared[0].tensors.size(), 2u);
}

TEST_F(Groups, WorkersThatDeclareDifferentModelsAreNamed) {
  ASSERT_TRUE(groups.declare(1, declaration({64, 32})));
  const auto other = groups.declare(0, declaration({64, 33}));
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().kind, ErrorKind::kMismatch);
  EXPECT_NE(other.error().what.find("rank 0"), std::string::npos) << other.error().what;
  EXPECT_NE(other.error().what.find("rank 1"), std::string::npos) << other.error().what;
  EXPECT_FALSE(groups.declare(1, declaration({64, 32}))) << "twice by one worker";
}

TEST_F(Groups, OtherSlotsOfAGroupAreAMismatch) {
  ASSERT_TRUE(groups.declare(0, declaration({64}, 0, 1)));
  const auto other = groups.declare(1, declaration({64}, 0, 2));
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().what.find("with other slots or another reduction"), std::string::npos);
}

TEST_F(Groups, EachWorkerGetsAnArenaWhenTheGroupIsAgreed) {
  agree();
  EXPECT_EQ(first.granted, (std::vector<std::pair<std::uint32_t, std::uint32_t>>{{0, 2}}));
  EXPECT_EQ(second.granted, first.granted);
  const auto again = groups.agree(answer());
  ASSERT_TRUE(again);
  EXPECT_EQ(*again, nullptr) << "a second answer changes nothing";
  EXPECT_EQ(first.granted.size(), 1u);
}

TEST_F(Groups, AnAnswerWithAnotherHashOrWithGapsEndsTheJob) {
  for (const std::size_t worker : {0, 1}) ASSERT_TRUE(groups.declare(worker, declaration({64, 32})));
  auto agreed = answer();
  ++agreed.hash;
  const auto hash = groups.agree(agreed);
  ASSERT_FALSE(hash);
  EXPECT_EQ(hash.error().kind, ErrorKind::kMismatch);
  agreed.buckets = {{0, 256}};
  agreed.hash = group_hash(leader.all<wire::Declare>().back().tensors, agreed);
  EXPECT_FALSE(groups.agree(agreed));
  EXPECT_TRUE(first.granted.empty());
}

TEST_F(Groups, AnArenaThatCannotBeMadeIsTheJobsErrorAndNamesTheWorker) {
  second.arena_error = Error{ErrorKind::kExhausted, "the daemon's shared memory is full", "", {}};
  for (const std::size_t worker : {0, 1}) ASSERT_TRUE(groups.declare(worker, declaration({64, 32})));
  ASSERT_TRUE(groups.agree(answer()));
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_NE(failures[0].message().find("the arena of rank 1"), std::string::npos) << failures[0].message();
}

TEST_F(Groups, AWorkerThatHandsInBeforeItHasItsArenaIsRefused) {
  second.arena_later = true;
  for (const std::size_t worker : {0, 1}) ASSERT_TRUE(groups.declare(worker, declaration({64, 32})));
  ASSERT_TRUE(groups.agree(answer()));
  EXPECT_TRUE(hand_in(0, 0));
  const auto early = hand_in(1, 0);
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().kind, ErrorKind::kViolation);
  second.make_late_arenas();
  EXPECT_TRUE(hand_in(1, 0));
}

TEST_F(Groups, ABucketIsReadyWhenAllLocalWorkersHaveHandedItIn) {
  agree();
  EXPECT_EQ(hand_in(0, 0), false);
  EXPECT_TRUE(scheduler.ready.empty());
  EXPECT_EQ(hand_in(1, 0), true);
  EXPECT_EQ(scheduler.ready, (std::vector<std::vector<std::uint64_t>>{{0, 0, 0}}));
}

TEST_F(Groups, WhatAWorkerHandsInWronglyIsItsViolation) {
  const auto early = hand_in(0, 0);
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().kind, ErrorKind::kViolation);
  agree();
  EXPECT_FALSE(groups.ready(0, {.group = 1, .tensors = 1}, 100)) << "no such group";
  EXPECT_FALSE(hand_in(0, 2)) << "no such tensor";
  ASSERT_TRUE(hand_in(0, 0));
  EXPECT_FALSE(hand_in(0, 0)) << "twice";
}

TEST_F(Groups, ALaunchWaitsForItsGradientsAndFinishesItsTensors) {
  agree();
  const auto task = groups.order(launch(1, 128), 5, 100);
  ASSERT_TRUE(task);
  EXPECT_EQ(task->number, 5u);
  EXPECT_FALSE(groups.can_start(*task));
  for (const std::size_t worker : {0, 1}) ASSERT_TRUE(hand_in(worker, 1));
  EXPECT_TRUE(groups.can_start(*task));
  EXPECT_FALSE(groups.is_merged(*task));
  const Transfer transfer = groups.transfer_of(*task);
  EXPECT_EQ(transfer.buffers.size(), 2u);
  EXPECT_EQ(transfer.keep.size(), 2u) << "the arenas stay mapped";
  EXPECT_EQ(transfer.count, 32u);
  const auto records = groups.records_of(*task);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(std::get<shm::StartRecord>(records[1].front()).offset_bytes, 256u);
  ASSERT_TRUE(groups.finish(*task, {}));
  EXPECT_EQ(finished(first), (std::vector<std::uint32_t>{1}));
  EXPECT_EQ(finished(second), (std::vector<std::uint32_t>{1}));
  EXPECT_EQ(scheduler.finished, (std::vector<std::uint64_t>{5}));
  EXPECT_FALSE(groups.finish(*task, {})) << "the same bytes twice";
}

TEST_F(Groups, AMergedLaunchFinishesTheTensorsOfAllItsBuckets) {
  agree();
  const auto task = groups.order(launch(0, 384), 0, 100);
  ASSERT_TRUE(task);
  EXPECT_TRUE(groups.is_merged(*task));
  for (const std::size_t worker : {0, 1})
    for (const std::uint32_t tensor : {0, 1}) ASSERT_TRUE(hand_in(worker, tensor));
  ASSERT_TRUE(groups.finish(*task, {}));
  EXPECT_EQ(finished(first), (std::vector<std::uint32_t>{0, 1}));
}

TEST_F(Groups, WhatTheLeaderOrdersWronglyIsRefused) {
  EXPECT_FALSE(groups.order(launch(0, 256), 0, 100)) << "nothing is agreed";
  agree();
  EXPECT_FALSE(groups.order(launch(2, 4), 0, 100)) << "no such bucket";
  EXPECT_FALSE(groups.order(launch(0, 3), 0, 100)) << "a part of an element";
  EXPECT_FALSE(groups.order(launch(1, 256), 0, 100)) << "beyond the arena";
  auto on_no_link = launch(0, 256);
  on_no_link.link = 2;
  EXPECT_FALSE(groups.order(on_no_link, 0, 100));
  ASSERT_TRUE(groups.order(launch(0, 256), 0, 100));
  EXPECT_FALSE(groups.order(launch(0, 4), 1, 100)) << "the same bytes twice";
}

TEST_F(Groups, ATransferHasThePriorityThatTheLeaderGaveItsLaunch) {
  agree();
  auto ordered = launch(0, 256);
  EXPECT_EQ(groups.transfer_of(groups.order(ordered, 0, 100).value()).priority, 0u);
  ordered.generation = 1;
  ordered.last_step = 1;
  ordered.priority = 2;
  EXPECT_EQ(groups.transfer_of(groups.order(ordered, 1, 100).value()).priority, 2u);
}

TEST_F(Groups, OnlyRankZerosFlushesReachTheScheduler) {
  EXPECT_FALSE(groups.flush(0, {.group = 0, .step = 3})) << "of no group";
  agree();
  ASSERT_TRUE(groups.flush(1, {.group = 0, .step = 3}));
  EXPECT_TRUE(scheduler.flushes.empty());
  ASSERT_TRUE(groups.flush(0, {.group = 0, .step = 3}));
  EXPECT_EQ(scheduler.flushes, (std::vector<std::vector<std::uint64_t>>{{0, 3}}));
  scheduler.refuses = true;
  EXPECT_FALSE(groups.flush(0, {.group = 0, .step = 900}));
}

TEST_F(Groups, ANodeWithoutTheLeaderNeedsNoScheduler) {
  GradientGroups follower(members, leader, nullptr, 2, [](const Error& error) { FAIL() << error.message(); });
  for (const std::size_t worker : {0, 1}) ASSERT_TRUE(follower.declare(worker, declaration({64, 32})));
  ASSERT_TRUE(follower.agree(answer()));
  for (const std::size_t worker : {0, 1})
    ASSERT_TRUE(follower.ready(worker, {.group = 0, .first_tensor = 0, .tensors = 2}, 100));
  ASSERT_TRUE(follower.flush(0, {.group = 0, .step = 1}));
  const auto task = follower.order(launch(0, 384), 0, 100);
  ASSERT_TRUE(task);
  ASSERT_TRUE(follower.finish(*task, {}));
  EXPECT_TRUE(scheduler.ready.empty());
}

TEST_F(Groups, APlanOfAnUnknownGroupIsRefused) {
  wire::PlanOrder order;
  EXPECT_FALSE(groups.follow(order));
}

TEST_F(Groups, APlanOfMoreRecordsThanAWorkerTakesAtOnceIsRefused) {
  agree();
  wire::PlanOrder order{.group = 0, .epoch = 1};
  const auto lasts = [&](std::uint32_t steps) {
    model::UpdateCycle& cycle = order.plan.cycles.usual;
    cycle = {steps, {}};
    for (std::uint32_t step = 0; step < steps; ++step) cycle.generations.push_back({step, step, step + 1});
    return groups.follow(order);
  };
  ASSERT_TRUE(lasts(kMostPlanRecords - 1));
  EXPECT_EQ(first.records.size(), kMostPlanRecords);
  const auto longer = lasts(kMostPlanRecords);
  ASSERT_FALSE(longer);
  EXPECT_EQ(longer.error().what, "the plan is 60001 records long, and 60000 is the most");
  EXPECT_EQ(first.records.size(), kMostPlanRecords);
}

TEST_F(Groups, MessagesAreCheckedAgainstWhatIsDeclaredAndAgreed) {
  EXPECT_FALSE(groups.facts(0));
  for (const std::size_t worker : {0, 1}) ASSERT_TRUE(groups.declare(worker, declaration({64, 32}, 0, 3)));
  ASSERT_TRUE(groups.facts(0));
  EXPECT_TRUE(groups.facts(0)->buckets.empty());
  EXPECT_EQ(groups.facts(0)->slots, 3u);
  ASSERT_TRUE(groups.agree(answer()));
  EXPECT_EQ(groups.facts(0)->buckets.size(), 2u);
  EXPECT_EQ(groups.status()[0]["bucket_bytes"], (nlohmann::json{256, 128}));
}

TEST_F(Groups, TheLeaderHearsOfAReleaseWhenAllLocalWorkersHaveReleased) {
  agree();
  ASSERT_TRUE(groups.release(1, {.group = 0}));
  EXPECT_TRUE(leader.all<wire::Release>().empty());
  EXPECT_FALSE(groups.facts(0)->may_go);
  ASSERT_TRUE(groups.release(0, {.group = 0}));
  ASSERT_EQ(leader.all<wire::Release>().size(), 1u);
  EXPECT_TRUE(groups.facts(0)->may_go);
}

TEST_F(Groups, AReleasedGroupIsOutOfUseForTheWorkerThatReleasedIt) {
  EXPECT_EQ(groups.release(0, {.group = 0}).error().kind, ErrorKind::kViolation) << "it is not declared";
  agree();
  EXPECT_EQ(groups.release(0, {.group = 1}).error().kind, ErrorKind::kViolation);
  ASSERT_TRUE(groups.release(0, {.group = 0}));
  for (const auto& late : {groups.release(0, {.group = 0}), groups.flush(0, {.group = 0, .step = 1}),
                           groups.send_residuals(0, {.group = 0, .step = 1})}) {
    ASSERT_FALSE(late);
    EXPECT_EQ(late.error().kind, ErrorKind::kViolation);
    EXPECT_NE(late.error().what.find("after it had released it"), std::string::npos) << late.error().what;
  }
  EXPECT_FALSE(hand_in(0, 0));
  EXPECT_TRUE(hand_in(1, 0)) << "the other one may go on";
}

std::vector<std::uint32_t> released(const FakeWorker& worker) {
  std::vector<std::uint32_t> groups;
  for (const auto& record : worker.records)
    if (record.kind() == shm::RecordKind::kReleased) groups.push_back(record.as<shm::ReleasedRecord>().group);
  return groups;
}

TEST_F(Groups, AGroupThatAllHaveReleasedGoesWithItsArenas) {
  agree();
  const std::weak_ptr<shm::Segment> arena = groups.groups().at(0).arenas[0];
  for (const std::size_t worker : {0, 1}) ASSERT_TRUE(hand_in(worker, 0));  // and not the rest: nobody waits for it
  for (const std::size_t worker : {0, 1}) ASSERT_TRUE(groups.release(worker, {.group = 0}));
  groups.end({0});
  EXPECT_TRUE(groups.groups().empty());
  EXPECT_TRUE(arena.expired());
  EXPECT_EQ(released(first), std::vector<std::uint32_t>{0});
  EXPECT_EQ(released(second), std::vector<std::uint32_t>{0});
  EXPECT_FALSE(groups.facts(0));
  EXPECT_TRUE(groups.status().empty());
  EXPECT_FALSE(groups.order(launch(0, 256), 0, 100)) << "a launch of a group that has gone";
  groups.end({0});  // a second time does nothing
  EXPECT_EQ(released(first).size(), 1u);
}

TEST_F(Groups, WhatWasOrderedEndsBeforeTheGroupGoes) {
  agree();
  for (const std::size_t worker : {0, 1}) ASSERT_TRUE(hand_in(worker, 0));
  const auto task = groups.order(launch(0, 256), 0, 100);
  ASSERT_TRUE(task);
  for (const std::size_t worker : {0, 1}) ASSERT_TRUE(groups.release(worker, {.group = 0}));
  groups.end({0});
  ASSERT_EQ(groups.groups().size(), 1u);
  EXPECT_FALSE(groups.order(launch(1, 128), 1, 100)) << "nothing more is ordered";
  EXPECT_TRUE(released(first).empty());
  ASSERT_TRUE(groups.can_start(*task));
  EXPECT_EQ(groups.transfer_of(*task).buffers.size(), 2u);
  ASSERT_TRUE(groups.finish(*task, {}));
  EXPECT_EQ(finished(first), std::vector<std::uint32_t>{0}) << "before RELEASED";
  EXPECT_EQ(first.records.back().kind(), shm::RecordKind::kReleased);
  EXPECT_TRUE(groups.groups().empty());
  EXPECT_FALSE(groups.is_merged(*task)) << "another link may run it again";
}

TEST_F(Groups, AGroupIsNotReleasedBeforeItsArenaIsThere) {
  first.arena_later = true;
  agree();
  EXPECT_EQ(groups.release(0, {.group = 0}).error().kind, ErrorKind::kViolation);
  first.make_late_arenas();
  EXPECT_TRUE(groups.release(0, {.group = 0}));
}

}  // namespace
}  // namespace deft::daemon
