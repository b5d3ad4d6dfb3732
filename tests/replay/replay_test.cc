#include "core/replay/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/replay/recut.h"
#include "tests/replay/traced_simulation.h"

namespace deft::replay {
namespace {

using testing::HasSubstr;

double simulated_us(const model::Profile& profile, const std::string& policy,
                    std::vector<sim::NodeSpeed> nodes = {{}, {}}) {
  auto scheduler = sched::make_scheduler(sim::setup_for(profile, policy));
  const auto outcome =
      sim::simulate(**scheduler, profile, {.steps = 160, .warmup_steps = 60, .nodes = std::move(nodes)});
  return outcome->step_us;
}

// What a trace cannot tell, the latency of parts that are all alike, costs some precision.
TEST(Replay, OfASimulatedJobGivesItsStepTime) {
  std::vector<double> errors;
  for (const char* policy : {"fifo", "bytescheduler", "p3", "usbyte"})
    for (const double us_per_byte : {0.002, 0.005, 0.01, 0.03}) {
      const auto truth = busy_profile(us_per_byte);
      const auto measured = measure(traced_simulation(truth, policy, {.steps = 40, .nodes = {{}, {}}}));
      ASSERT_TRUE(measured) << measured.error().message();
      const auto now = replay(*measured, {});
      ASSERT_TRUE(now) << now.error().message();
      EXPECT_NEAR(now->measured_step_us_p50, simulated_us(truth, policy), 10);
      errors.push_back(std::abs(now->step_us_p50 / now->measured_step_us_p50 - 1));
      EXPECT_LT(errors.back(), 0.05) << policy << " " << us_per_byte;
    }
  std::ranges::sort(errors);
  EXPECT_LT(errors[errors.size() / 2], 0.02);
}

TEST(Replay, AsManyNodesAsTracedChangeNothing) {
  for (const std::size_t count : {1, 2}) {
    const auto measured =
        measure(traced_simulation(busy_profile(), "fifo", {.steps = 40, .nodes = std::vector<sim::NodeSpeed>(count)}));
    ASSERT_TRUE(measured) << measured.error().message();
    const auto same = replay(*measured, {.nodes = count}), plain = replay(*measured, {});
    ASSERT_TRUE(same) << same.error().message();
    EXPECT_EQ(same->step_us_p50, plain->step_us_p50) << count;
  }
}

// On a link that is much slower than compute, everything is sent behind the first bucket's backward; on a fast one, nothing waits.
TEST(Replay, HasACoarsePredictionBySizeOverBandwidth) {
  auto truth = busy_profile();
  truth.links.resize(1);
  const auto measured = measure(traced_simulation(truth, "fifo", {.steps = 40, .nodes = {{}, {}}}));
  ASSERT_TRUE(measured);
  double bytes = 0;
  for (const auto& bucket : measured->profile.buckets) bytes += static_cast<double>(bucket.bytes);
  const auto slow = replay(*measured, {.link_speed = {{"gloo:eth0", 0.01}}});
  ASSERT_TRUE(slow);
  const double first_us = measured->profile.forward_us() + measured->profile.buckets.back().backward_us;
  EXPECT_NEAR(slow->coarse_step_us, first_us + bytes / (0.01 * *measured->profile.links[0].bytes_per_us), 100);
  const auto fast = replay(*measured, {.link_speed = {{"gloo:eth0", 1000}}});
  ASSERT_TRUE(fast);
  EXPECT_NEAR(fast->coarse_step_us, measured->profile.compute_us(), 0.01 * measured->profile.compute_us());
}

// Ten tensors of 100 KB and one of 8 MB, which fifo sends in buckets of 2 MB, and bytescheduler tensor by tensor.
JobTrace traced_in_uniform_buckets(const model::Profile& by_tensor) {
  auto job = traced_simulation(by_tensor, "fifo", {.steps = 20, .nodes = {{}, {}}});
  for (auto& node : job.nodes) node.trace.groups[0] = *recut(node.trace.groups[0], "uniform:2097152", 1 << 20);
  return job;
}

TEST(Replay, CutsTheTensorsAsAnotherPolicyWould) {
  model::Profile truth = busy_profile(0.005);
  truth.buckets.clear();
  for (int i = 0; i < 10; ++i) truth.buckets.push_back({"t" + std::to_string(i), 102'400, 1000, 2000, std::nullopt});
  truth.buckets.push_back({"large", 8'388'608, 1000, 3000, std::nullopt});
  const auto measured = measure(traced_in_uniform_buckets(truth));
  ASSERT_TRUE(measured) << measured.error().message();
  EXPECT_LT(measured->profile.buckets.size(), 7U);
  const auto cut = cut_by(*measured, "bytescheduler");
  ASSERT_EQ(cut.profile.buckets.size(), truth.buckets.size());
  for (std::size_t i = 0; i < truth.buckets.size(); ++i) {
    EXPECT_EQ(cut.profile.buckets[i].bytes, truth.buckets[i].bytes);
    EXPECT_NEAR(cut.profile.buckets[i].backward_us, truth.buckets[i].backward_us, 2);
  }
  EXPECT_EQ(cut_by(*measured, "fifo").profile.buckets.size(), measured->profile.buckets.size());
  const auto prediction = replay(*measured, {.policy = "bytescheduler"});
  ASSERT_TRUE(prediction);
  EXPECT_EQ(prediction->step_us_p50, replay(cut, {.policy = "bytescheduler"})->step_us_p50);
}

TEST(Replay, KeepsTheBucketsThatAnOptionFixes) {
  auto job = traced_in_uniform_buckets(busy_profile());
  job.nodes[0].trace.header.options["bucketing"] = "uniform:2097152";
  const auto measured = measure(job);
  ASSERT_TRUE(measured);
  EXPECT_EQ(cut_by(*measured, "bytescheduler").profile.buckets.size(), measured->profile.buckets.size());
}

TEST(Replay, PiecesOfATensorAreReadyTogetherAndForwardWaitsForAll) {
  const auto measured = measure(traced_simulation(busy_profile(), "fifo", {.steps = 20, .nodes = {{}, {}}}));
  ASSERT_TRUE(measured);
  const auto cut = with_buckets(*measured, "uniform:65536");
  ASSERT_TRUE(cut);
  const auto& buckets = cut->profile.buckets;
  EXPECT_GT(buckets.size(), 80U);
  double whole_us = 0;
  std::size_t with_time = 0;
  for (std::size_t i = 0; i + 1 < buckets.size(); ++i) {
    whole_us += buckets[i].backward_us;
    with_time += buckets[i].backward_us > 100 ? 1 : 0;
    const bool has_time = buckets[i].forward_us >= 100;
    EXPECT_TRUE(has_time || buckets[i].joined) << "the piece that has the time is the tensor's first";
  }
  EXPECT_LE(with_time, 12U) << "no more than tensors";
  EXPECT_NEAR(whole_us, 11 * 3000, 3100);
}

// Backward pauses for 20 ms in each step, each time before another tensor. So none of them takes longer in most of the steps.
TEST(Replay, AJobComputesNoFasterForSmallerBuckets) {
  auto job = traced_simulation(busy_profile(0.001), "fifo", {.steps = 40, .nodes = {{}, {}}});
  for (auto& node : job.nodes) {
    node.trace.groups[0] = *recut(node.trace.groups[0], "uniform:1073741824", 1 << 20);
    TimeUs paused_us = 0;
    for (auto& record : node.trace.records) {
      if (record.kind() == trace::TraceKind::kGradient) {
        const auto gradient = record.as<trace::GradientTrace>();
        if (gradient.first_tensor == 5 * gradient.last_step % 12) paused_us += 20'000;
      }
      record = record.at(record.begin_us() + paused_us, record.end_us() + paused_us);
    }
  }
  const auto measured = measure(job);
  ASSERT_TRUE(measured) << measured.error().message();
  const double compute_us = measured->profile.compute_us();
  EXPECT_NEAR(compute_us, 12 * 4500 + 20'000, 500);
  EXPECT_NEAR(cut_by(*measured, "bytescheduler").profile.compute_us(), compute_us, 1);
  EXPECT_NEAR(with_buckets(*measured, "uniform:65536")->profile.compute_us(), compute_us, 1);
}

TEST(Replay, TellsWhatAnotherPolicyOrLinkWouldDo) {
  const auto truth = busy_profile(0.015);
  const auto measured = measure(traced_simulation(truth, "fifo", {.steps = 40, .nodes = {{}, {}}}));
  ASSERT_TRUE(measured);
  const auto other = replay(*measured, {.policy = "bytescheduler"});
  ASSERT_TRUE(other);
  EXPECT_NEAR(other->step_us_p50, simulated_us(truth, "bytescheduler"), 0.05 * other->step_us_p50);
  auto faster = truth;
  for (auto& link : faster.links) *link.bytes_per_us *= 2;
  const auto doubled = replay(*measured, {.link_speed = {{"gloo:eth0", 2}, {"gloo:eth1", 2}}});
  ASSERT_TRUE(doubled);
  EXPECT_NEAR(doubled->step_us_p50, simulated_us(faster, "fifo"), 0.05 * doubled->step_us_p50);
}

TEST(Replay, TellsWhatTheJobWouldBeWithoutALink) {
  const auto truth = busy_profile(0.015);
  const auto measured = measure(traced_simulation(truth, "fifo", {.steps = 40, .nodes = {{}, {}}}));
  ASSERT_TRUE(measured);
  EXPECT_EQ(measured->links, (std::vector<std::string>{"gloo:eth0", "gloo:eth1"}));
  for (const std::size_t left_out : {0U, 1U}) {
    auto alone = truth;
    alone.links.erase(alone.links.begin() + static_cast<std::ptrdiff_t>(left_out));
    const auto without = replay(*measured, {.link_speed = {{truth.links[left_out].name, 0}}});
    ASSERT_TRUE(without) << without.error().message();
    EXPECT_NEAR(without->step_us_p50, simulated_us(alone, "fifo"), 0.05 * without->step_us_p50) << left_out;
  }
  // A codec's time on the second link is that of the only one now.
  const model::CodecCost codec{.name = "some", .wire_share = 0.5, .link_shares = {0.9, 0.1}};
  auto second = *measured;
  second.profile.links.erase(second.profile.links.begin());
  model::CodecCost of_second = codec;
  of_second.link_shares = {0.1};
  EXPECT_DOUBLE_EQ(replay(*measured, {.link_speed = {{"gloo:eth0", 0}}, .codec = codec})->step_us_p50,
                   replay(second, {.codec = of_second})->step_us_p50);
}

TEST(Replay, LinksThatNodesCallDifferentlyHaveNoNameInCommon) {
  auto job = traced_simulation(busy_profile(), "fifo", {.steps = 20, .nodes = {{}, {}}});
  job.nodes[1].trace.header.links[1] = "gloo:enp3s0";
  const auto measured = measure(job);
  ASSERT_TRUE(measured);
  EXPECT_THAT(measured->links, testing::IsEmpty());
  EXPECT_EQ(measured->profile.links.size(), 2U);
}

// On a busy machine the leader's clock may have answered late: what another node did seems to come behind the sums.
TEST(Replay, MeasuresTheLinksAlsoIfANodesClockIsOffByMoreThanATransfer) {
  auto job = traced_simulation(busy_profile(), "fifo", {.steps = 20, .nodes = {{}, {}}});
  const auto right = measure(job);
  for (auto& record : job.nodes[1].trace.records)
    record = record.at(record.begin_us() + 10'000'000, record.end_us() + 10'000'000);
  const auto off = measure(job);
  ASSERT_TRUE(right && off) << off.error().message();
  ASSERT_EQ(off->profile.links.size(), 2U);
  for (std::size_t link = 0; link < 2; ++link) {
    EXPECT_DOUBLE_EQ(*off->profile.links[link].bytes_per_us, *right->profile.links[link].bytes_per_us);
    EXPECT_DOUBLE_EQ(off->profile.links[link].latency_us, right->profile.links[link].latency_us);
  }
}

TEST(Replay, OfWhatCannotBeMeasuredSaysWhatIsWrongWithTheTraces) {
  auto job = traced_simulation(busy_profile(), "fifo", {.steps = 20, .nodes = {{}, {}}});
  job.problems = {"a.trace: the file ends within a frame", "of 3 nodes there are 2"};
  ASSERT_TRUE(measure(job));
  auto cut = job;
  cut.nodes.front().trace.records.resize(20);
  const auto few = measure(cut);
  ASSERT_FALSE(few);
  EXPECT_THAT(few.error().what, HasSubstr("whole steps"));
  for (const auto& problem : job.problems) EXPECT_THAT(few.error().what, HasSubstr(problem));
  auto silent = job;
  std::erase_if(silent.nodes.front().trace.records,
                [](const auto& record) { return record.kind() == trace::TraceKind::kTransfer; });
  const auto unlinked = measure(silent);
  ASSERT_FALSE(unlinked);
  EXPECT_THAT(unlinked.error().what, HasSubstr("gloo:eth1 carried nothing"));
  job.problems.assign(100, "many");
  job.nodes.clear();
  EXPECT_THAT(measure(job).error().what, HasSubstr("and 94 more"));
}

TEST(Replay, FindsAStragglerAndWhatItCosts) {
  const auto truth = busy_profile(0.002);
  const auto measured = measure(traced_simulation(truth, "bytescheduler", {.steps = 40, .nodes = {{}, {1.4, 0}}}));
  ASSERT_TRUE(measured);
  ASSERT_EQ(measured->nodes.size(), 2U);
  EXPECT_NEAR(measured->nodes[1].slowdown / measured->nodes[0].slowdown, 1.4, 0.03);
  const auto with = replay(*measured, {}), without = replay(*measured, {.straggler = false});
  ASSERT_TRUE(with && without);
  EXPECT_NEAR(with->step_us_p50 / without->step_us_p50, 1.4, 0.06);
}

// The daemon refuses dear on such jobs, so nothing may recommend it.
TEST(Replay, OfJobsWithoutHalvesKnowsNoDear) {
  const auto why = [](const JobTrace& job) {
    const auto measured = measure(job);
    EXPECT_TRUE(measured) << measured.error().message();
    const auto dear = replay(*measured, {.policy = "dear"});
    return dear ? std::string() : dear.error().message();
  };
  auto truth = busy_profile();
  auto job = traced_simulation(truth, "fifo", {.steps = 20, .nodes = {{}, {}}});
  EXPECT_EQ(why(job), "");
  for (auto& node : job.nodes)
    for (auto& record : node.trace.records)
      if (record.kind() == trace::TraceKind::kTransfer) {
        auto transfer = record.as<trace::TransferTrace>();
        transfer.wire_bytes /= 2;
        record = {record.begin_us(), record.end_us(), transfer};
      }
  EXPECT_THAT(why(job), HasSubstr("codecs of their own"));
  for (const char* name : {"ps:a:1", "nccl", "tcp:eth0"}) {
    truth.links.front().name = name;
    EXPECT_THAT(why(traced_simulation(truth, "fifo", {.steps = 20, .nodes = {{}, {}}})), HasSubstr(name));
  }
}

TEST(Replay, OfHalvesOfAllReducesGivesTheStepTime) {
  const auto truth = busy_profile(0.01);
  const auto measured = measure(traced_simulation(truth, "dear", {.steps = 40, .nodes = {{}, {}}}));
  ASSERT_TRUE(measured) << measured.error().message();
  const auto now = replay(*measured, {});
  ASSERT_TRUE(now) << now.error().message();
  EXPECT_NEAR(now->step_us_p50 / now->measured_step_us_p50, 1, 0.05);
}

// Encoded gradients: the trace's launches have a codec and take a quarter of the bytes on the wire.
TEST(Replay, OfAJobWithACodecTellsWhatTheCodecDoes) {
  auto truth = busy_profile(0.03);
  const double plain_us = simulated_us(truth, "fifo");
  for (auto& link : truth.links) *link.bytes_per_us *= 4;
  auto job = traced_simulation(truth, "fifo", {.steps = 40, .nodes = {{}, {}}});
  for (auto& node : job.nodes)
    for (auto& record : node.trace.records) {
      if (record.kind() == trace::TraceKind::kOrder) {
        auto order = record.as<trace::OrderTrace>();
        order.codec = 1;
        record = {record.begin_us(), record.end_us(), order};
      } else if (record.kind() == trace::TraceKind::kTransfer) {
        auto transfer = record.as<trace::TransferTrace>();
        transfer.wire_bytes /= 4;
        record = {record.begin_us(), record.end_us(), transfer};
      }
    }
  const auto measured = measure(job);
  ASSERT_TRUE(measured);
  ASSERT_EQ(measured->profile.codecs.size(), 2U);
  EXPECT_NEAR(measured->profile.codecs[1].wire_share, 0.25, 1e-3);
  const auto now = replay(*measured, {}), without = replay(*measured, {.codec = model::CodecCost{}});
  ASSERT_TRUE(now && without);
  EXPECT_NEAR(now->step_us_p50, now->measured_step_us_p50, 0.05 * now->measured_step_us_p50);
  EXPECT_NEAR(without->step_us_p50, plain_us, 0.05 * plain_us);
  const auto bf16 = replay(*measured, {.codec = model::CodecCost{.name = "bf16", .wire_share = 0.5}});
  ASSERT_TRUE(bf16);
  EXPECT_GT(bf16->step_us_p50, 1.2 * now->step_us_p50);
  EXPECT_LT(bf16->step_us_p50, 0.8 * plain_us);
}

// A job of the policy knapsack whose plans choose codecs, and chose only the second one of two.
TEST(Replay, OfAJobWhosePlansChooseCodecsHasThemByName) {
  auto job = traced_simulation(busy_profile(), "fifo", {.steps = 40, .nodes = {{}, {}}});
  for (auto& node : job.nodes) {
    node.trace.header.options["policy"] = "knapsack";
    for (auto& record : node.trace.records) {
      if (record.kind() != trace::TraceKind::kOrder) continue;
      auto order = record.as<trace::OrderTrace>();
      order.codec = 2;
      record = {record.begin_us(), record.end_us(), order};
    }
  }
  const auto names = [&] {
    const auto measured = measure(job);
    EXPECT_TRUE(measured) << measured.error().message();
    std::vector<std::string> list;
    if (measured)
      for (const auto& codec : measured->profile.codecs) list.push_back(codec.name);
    return list;
  };
  EXPECT_EQ(names(), (std::vector<std::string>{"none", "bf16", "int8"})) << "by the options, in older traces";
  for (auto& node : job.nodes) node.trace.header.codecs = {"none", "fp16", "int4"};
  EXPECT_EQ(names(), (std::vector<std::string>{"none", "fp16", "int4"}));
}

// flush(residuals=True) lets a generation travel as it is, whatever the job's codec.
TEST(Replay, LaunchesThatTakeResidualsAlongHaveNoCodec) {
  auto job = traced_simulation(busy_profile(), "fifo", {.steps = 20, .nodes = {{}, {}}});
  for (auto& record : job.nodes[0].trace.records) {
    if (record.kind() != trace::TraceKind::kOrder) continue;
    auto order = record.as<trace::OrderTrace>();
    if (order.generation == 9) order.codec = model::kWithResiduals;
    record = {record.begin_us(), record.end_us(), order};
  }
  const auto measured = measure(job);
  ASSERT_TRUE(measured) << measured.error().message();
  EXPECT_EQ(measured->profile.codecs.size(), 1U);
}

// Plans that may neither merge nor delay, so that a step shows what they encode.
MeasuredJob synchronous_knapsack(double us_per_byte, const model::CodecCost& codec) {
  auto measured = measure(traced_simulation(busy_profile(us_per_byte), "fifo", {.steps = 40, .nodes = {{}, {}}}));
  EXPECT_TRUE(measured);
  measured->options["max_merged_steps"] = "1";
  measured->options["max_staleness_steps"] = "0";
  measured->plan_codecs = {model::CodecCost{}, codec};
  return *std::move(measured);
}

TEST(Replay, PlansChooseAmongTheirCodecs) {
  const double kept_us =
      replay(synchronous_knapsack(0.03, {.name = "none too", .wire_share = 1}), {.policy = "knapsack"})->step_us_p50;
  const model::CodecCost slow{.name = "slow", .wire_share = 0.9, .encode_us_per_byte = 10};
  EXPECT_NEAR(replay(synchronous_knapsack(0.03, slow), {.policy = "knapsack"})->step_us_p50, kept_us, 0.01 * kept_us);
  auto fast = synchronous_knapsack(0.03, {.name = "int8", .wire_share = 0.25});
  EXPECT_LT(replay(fast, {.policy = "knapsack"})->step_us_p50, 0.6 * kept_us) << "without a word of the user";
  EXPECT_NEAR(replay(fast, {.policy = "fifo"})->step_us_p50, replay(fast, {})->step_us_p50, 1);
  fast.options["compression"] = "none";
  EXPECT_NEAR(replay(fast, {.policy = "knapsack"})->step_us_p50, kept_us, 0.01 * kept_us);
  fast.options["compression"] = "auto";
  EXPECT_THAT(replay(fast, {.policy = "fifo"}).error().message(), HasSubstr("makes no plans"));
  for (auto& link : fast.profile.links) link.name.replace(0, 4, "nccl");
  EXPECT_NEAR(replay(fast, {.policy = "knapsack"})->step_us_p50, kept_us, 0.01 * kept_us) << "NCCL carries no codes";
}

// Small launches overtake others on gloo's links, which changes what `auto` chooses among; the leader's selector knows that, too.
TEST(Replay, AutoComparesPoliciesWithThePriorityChannelsOfTheLinks) {
  model::Profile truth = busy_profile(0.02);
  truth.links.resize(1);
  for (std::size_t i = 0; i < truth.buckets.size(); i += 2) truth.buckets[i].bytes = 8'000;
  auto measured = measure(traced_simulation(truth, "fifo", {.steps = 40, .nodes = {{}, {}}}));
  ASSERT_TRUE(measured);
  double best_us = 1e12;
  for (const char* policy : {"fifo", "bytescheduler", "p3", "prophet", "usbyte", "mgwfbp"})
    if (const auto prediction = replay(*measured, {.policy = policy}))
      best_us = std::min(best_us, prediction->step_us_p50);
  const auto chosen = replay(*measured, {.policy = "auto"});
  ASSERT_TRUE(chosen) << chosen.error().message();
  EXPECT_LT(chosen->step_us_p50, 1.03 * best_us);
}

TEST(Replay, MoreNodesTakeMoreOfEachLink) {
  const auto measured = measure(traced_simulation(busy_profile(0.03), "fifo", {.steps = 40, .nodes = {{}, {}}}));
  ASSERT_TRUE(measured);
  const auto two = replay(*measured, {}), many = replay(*measured, {.nodes = 64});
  ASSERT_TRUE(two && many);
  EXPECT_GT(many->step_us_p50, 1.5 * two->step_us_p50);
  EXPECT_LT(many->step_us_p50, 2.1 * two->step_us_p50);
}

TEST(Replay, ThousandsOfNodesThatVaryAreAsSlowAsTheSlowestOfThem) {
  auto measured = measure(traced_simulation(busy_profile(0.0005), "fifo", {.steps = 40, .nodes = {{}, {}}}));
  ASSERT_TRUE(measured);
  const auto step_us = [&](std::uint32_t nodes) {
    const auto prediction = replay(*measured, {.nodes = nodes});
    EXPECT_TRUE(prediction) << prediction.error().message();
    return prediction ? prediction->step_us_p50 : 0;
  };
  const double steady_us = step_us(10'000);
  measured->spreads = {0.05, 0.05};
  for (auto& node : measured->nodes) node.jitter = 0.05;
  EXPECT_NEAR(step_us(10'000) / steady_us, 1 + 0.05 * 3.85, 0.03) << "the expected maximum of so many normal values";
  EXPECT_GT(step_us(100), steady_us);
  EXPECT_LT(step_us(100), step_us(10'000));
}

// Each server carries the gradients of all nodes, so more nodes without more servers take proportionally longer.
TEST(Replay, MoreNodesShareTheSameParameterServers) {
  auto measured = measure(traced_simulation(busy_profile(0.03), "fifo", {.steps = 40, .nodes = {{}, {}}}));
  ASSERT_TRUE(measured);
  const auto longer = [&](const std::string& servers) {
    for (std::size_t link = 0; link < measured->profile.links.size(); ++link)
      measured->profile.links[link].name = "ps:" + servers + std::to_string(link);
    return replay(*measured, {.nodes = 8}).value().step_us_p50 / replay(*measured, {}).value().step_us_p50;
  };
  const double one_server = longer("a:70"), four_servers = longer("a:70+b:70+c:70+d:70");
  EXPECT_GT(one_server, 2.5);
  EXPECT_LT(one_server, 4.1);
  EXPECT_GT(four_servers, 1.5);
  EXPECT_LT(four_servers, 2.1);
}

TEST(Replay, WithOtherBucketsStepsVaryAsMuch) {
  auto measured = measure(traced_simulation(busy_profile(0.0005), "fifo", {.steps = 40, .nodes = {{}, {}}}));
  ASSERT_TRUE(measured);
  measured->spreads = {0.1, 0.1};
  for (auto& link : measured->profile.links) link.latency_us = 1;  // compute alone counts
  const auto spread_of = [](const MeasuredJob& job) {
    const auto prediction = replay(job, {});
    EXPECT_TRUE(prediction);
    return (prediction->step_us_p90 - prediction->step_us_p10) / prediction->step_us_p50;
  };
  for (const char* bucketing : {"profile", "uniform:16384", "uniform:4194304"}) {
    const auto changed = with_buckets(*measured, bucketing);
    ASSERT_TRUE(changed);
    EXPECT_NEAR(spread_of(*changed), 0.22, 0.06) << bucketing << ": of the slower one of two nodes";
  }
  EXPECT_FALSE(with_buckets(*measured, "round"));
}

TEST(Replay, BrieflyGivesNearlyTheSame) {
  for (const char* policy : {"fifo", "bytescheduler", "p3", "usbyte", "mgwfbp"}) {
    const auto measured = measure(traced_simulation(busy_profile(), policy, {.steps = 40, .nodes = {{}, {1.1, 0.01}}}));
    ASSERT_TRUE(measured);
    const auto whole = replay(*measured, {}), brief = replay(*measured, {.briefly = true});
    ASSERT_TRUE(whole && brief);
    EXPECT_NEAR(brief->step_us_p50, whole->step_us_p50, 0.02 * whole->step_us_p50) << policy;
  }
}

TEST(Replay, WhatCannotBeIsRefusedByName) {
  const auto measured = measure(traced_simulation(busy_profile(), "fifo", {.steps = 20, .nodes = {{}, {}}}));
  ASSERT_TRUE(measured);
  EXPECT_THAT(replay(*measured, {.link_speed = {{"eth9", 2}}}).error().message(), HasSubstr("eth9"));
  EXPECT_THAT(replay(*measured, {.link_speed = {{"gloo:eth0", -1}}}).error().message(), HasSubstr("gloo:eth0"));
  EXPECT_THAT(replay(*measured, {.link_speed = {{"gloo:eth0", 0}, {"gloo:eth1", 0}}}).error().message(),
              HasSubstr("all links are left out"));
  EXPECT_THAT(replay(*measured, {.policy = "magic"}).error().message(), HasSubstr("magic"));
  EXPECT_FALSE(replay(*measured, {.nodes = 0}));
  EXPECT_FALSE(replay(*measured, {.compute_speed = 0}));
}

}  // namespace
}  // namespace deft::replay
