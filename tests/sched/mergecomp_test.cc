// MergeComp's groups against all partitions of small models, and the policy that follows them.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <limits>
#include <set>

#include "core/model/grouping.h"
#include "core/sched/profile_meter.h"
#include "core/sched/scheduler.h"

namespace deft::sched {
namespace {

using model::GroupingProblem;
using model::GroupStarts;

double between(double low, double high) { return low + (high - low) * *rc::gen::inRange(0, 10'001) / 10'000.0; }

GroupingProblem any_problem(bool encodes, bool with_borders) {
  GroupingProblem problem;
  const auto buckets = *rc::gen::inRange<std::size_t>(1, 11);
  double now_us = 0;
  for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
    problem.ready_us.push_back(now_us += between(1, 1000));
    problem.bytes.push_back(*rc::gen::inRange<std::uint64_t>(4, 1'000'000));
    problem.apart.push_back(with_borders && *rc::gen::inRange(0, 5) == 0);
  }
  const auto any_cost = [] { return model::PartCost{between(0, 500), between(0.0001, 0.004)}; };
  problem.costs.wire = any_cost();
  if (encodes) problem.costs.encode = any_cost(), problem.costs.decode = any_cost();
  if (*rc::gen::arbitrary<bool>()) problem.part_bytes = *rc::gen::inRange<std::uint64_t>(4, 2'000'000);
  return problem;
}

// The least time over all partitions with at most `most` groups more than the borders demand.
double brute_force_us(const GroupingProblem& problem, std::size_t most) {
  double best_us = std::numeric_limits<double>::infinity();
  const std::size_t count = problem.bytes.size();
  for (std::uint32_t cuts = 0; cuts < 1U << (count - 1); ++cuts) {
    GroupStarts starts{0};
    bool allowed = true;
    for (std::uint32_t bucket = 1; bucket < count; ++bucket) {
      if ((cuts >> (bucket - 1) & 1) != 0)
        starts.push_back(bucket);
      else if (problem.apart[bucket])
        allowed = false;
    }
    if (allowed && starts.size() <= most) best_us = std::min(best_us, pipeline_us(problem, starts));
  }
  return best_us;
}

RC_GTEST_PROP(Groups, ExactIsTheBestOfAllPartitions, ()) {
  const auto problem = any_problem(*rc::gen::arbitrary<bool>(), true);
  const auto starts = exact_groups(problem);
  const double best_us = brute_force_us(problem, problem.bytes.size());
  RC_ASSERT(pipeline_us(problem, starts) <= best_us * (1 + 1e-9));
  RC_ASSERT(starts.front() == 0U);
  for (std::uint32_t bucket = 1; bucket < problem.bytes.size(); ++bucket)
    if (problem.apart[bucket]) RC_ASSERT(std::ranges::binary_search(starts, bucket));
}

// The paper's Lemma: with two groups the time first falls and then rises with the border. Encoding is compute there.
RC_GTEST_PROP(Groups, TheSearchFindsTheBestBorderOfTwo, ()) {
  const auto problem = any_problem(false, false);
  const auto starts = searched_groups(problem, {.most = 2, .least_gain = 0});
  RC_ASSERT(starts.size() <= 2U);
  RC_ASSERT(pipeline_us(problem, starts) <= brute_force_us(problem, 2) * (1 + 1e-9));
}

RC_GTEST_PROP(Groups, AreNeverBetterThanExactNorWorseThanOne, ()) {
  const auto problem = any_problem(true, false);
  const double exact_us = pipeline_us(problem, exact_groups(problem));
  double before_us = pipeline_us(problem, {0});
  for (const unsigned most : {1U, 2U, 3U}) {
    const auto starts = searched_groups(problem, {.most = most, .least_gain = 0.01});
    const double us = pipeline_us(problem, starts);
    RC_ASSERT(starts.size() <= most);
    RC_ASSERT(us <= before_us);
    RC_ASSERT(exact_us <= us * (1 + 1e-9));
    before_us = us;
  }
  RC_ASSERT(exact_us <= pipeline_us(problem, even_groups(problem, 2)) * (1 + 1e-9));
}

// Parts in the three stages one by one, each as soon as its stage and the stage before have finished. The thread has no other work.
RC_GTEST_PROP(Groups, StagesWorkOnPartsSideBySide, ()) {
  GroupingProblem problem = any_problem(true, false);
  problem.costs.encode.fixed_us = problem.costs.wire.fixed_us = problem.costs.decode.fixed_us = 0;
  const auto part_bytes = *rc::gen::inRange<std::uint64_t>(1, 1000);
  const auto parts = *rc::gen::inRange<std::uint64_t>(1, 40);
  problem.part_bytes = part_bytes;
  problem.ready_us = {100};
  problem.bytes = {parts * part_bytes};
  problem.apart = {};
  double encoded_us = 100, sent_us = 0, decoded_us = 0;
  for (std::uint64_t part = 0; part < parts; ++part) {
    encoded_us += problem.costs.encode.us(part_bytes);
    sent_us = std::max(sent_us, encoded_us) + problem.costs.wire.us(part_bytes);
    decoded_us = std::max(decoded_us, sent_us) + problem.costs.decode.us(part_bytes);
  }
  const double thread_us = 100 + problem.costs.encode.us(problem.bytes[0]) + problem.costs.decode.us(problem.bytes[0]);
  const double us = pipeline_us(problem, {0});
  RC_ASSERT(std::abs(us - std::max(decoded_us, thread_us)) <= 1e-6 * us);
}

// On a link that takes no time, groups that are all ready end when one thread has encoded and decoded them.
TEST(Groups, OneThreadEncodesAndDecodes) {
  GroupingProblem problem{{100, 100, 100}, {10, 10, 10}, {}, {{0, 1}, {0, 1e-9}, {0, 1}}};
  EXPECT_NEAR(pipeline_us(problem, {0, 1, 2}), 160, 1e-3) << "two threads would take 140";
}

RC_GTEST_PROP(Groups, FewerOnesCostAtMostTheSlack, ()) {
  const auto problem = any_problem(true, true);
  const double slack = between(0, 0.1);
  const auto exact = exact_groups(problem);
  const auto fewer = fewer_groups(problem, exact, slack);
  RC_ASSERT(fewer.size() <= exact.size());
  RC_ASSERT(pipeline_us(problem, fewer) <= (1 + slack) * pipeline_us(problem, exact) * (1 + 1e-9));
  RC_ASSERT(std::ranges::includes(exact, fewer));
  for (std::uint32_t bucket = 1; bucket < problem.bytes.size(); ++bucket)
    if (problem.apart[bucket]) RC_ASSERT(std::ranges::binary_search(fewer, bucket));
}

TEST(Groups, ABorderThatGainsNothingGoes) {
  GroupingProblem problem{{100, 200, 300}, {10, 10, 10}, {}, {}};
  problem.costs.wire = {0, 1};
  const GroupStarts all{0, 1, 2};
  ASSERT_EQ(pipeline_us(problem, all), 310);
  EXPECT_EQ(fewer_groups(problem, all, 0), (GroupStarts{0, 2})) << "the first two are sent while the third is made";
}

TEST(Groups, AnotherGroupMustGainEnough) {
  GroupingProblem problem{{100, 200}, {1000, 1000}, {}, {}};
  problem.costs.wire = {10, 0.1};  // one group: 200 + 210; two: 200 + 110
  EXPECT_EQ(searched_groups(problem, {.most = 2, .least_gain = 0.2}), (GroupStarts{0, 1}));
  EXPECT_EQ(searched_groups(problem, {.most = 2, .least_gain = 0.3}), (GroupStarts{0}));
}

TEST(Groups, EvenOnesHaveAsManyBucketsEach) {
  const GroupingProblem problem{{1, 2, 3, 4, 5}, {9, 1, 1, 1, 1}, {}, {}};
  EXPECT_EQ(even_groups(problem, 2), (GroupStarts{0, 2}));
  EXPECT_EQ(even_groups(problem, 9), (GroupStarts{0, 1, 2, 3, 4}));
}

TEST(Groups, OfAThousandBucketsAreFoundInTime) {
  GroupingProblem problem;
  for (int bucket = 0; bucket < 2000; ++bucket) {
    problem.ready_us.push_back(10.0 * (bucket + 1));
    problem.bytes.push_back(bucket % 7 == 0 ? 100'000 : 100);
  }
  problem.costs = {{50, 0.0005}, {100, 0.001}, {50, 0.0002}};
  const double exact_us = pipeline_us(problem, exact_groups(problem));
  EXPECT_LE(exact_us, pipeline_us(problem, searched_groups(problem, {.most = 3})) * 1.001);
}

// --- The policy ---

Setup setup_of(const std::string& groups) {
  Setup setup;
  setup.policy = "mergecomp";
  setup.merge_groups = groups;
  for (std::uint32_t i = 0; i < 4; ++i)
    setup.buckets.push_back({"b", i * 4096, 4096, model::DType::kFloat32, 3 - i, i, 1});
  setup.links = {{"l", 100, 100}};
  return setup;
}

model::Profile profile_of(double backward_us) {
  model::Profile profile;
  for (int i = 0; i < 4; ++i) profile.buckets.push_back({"b", 4096, 10, backward_us, {}});
  profile.links = {{"l", 100, {}, 100}};
  return profile;
}

std::vector<model::BucketIndex> starts_of(const std::string& groups, double backward_us) {
  const auto scheduler = make_scheduler(setup_of(groups)).value();
  EXPECT_TRUE(scheduler->wants_profile(0));
  scheduler->profile_measured(profile_of(backward_us), 0, 0);
  const auto fusion = scheduler->take_fusion();
  return fusion ? fusion->starts : std::vector<model::BucketIndex>{0};
}

TEST(MergeComp, GroupsAsItIsTold) {
  EXPECT_EQ(starts_of("1", 1000).size(), 1U);
  EXPECT_EQ(starts_of("2", 1000), (std::vector<model::BucketIndex>{0, 3}));
  EXPECT_EQ(starts_of("even:2", 1000), (std::vector<model::BucketIndex>{0, 2}));
  EXPECT_EQ(starts_of("exact", 1), (std::vector<model::BucketIndex>{0})) << "a start costs more than it hides";
}

TEST(MergeComp, ASlowCodecIsWorthMoreGroups) {
  ASSERT_EQ(starts_of("exact", 1), (std::vector<model::BucketIndex>{0}));
  auto setup = setup_of("exact");
  for (auto& bucket : setup.buckets) bucket.coded_bytes = bucket.bytes;
  setup.codec_cost = {.name = "slow", .encode_us_per_byte = 1, .decode_us_per_byte = 0.01};  // 4 ms a bucket
  const auto scheduler = make_scheduler(setup).value();
  scheduler->profile_measured(profile_of(1), 0, 0);
  const auto fusion = scheduler->take_fusion();
  ASSERT_TRUE(fusion);
  EXPECT_GT(fusion->starts.size(), 1U) << "a group is sent while the next one is encoded";
  for (auto& bucket : setup.buckets) bucket.coded_bytes = 0;
  const auto other = make_scheduler(setup).value();
  other->profile_measured(profile_of(1), 0, 0);
  const auto merged = other->take_fusion();
  EXPECT_EQ(merged ? merged->starts.size() : 1U, 1U) << "of small tensors nothing is encoded";
}

// Two links have two threads, and each works on its half of a group.
TEST(MergeComp, GroupsOnTwoLinksAsOnOneWithTwiceTheSpeedAndHalfTheCosts) {
  const auto starts = [](std::size_t links, double encode_us_per_byte) {
    auto setup = setup_of("exact");
    auto profile = profile_of(20);
    setup.links.assign(links, {"l", 30, 200 / static_cast<double>(links)});
    profile.links.assign(links, {"l", 30, {}, 200 / static_cast<double>(links)});
    for (std::size_t link = 0; link < links; ++link) profile.links[link].name += std::to_string(link);
    for (auto& bucket : setup.buckets) bucket.coded_bytes = bucket.bytes;
    setup.partition_bytes = 1 << 30;  // whole groups, as on one link
    setup.codec_cost = {
        .name = "slow", .encode_us_per_byte = encode_us_per_byte, .decode_us_per_byte = encode_us_per_byte / 10};
    const auto scheduler = make_scheduler(setup).value();
    scheduler->profile_measured(profile, 0, 0);
    const auto fusion = scheduler->take_fusion();
    return fusion ? fusion->starts : std::vector<model::BucketIndex>{0};
  };
  std::set<std::vector<model::BucketIndex>> found;
  for (const double us_per_byte : {0.001, 0.004, 0.008, 0.016, 0.03, 0.06}) {
    EXPECT_EQ(starts(2, us_per_byte), starts(1, us_per_byte / 2)) << us_per_byte;
    found.insert(starts(2, us_per_byte));
  }
  EXPECT_GT(found.size(), 1U) << "so it matters how long encoding takes";
}

TEST(MergeComp, GroupsAnewWhenTheCodecTakesOtherTimesThanGuessed) {
  auto setup = setup_of("exact");
  for (auto& bucket : setup.buckets) bucket.coded_bytes = bucket.bytes;
  setup.codecs = {{}};
  setup.codec = 1;
  setup.codec_cost = {.name = "slow", .encode_us_per_byte = 1e-4};
  const auto scheduler = measured(make_scheduler(setup).value(), setup);
  std::optional<BucketFusion> fusion;
  TimeUs now = 0;
  std::uint64_t step = 0;
  const auto train = [&](std::uint64_t steps) {
    for (const std::uint64_t end = step + steps; step < end; ++step) {
      scheduler->stage_began(Stage::kForward, step, now, 0);
      scheduler->stage_began(Stage::kBackward, step, now += 10, 0);
      for (model::BucketIndex bucket = 0; bucket < 4; ++bucket) {
        scheduler->bucket_ready(bucket, step, now += 1);
        for (const Launch& launch : scheduler->take_launches(now)) scheduler->part_finished(launch, now);
      }
      if (auto change = scheduler->take_fusion()) fusion = std::move(change);
    }
  };
  train(100);
  EXPECT_FALSE(fusion) << "one group, as it begins";
  scheduler->codecs_measured(std::vector<model::CodecCost>{{}, {.name = "slow", .encode_us_per_byte = 1.1e-4}});
  train(100);
  EXPECT_FALSE(fusion);
  scheduler->codecs_measured(std::vector<model::CodecCost>{{}, {.name = "slow", .encode_us_per_byte = 1}});
  train(100);
  ASSERT_TRUE(fusion);
  EXPECT_GT(fusion->starts.size(), 1U) << "a group is sent while the next one is encoded";
  EXPECT_EQ(fusion->reason, "the time of codec slow (us a MB) went from 100 to 1000000");
  fusion.reset();
  scheduler->codecs_measured(std::vector<model::CodecCost>{{}, setup.codec_cost});
  train(100);
  ASSERT_TRUE(fusion);
  EXPECT_EQ(fusion->starts.size(), 1U);
}

TEST(MergeComp, RefusesWhatIsNoWayToGroup) {
  for (const std::string text : {"", "0", "4", "two", "even", "even:0", "exact:2", "2,", "-1"}) {
    const auto made = make_scheduler(setup_of(text));
    ASSERT_FALSE(made) << text;
    EXPECT_NE(made.error().message().find("merge_groups '" + text + "'"), std::string::npos);
  }
}

TEST(MergeComp, NewGroupsBeginWithAStepAndSendEveryByteOnce) {
  const auto scheduler = make_scheduler(setup_of("even:2")).value();
  scheduler->bucket_ready(0, 0, 0);  // a step under way keeps its groups
  scheduler->profile_measured(profile_of(1000), 1, 0);
  std::vector<std::uint64_t> bytes(2);
  for (std::uint64_t step = 0; step < 2; ++step)
    for (model::BucketIndex bucket = step == 0 ? 1 : 0; bucket < 4; ++bucket) {
      scheduler->bucket_ready(bucket, step, 0);
      for (const Launch& launch : scheduler->take_launches(0)) bytes[launch.generation] += launch.bytes;
    }
  EXPECT_EQ(bytes, (std::vector<std::uint64_t>{4 * 4096, 4 * 4096}));
}

}  // namespace
}  // namespace deft::sched
