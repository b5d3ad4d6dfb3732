// A group of gradients on the leader: agreeing on it, its launches, its plans.
#include "daemon/leader/group_coordinator.h"

#include <gtest/gtest.h>

namespace deft::daemon {
namespace {

JobSettings settings(const std::string& policy = "fifo") {
  return job_settings(Config(),
                      "bucket_bytes=1MB\npartition_bytes=64KB\nmax_merged_steps=4\nmax_stale_percent=100\ntimeout=60s\n"
                      "policy=" +
                          policy + "\n")
      .value();
}

std::string name_of(std::size_t node) { return "rank " + std::to_string(node); }

struct Group {
  explicit Group(const std::string& policy = "fifo", const std::string& second_link = "gloo:eth1")
      : chosen(settings(policy)),
        links({{"gloo:eth0", 200, 1000}, {second_link, 200, 1000}}, 2, {60'000'000, 1'000'000}),
        codecs(chosen, 2),
        group({"job", 3, 2}, chosen, codecs) {}

  Result<std::optional<wire::DeclareAgreed>> declare(std::size_t node, std::uint64_t elements = 1 << 18,
                                                     std::uint32_t slots = 4) {
    return group.declare(node, {3, "sgd", {{"fc.weight", model::DType::kFloat32, {elements}}}, slots}, links, name_of);
  }
  void agree() {
    for (const std::size_t node : {0, 1}) ASSERT_TRUE(declare(node));
    ASSERT_TRUE(group.agreed());
  }

  const JobSettings chosen;
  LinkFailover links;
  JobCodecs codecs;
  GroupCoordinator group;
};

TEST(GroupCoordinator, AgreesWhenTheLastNodeDeclaresAlike) {
  Group world;
  const auto first = world.declare(0);
  ASSERT_TRUE(first);
  EXPECT_FALSE(*first);
  EXPECT_EQ(world.group.buckets(), 0U);
  const auto last = world.declare(1);
  ASSERT_TRUE(last && *last);
  EXPECT_EQ((*last)->group, 3U);
  EXPECT_EQ((*last)->buckets.size(), world.group.buckets());
  std::uint64_t bytes = 0;
  for (const auto& bucket : (*last)->buckets) bytes += bucket.bytes;
  EXPECT_EQ(bytes, std::uint64_t{1} << 20);
  EXPECT_EQ((*last)->hash, group_hash({{"fc.weight", model::DType::kFloat32, {1 << 18}}}, **last));
  EXPECT_FALSE(*world.declare(1)) << "agreed already";
}

TEST(GroupCoordinator, NamesWhatTheNodesDeclareDifferently) {
  Group tensors;
  ASSERT_TRUE(tensors.declare(0));
  EXPECT_EQ(tensors.declare(1, 7).error().what,
            "tensor 0 is fc.weight float32 [262144] on rank 0 and fc.weight float32 [7] on rank 1");
  Group slots;
  ASSERT_TRUE(slots.declare(0));
  EXPECT_EQ(slots.declare(1, 1 << 18, 2).error().what,
            "group 3 is 'sgd' on rank 0 and 'sgd', with other slots or another reduction, on rank 1");
}

TEST(GroupCoordinator, OrdersEveryByteOfAReadyBucketOnceAndInOneCount) {
  Group world;
  world.agree();
  world.links.order(0, 1);  // a collective
  world.group.bucket_ready(0, 0, 0);
  const auto order = world.group.take_launches(world.links, 0);
  ASSERT_TRUE(order);
  EXPECT_EQ(order->first, 1U);
  std::uint64_t bytes = 0;
  for (const auto& launch : order->launches) {
    EXPECT_EQ(launch.group, 3U);
    EXPECT_EQ(launch.last_step, 0U);
    bytes += launch.bytes;
  }
  EXPECT_EQ(bytes, std::uint64_t{1} << 20);
  EXPECT_EQ(world.group.outstanding_launches(), order->launches.size());
  EXPECT_EQ(world.links.next_number(), 1 + order->launches.size());
  EXPECT_FALSE(world.group.take_launches(world.links, 0)) << "given once";
}

TEST(GroupCoordinator, KnowsItsOwnLaunchesUntilTheyHaveFinished) {
  Group world;
  world.agree();
  world.group.bucket_ready(0, 0, 0);
  const auto order = world.group.take_launches(world.links, 0);
  ASSERT_TRUE(order);
  EXPECT_EQ(world.group.outstanding(order->launches.size()), nullptr);
  ASSERT_NE(world.group.outstanding(0), nullptr);
  EXPECT_EQ(world.group.outstanding(0)->bytes, order->launches[0].bytes);
  for (std::uint64_t number = 0; number < order->launches.size(); ++number) world.group.finished(number, 10);
  world.group.finished(0, 10);
  EXPECT_EQ(world.group.outstanding_launches(), 0U);
}

TEST(GroupCoordinator, ALinkThatIsLostWhenTheGroupIsAgreedIsNeverChosen) {
  Group world;
  ASSERT_TRUE(world.links.remove({1, 0, {ErrorKind::kLost, "cut", "", {}}}, true, 0));
  world.agree();
  world.group.bucket_ready(0, 0, 0);
  const auto order = world.group.take_launches(world.links, 0);
  ASSERT_TRUE(order);
  for (const auto& launch : order->launches) EXPECT_EQ(launch.link, 0U);
}

TEST(GroupCoordinator, RefusesAFlushThatIsFarAheadOrOfNoGroup) {
  Group world;
  EXPECT_FALSE(world.group.flushed(1, 0)) << "not agreed";
  world.agree();
  EXPECT_FALSE(world.group.flushed(0, 0));
  EXPECT_TRUE(world.group.flushed(3, 0));
  EXPECT_EQ(world.group.flushed(1000, 0).error().kind, ErrorKind::kViolation);
}

// Steps take next to no time here, so updates have to be merged.
std::optional<wire::PlanOrder> first_plan(Group& world) {
  world.agree();
  std::optional<wire::PlanOrder> plan;
  for (std::uint64_t step = 0; step < 10 && !plan; ++step) {
    const TimeUs now = static_cast<TimeUs>(step) * 30;
    world.group.scheduler().stage_began(sched::Stage::kForward, step, now, 0);
    world.group.scheduler().stage_began(sched::Stage::kBackward, step, now + 10, 0);
    for (model::BucketIndex bucket = 0; bucket < world.group.buckets(); ++bucket)
      world.group.bucket_ready(bucket, step, now + 20);
    plan = world.group.take_plan();
    world.group.take_launches(world.links, now + 20);
  }
  return plan;
}

TEST(GroupCoordinator, APlanIsNumberedAndShownAndItsLaunchesCarryItsDates) {
  Group world("knapsack");
  const auto plan = first_plan(world);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->group, 3U);
  EXPECT_EQ(plan->epoch, 1U);
  EXPECT_FALSE(plan->reason.empty());
  nlohmann::json status;
  world.group.add_status(status);
  ASSERT_EQ(status["plans"].size(), 1U);
  EXPECT_EQ(status["plans"][0]["from_step"], plan->activation_step);
}

TEST(GroupCoordinator, PlansThatMayChooseASparseCodecMakeNoUpdateLate) {
  for (const std::string codec : {"auto/max=int8", "auto/max=topk", "topk", "randk", "auto/max=randk"}) {
    Group world("knapsack\ncompression=" + codec);
    const auto plan = first_plan(world);
    ASSERT_TRUE(plan) << codec;
    EXPECT_EQ(plan->plan.max_merged() > 1, codec == "auto/max=int8") << codec;
    EXPECT_EQ(plan->plan.max_staleness() > 0, codec == "auto/max=int8") << codec;
  }
}

TEST(GroupCoordinator, HalvesNeedLinksThatHaveThem) {
  Group halves("dear");
  halves.agree();
  for (const std::string name : {"ps:10.0.0.9:29610", "tcp:eth1"}) {
    Group world("dear", name);
    ASSERT_TRUE(world.declare(0));
    EXPECT_EQ(world.declare(1).error().what,
              "policy dear splits all-reduces into halves, and link " + name + " has none");
    Group other("fifo", name);
    other.agree();
    EXPECT_FALSE(other.group.scheduler().change_settings({.policy = "dear"}));
  }
  Group encoded("dear\ncompression=int8");
  ASSERT_TRUE(encoded.declare(0));
  EXPECT_NE(encoded.declare(1).error().what.find("DEFT_COMPRESSION encodes"), std::string::npos);
}

TEST(GroupCoordinator, WhatALowRankCodecEncodesIsNotCut) {
  const auto launches = [](const std::string& of_job, const std::string& own) {
    Group world("bytescheduler\ncompression=" + of_job);
    const std::vector<model::TensorSpec> tensors{{"fc.weight", model::DType::kFloat32, {512, 512}, 0, own}};
    for (const std::size_t node : {0, 1})
      EXPECT_TRUE(world.group.declare(node, {3, "sgd", tensors, 4}, world.links, name_of));
    world.group.bucket_ready(0, 0, 0);
    return world.group.take_launches(world.links, 0)->launches;
  };
  EXPECT_LT(launches("int8", "")[0].bytes, std::uint64_t{1} << 20);
  for (const auto& [of_job, own] : {std::pair{"lowrank/rank=2", ""}, {"int8", "lowrank"}}) {
    const auto whole = launches(of_job, own);
    ASSERT_EQ(whole.size(), 1U) << of_job << " " << own;
    EXPECT_EQ(whole[0].bytes, std::uint64_t{1} << 20);
  }
}

// An int8 part of so many bytes takes a quarter of their time on a link.
TEST(GroupCoordinator, PartsWithACodecOfTheirOwnDoNotTellHowFastALinkIs) {
  const auto measured = [](const std::string& second_codec) {
    Group world;
    std::vector<model::TensorSpec> tensors{{"head", model::DType::kFloat32, {1 << 18}},
                                           {"embedding", model::DType::kFloat32, {1 << 18}}};
    tensors[0].codec = "int8";
    tensors[1].codec = second_codec;
    for (const std::size_t node : {0, 1})
      EXPECT_TRUE(world.group.declare(node, {3, "sgd", tensors, 4}, world.links, name_of));
    std::vector<bool> told;
    for (model::BucketIndex bucket = 0; bucket < world.group.buckets(); ++bucket)
      world.group.bucket_ready(bucket, 0, 0);
    const auto order = world.group.take_launches(world.links, 0);
    for (std::uint64_t number = 0; number < order->launches.size(); ++number) {
      const sched::Launch& launch = *world.group.outstanding(order->first + number);
      if (told.size() <= launch.bucket) told.resize(launch.bucket + 1);
      told[launch.bucket] = world.group.measured_bytes(launch).has_value();
    }
    return told;
  };
  EXPECT_EQ(measured(""), (std::vector<bool>{false, true}));
  EXPECT_EQ(measured("int8"), (std::vector<bool>{true, true})) << "nothing else would tell of the links";
}

TEST(GroupCoordinator, HalvesTakeNoResidualsAlong) {
  Group world("dear");
  world.agree();
  ASSERT_TRUE(world.group.residuals_asked_for(0));
  for (model::BucketIndex bucket = 0; bucket < world.group.buckets(); ++bucket) world.group.bucket_ready(bucket, 0, 0);
  const auto order = world.group.take_launches(world.links, 0);
  ASSERT_TRUE(order);
  for (const auto& launch : order->launches) {
    EXPECT_EQ(launch.half, model::AllReduceHalf::kReduceScatter);
    EXPECT_EQ(launch.codec, 0) << "nodes refuse an encoded half";
  }
  EXPECT_TRUE(world.group.measured_bytes(*world.group.outstanding(order->first)));
}

TEST(GroupCoordinator, ThePolicyOfARunningJobIsShownWithItsReason) {
  Group world("fifo");
  world.agree();
  EXPECT_FALSE(world.group.scheduler().change_settings({.policy = "knapsack"}));
  ASSERT_TRUE(world.group.scheduler().change_settings({.policy = "p3"}));
  world.group.scheduler().stage_began(sched::Stage::kBackward, 4, 100, 0);
  EXPECT_EQ(world.group.take_policy_changes().size(), 1U);
  EXPECT_TRUE(world.group.take_policy_changes().empty()) << "each is given once";
  nlohmann::json status;
  world.group.add_status(status);
  ASSERT_EQ(status["policies"].size(), 1U);
  EXPECT_EQ(status["policies"][0]["policy"], "p3");
  EXPECT_EQ(status["policies"][0]["from_step"], 4);
  EXPECT_EQ(status["policies"][0]["reason"], "the user set it");
}

TEST(GroupCoordinator, ShowsNoMergedBucketsOfAPolicyThatIsGone) {
  Group world("mgwfbp");
  const std::vector<model::TensorSpec> tensors = {{"a", model::DType::kFloat32, {1 << 15}},
                                                  {"b", model::DType::kFloat32, {1 << 15}}};
  for (const std::size_t node : {0, 1})
    ASSERT_TRUE(world.group.declare(node, {3, "sgd", tensors, 4}, world.links, name_of));
  ASSERT_EQ(world.group.buckets(), 2U);
  TimeUs now_us = 0;
  const auto run_step = [&](std::uint64_t step) {
    world.group.stage_began(sched::Stage::kForward, step, now_us += 1000, 0);
    world.group.stage_began(sched::Stage::kBackward, step, now_us += 1000, 0);
    for (model::BucketIndex bucket = 0; bucket < 2; ++bucket) world.group.bucket_ready(bucket, step, now_us += 10);
    EXPECT_FALSE(world.group.take_plan());
    while (const auto order = world.group.take_launches(world.links, now_us))
      for (std::size_t i = 0; i < order->launches.size(); ++i) world.group.finished(order->first + i, now_us += 10);
  };
  const auto merging = [&] {
    nlohmann::json leader;
    world.group.add_status(leader);
    return leader.value("merging", nlohmann::json::array());
  };
  for (std::uint64_t step = 0; step < 9; ++step) run_step(step);
  ASSERT_EQ(merging().size(), 1U) << "of the first profile";
  EXPECT_EQ(merging()[0]["transfers"], 1);
  ASSERT_TRUE(world.group.scheduler().change_settings({.policy = "p3"}));
  run_step(9);
  EXPECT_TRUE(merging().empty()) << merging().dump();
}

}  // namespace
}  // namespace deft::daemon
