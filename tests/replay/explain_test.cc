#include "core/replay/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <functional>
#include <random>
#include <utility>

#include "core/replay/causes.h"
#include "core/replay/links_traffic.h"
#include "core/replay/replay.h"
#include "tests/replay/even_job.h"

namespace deft::replay {
namespace {

using testing::HasSubstr;

TEST(Explain, AStragglerIsNamedWithWhatItCosts) {
  const auto job =
      traced_simulation(even_profile(12, 400'000, 0.002), "fifo", {.steps = 40, .nodes = {{}, {1.3, 0}, {}}});
  const auto explanation = explained(job);
  const Cause& first = explanation.causes.front();
  EXPECT_EQ(first.cause, "slow-worker");
  EXPECT_EQ(first.where, "node1");
  EXPECT_THAT(first.what, HasSubstr("node1 computes 3"));
  EXPECT_NEAR(first.share, 0.23, 0.03) << "a step of 1.3 becomes one of 1";
  EXPECT_GT(explanation.shares.slow_worker_us, 10'000);
}

TEST(Explain, ALeaderThatIsTheStragglerIsNamedToo) {
  const auto job =
      traced_simulation(even_profile(12, 400'000, 0.002), "fifo", {.steps = 40, .nodes = {{1.4, 0}, {}, {}}});
  const auto explanation = explained(job);
  EXPECT_EQ(explanation.causes.front().where, "node0");
  EXPECT_GT(explanation.shares.slow_worker_us, 10'000);
}

TEST(Explain, AStragglerThatBeginsLaterIsNamedWithItsFirstStep) {
  auto job = traced_simulation(even_profile(12, 400'000, 0.03), "fifo",
                               {.steps = 60, .nodes = {{}, {}, {}}, .overlaps_forward = false});
  // From step 30 on node 2 waits for less and computes for so much longer: the links take longer than that anyway.
  for (auto& record : job.nodes[2].trace.records) {
    if (record.kind() != trace::TraceKind::kStage) continue;
    auto stage = record.as<trace::StageTrace>();
    if (stage.step <= 30 || stage.stage != 1) continue;
    ASSERT_GT(stage.waited_us, 20'000U);
    stage.waited_us -= 20'000;
    record = {record.begin_us(), record.end_us(), stage};
  }
  const auto measured = measure(job);
  ASSERT_TRUE(measured);
  const auto causes = slow_workers({job, *measured, replayed_us(*measured)});
  ASSERT_EQ(causes.size(), 1U);
  EXPECT_EQ(causes.front().what, "node2 computes 33 % longer than the others since step 30");
}

// All nodes work for so long behind their gradients, which were waiting until now.
void add_updates(JobTrace& job, const std::function<std::uint64_t(std::uint32_t node, std::uint64_t step)>& update_us) {
  for (auto& node : job.nodes)
    for (auto& record : node.trace.records) {
      if (record.kind() != trace::TraceKind::kStage) continue;
      auto stage = record.as<trace::StageTrace>();
      if (stage.step == 0 || stage.stage != 1) continue;
      const auto us = update_us(node.trace.header.node, stage.step);
      ASSERT_GE(stage.waited_us, us);
      stage.waited_us -= us;
      record = {record.begin_us(), record.end_us(), stage};
    }
}

std::vector<Cause> slow_workers_of(const JobTrace& job) {
  const auto measured = measure(job);
  EXPECT_TRUE(measured);
  return slow_workers({job, *measured, replayed_us(*measured)});
}

TEST(Explain, ALargerBatchIsToldFromASlowProcessorByTheUpdate) {
  const auto profile = even_profile(12, 400'000, 0.03);
  const sim::Options options{.steps = 40, .nodes = {{}, {1.4, 0}, {}}, .overlaps_forward = false};
  auto larger = traced_simulation(profile, "fifo", options), slower = larger;
  add_updates(larger, [](std::uint32_t, std::uint64_t) { return 6000; });
  add_updates(slower, [](std::uint32_t node, std::uint64_t) { return node == 1 ? 8400 : 6000; });
  const auto batch = slow_workers_of(larger), processor = slow_workers_of(slower);
  ASSERT_EQ(batch.size(), 1U);
  EXPECT_EQ(batch.front().cause, "uneven-batch");
  EXPECT_THAT(batch.front().what, HasSubstr("and its updates do not"));
  ASSERT_EQ(processor.size(), 1U);
  EXPECT_EQ(processor.front().cause, "slow-worker");
}

TEST(Explain, ANodeWhoseStepsVaryIsTheNoisyNeighbourAndAllOfThemAreUnevenBatches) {
  const auto quiet = traced_simulation(even_profile(12, 400'000, 0.016), "fifo",
                                       {.steps = 60, .nodes = {{}, {}, {}}, .overlaps_forward = false});
  const auto unsteady = [&](const auto& is_long) {
    auto job = quiet;
    add_updates(job, [&](std::uint32_t node, std::uint64_t step) { return is_long(node, step) ? 30'000 : 0; });
    const auto measured = measure(job);
    EXPECT_TRUE(measured);
    return unsteady_workers({job, *measured, replayed_us(*measured)});
  };
  const auto noisy = unsteady([](std::uint32_t node, std::uint64_t step) { return node == 2 && step % 3 == 0; });
  ASSERT_EQ(noisy.size(), 1U);
  EXPECT_EQ(noisy.front().cause, "noisy-neighbour");
  EXPECT_EQ(noisy.front().where, "node2");
  EXPECT_GT(noisy.front().gain_us, 1000);
  const auto uneven = unsteady([](std::uint32_t node, std::uint64_t step) { return node == step % 3; });
  ASSERT_EQ(uneven.size(), 1U);
  EXPECT_EQ(uneven.front().cause, "uneven-batch");
  EXPECT_GT(uneven.front().gain_us, 1000);
  EXPECT_TRUE(unsteady([](std::uint32_t, std::uint64_t) { return false; }).empty());
}

TEST(Explain, ParameterServersThatAreFewerThanTheNodesAreNamed) {
  const auto servers = [](const std::string& link) {
    auto profile = even_profile(12, 400'000, 0.02);
    profile.links.front().name = link;
    return explained(traced_simulation(profile, "fifo", {.steps = 30, .nodes = {{}, {}, {}}})).causes.front();
  };
  const Cause one = servers("ps:a:1");
  EXPECT_EQ(one.cause, "server");
  EXPECT_EQ(one.where, "ps:a:1");
  EXPECT_THAT(one.what, HasSubstr("1 parameter server carries the gradients of 3 nodes"));
  EXPECT_GT(one.share, 0.2);
  EXPECT_EQ(servers("ps:a:1+b:1+c:1").cause, "none");
}

// So long the servers of the only link owed each node the results of 10 MB each.
using OwedUs = std::function<double(std::uint32_t node, std::uint32_t server)>;
void add_servers(JobTrace& job, std::uint32_t servers, const OwedUs& owed_us) {
  for (auto& node : job.nodes) {
    const TimeUs end_us = node.trace.records.back().end_us();
    for (std::uint32_t server = 0; server < servers; ++server)
      node.trace.records.emplace_back(
          end_us - 100'000, end_us,
          trace::TrafficTrace{.sent_bytes = 10'000'000,
                              .busy_us = static_cast<std::uint64_t>(owed_us(node.trace.header.node, server)),
                              .peer = server,
                              .is_server = 1});
    std::ranges::stable_sort(node.trace.records, {}, &trace::TraceRecord::begin_us);
  }
}

// All nodes but the last one to push wait 300 ms for the others, with each server alike.
TEST(Explain, OneSlowParameterServerOfSeveralIsNamedByItsAddressWithWhatItCosts) {
  auto truth = even_profile(12, 400'000, 0.02);
  truth.links.front().name = "ps:10.0.0.8:1+[fd00::9]:2+10.0.0.7:3";
  auto job = traced_simulation(truth, "fifo", {.steps = 40, .nodes = {{}, {}, {}}});
  add_servers(job, 3, [](std::uint32_t node, std::uint32_t server) {
    return (server == 1 ? 1'000'000 : 400'000) + (node == 2 ? 0 : 300'000);
  });
  const auto explanation = explained(job);
  const Cause& first = explanation.causes.front();
  EXPECT_EQ(first.cause, "server");
  EXPECT_EQ(first.where, "[fd00::9]:2");
  EXPECT_EQ(first.what, "the parameter server [fd00::9]:2 carries 40 % of the others' rate");
  truth.links.front().latency_us *= 0.4;
  *truth.links.front().bytes_per_us /= 0.4;
  const double mended_us = simulated_us(truth);
  EXPECT_NEAR(explanation.replayed_step_us - first.gain_us, mended_us, 0.03 * mended_us);
}

TEST(Explain, ParameterServersThatAreAlikeAndSlowWorkersAreNoSlowServer) {
  auto profile = even_profile(12, 400'000, 0.02);
  profile.links.front().name = "ps:a:1+b:1+c:1";
  auto job = traced_simulation(profile, "fifo", {.steps = 40, .nodes = {{}, {}, {}}});
  add_servers(job, 3,
              [](std::uint32_t node, std::uint32_t server) { return 400'000 + 9000 * server + 300'000 * node; });
  EXPECT_EQ(explained(job).causes.front().cause, "none");
}

// What the kernel has counted of 8 MiB from each node to each server, at so many bytes a microsecond.
void add_pushes(JobTrace& job, std::uint32_t servers, const Rate& rate) {
  constexpr std::uint32_t kKb = 8192;
  for (auto& node : job.nodes) {
    const TimeUs end_us = node.trace.records.back().end_us();
    for (std::uint32_t server = 0; server < servers; ++server) {
      const double us = 1024.0 * kKb / rate(node.trace.header.node, server);
      node.trace.records.emplace_back(
          end_us - 100'000, end_us,
          trace::TrafficTrace{
              .peer = server, .is_server = 1, .pushed_kb = kKb, .pushing_us = static_cast<std::uint32_t>(us)});
    }
    std::ranges::stable_sort(node.trace.records, {}, &trace::TraceRecord::begin_us);
  }
}

JobTrace job_with_servers(std::uint32_t servers, const Rate& rate, std::size_t nodes = 3) {
  auto truth = even_profile(12, 400'000, 0.02);
  truth.links.front().name = "ps:a:1";
  for (std::uint32_t server = 1; server < servers; ++server) truth.links.front().name += "+b:" + std::to_string(server);
  auto job = traced_simulation(truth, "fifo", {.steps = 40, .nodes = std::vector<sim::NodeSpeed>(nodes)});
  add_pushes(job, servers, rate);
  return job;
}

TEST(Explain, ANodeThatSendsSlowlyToTheParameterServersIsNamed) {
  const auto job = job_with_servers(3, [](std::uint32_t node, std::uint32_t) { return node == 1 ? 40 : 100; });
  const auto explanation = explained(job);
  const Cause& first = explanation.causes.front();
  EXPECT_EQ(first.cause, "slow-link") << first.what;
  EXPECT_EQ(first.where, "node1");
  EXPECT_EQ(first.what, "node1 sends to the parameter servers at 40 % of the other nodes' rate");
  auto mended = even_profile(12, 400'000, 0.02);
  *mended.links.front().bytes_per_us /= 0.4;
  EXPECT_NEAR(explanation.replayed_step_us - first.gain_us, simulated_us(mended), 0.05 * explanation.replayed_step_us);
}

// A server on a node's own machine gets that node's gradients at any rate. A server that is slow is so for all nodes.
TEST(Explain, WhatIsSlowAtOneParameterServerAloneIsNoNic) {
  const auto names_a_nic = [](const JobTrace& job) { return !slow_nics(job).empty(); };
  EXPECT_FALSE(names_a_nic(
      job_with_servers(2, [](std::uint32_t node, std::uint32_t server) { return node == server ? 5000.0 : 100.0; })));
  EXPECT_FALSE(
      names_a_nic(job_with_servers(2, [](std::uint32_t, std::uint32_t server) { return server == 1 ? 30.0 : 100.0; })));
  EXPECT_FALSE(names_a_nic(job_with_servers(
      2, [](std::uint32_t node, std::uint32_t server) { return node == 1 && server == 0 ? 30.0 : 100.0; })));
  const Rate slow = [](std::uint32_t node, std::uint32_t) { return node == 1 ? 30.0 : 100.0; };
  EXPECT_TRUE(names_a_nic(job_with_servers(2, slow)));
  EXPECT_FALSE(names_a_nic(job_with_servers(2, slow, 2))) << "the other node may run a server itself";
}

// One server carries what three nodes send: a node at half the others' rate is not what the job waits for.
TEST(Explain, ANodeThatSendsNoSlowerThanFewParameterServersReceiveWinsNothing) {
  const auto job = job_with_servers(1, [](std::uint32_t node, std::uint32_t) { return node == 1 ? 50 : 100; });
  const auto measured = measure(job);
  ASSERT_TRUE(measured);
  const auto causes = slow_links({job, *measured, replayed_us(*measured)});
  ASSERT_EQ(causes.size(), 1U);
  EXPECT_NEAR(causes.front().share, 0, 0.001);
}

TEST(Explain, OneMoreParameterServerSharesTheWholeCostOfParts) {
  auto truth = even_profile(12, 400'000, 0.012, 3000);
  truth.links.front().name = "ps:a:1";
  const auto job = traced_simulation(truth, "fifo", {.steps = 40, .nodes = {{}, {}, {}}});
  auto measured = measure(job);
  ASSERT_TRUE(measured);
  measured->profile.links = truth.links;  // equal parts do not tell latency and throughput apart
  const double now_us = replayed_us(*measured);
  const auto causes = few_servers({job, *measured, now_us});
  ASSERT_EQ(causes.size(), 1U);
  truth.links.front().latency_us /= 2;
  *truth.links.front().bytes_per_us *= 2;
  const double mended_us = simulated_us(truth);
  EXPECT_NEAR(now_us - causes.front().gain_us, mended_us, 0.02 * mended_us);
}

TEST(Explain, ASlowNicIsNamedByNodeAndLinkWithWhatItCosts) {
  const auto truth = even_profile(12, 400'000, 0.02);
  auto job = traced_simulation(truth, "fifo", {.steps = 40, .nodes = {{}, {}, {}}});
  add_traffic(job, [](std::uint32_t from, std::uint32_t to) {
    return from == 2 || to == 2 ? kRate : 4 * kRate;
  });  // 5 of its NIC's, 1 goes to node 2
  const auto explanation = explained(job);
  const Cause& first = explanation.causes.front();
  EXPECT_EQ(first.cause, "slow-link");
  EXPECT_EQ(first.where, "node2/eth0");
  EXPECT_EQ(first.what, "eth0 of node2 carries 40 % of the other nodes' rate");
  auto mended = truth;
  for (auto& link : mended.links) *link.bytes_per_us /= 0.4;
  auto scheduler = sched::make_scheduler(sim::setup_for(mended, "fifo"));
  const auto truly = sim::simulate(**scheduler, mended, {.steps = 160, .warmup_steps = 60, .nodes = {{}, {}}});
  EXPECT_NEAR(explanation.replayed_step_us - first.gain_us, truly->step_us, 0.05 * truly->step_us);
  EXPECT_GT(explanation.shares.communication_us, 20'000);
}

TEST(Explain, ANicThatIsSlowInOneDirectionIsNamedWithIt) {
  auto job = traced_simulation(even_profile(12, 400'000, 0.02), "fifo", {.steps = 40, .nodes = {{}, {}, {}}});
  add_traffic(job, [](std::uint32_t from, std::uint32_t) { return from == 1 ? kRate : 2 * kRate; });
  EXPECT_EQ(explained(job).causes.front().what, "eth0 of node1 sends at 50 % of the other nodes' rate");

  auto two = traced_simulation(even_profile(12, 400'000, 0.02), "fifo", {.steps = 40, .nodes = {{}, {}}});
  add_traffic(two, [](std::uint32_t from, std::uint32_t) { return from == 1 ? 50 : 100; });
  EXPECT_THAT(explained(two).causes.front().what, HasSubstr("eth0 from node1 to node0 carries 50 %"));
}

// Emulated nodes on one machine: a slow direction is that of a node whose daemon waits for a processor.
TEST(Explain, LoopbackHasNoNicThatCouldBeSlow) {
  auto profile = even_profile(12, 400'000, 0.02);
  profile.links.front().name = "gloo:lo";
  auto job = traced_simulation(profile, "fifo", {.steps = 40, .nodes = {{}, {}}});
  add_traffic(job, [](std::uint32_t from, std::uint32_t) { return from == 1 ? 50 : 100; });
  EXPECT_THAT(slow_nics(job), testing::IsEmpty());
  const Cause first = explained(job).causes.front();
  EXPECT_EQ(first.cause, "none");
  EXPECT_THAT(first.what, HasSubstr("gloo:lo tells nothing of single NICs"));
}

// `deft status --explain` without shared folders: what node 0 sent to two others is not both directions of a connection.
TEST(Explain, OneFileOfThreeNodesTellsNoDirection) {
  auto job = traced_simulation(even_profile(12, 400'000, 0.02), "fifo", {.steps = 40, .nodes = {{}, {}, {}}});
  add_traffic(job, [](std::uint32_t, std::uint32_t to) { return to == 2 ? kRate : 4 * kRate; });
  job.nodes.resize(1);
  for (const auto& slow : slow_nics(job)) {
    EXPECT_TRUE(slow.certain);
    EXPECT_EQ(slow.node, 2U);
    EXPECT_TRUE(slow.receives && !slow.sends);
  }
  const auto measured = measure(job);
  ASSERT_TRUE(measured);
  EXPECT_EQ(measured->node_count, 3U);
  EXPECT_GT(replay(*measured, {.nodes = 6})->step_us_p50, 1.1 * replay(*measured, {.nodes = 3})->step_us_p50);
  EXPECT_NEAR(replay(*measured, {.nodes = 3})->step_us_p50, replay(*measured, {})->step_us_p50, 1) << "a ring of three";
  job.nodes.front().trace.header.nodes = 2;  // and what else it counts is of no node
  EXPECT_THAT(slow_nics(job), testing::IsEmpty());
}

TEST(Explain, NothingStandsOutOnlyAmongWhatTheTracesTell) {
  const auto what = [](std::size_t nodes, const std::string& link, bool counts, std::size_t files) {
    auto profile = even_profile(12, 400'000, 0.02);
    profile.links.front().name = link;
    auto job = traced_simulation(profile, "fifo", {.steps = 40, .nodes = std::vector<sim::NodeSpeed>(nodes)});
    if (counts) add_traffic(job, [nodes](std::uint32_t, std::uint32_t) { return nodes == 2 ? 50.0 : kRate; });
    job.nodes.resize(files);
    const auto cause = explained(job).causes.front();
    EXPECT_EQ(cause.cause, "none");
    return cause.what;
  };
  EXPECT_THAT(what(3, "gloo:eth0", true, 3), testing::EndsWith("cannot hide, on all nodes alike"));
  EXPECT_THAT(what(3, "gloo:eth0", true, 2), testing::EndsWith("alike on the 2 of 3 nodes whose traces are here"));
  EXPECT_THAT(what(2, "gloo:eth0", true, 2), testing::EndsWith("a NIC that is slow in both is not seen"));
  const auto pushed = explained(job_with_servers(3, [](std::uint32_t, std::uint32_t) { return 100; }));
  EXPECT_THAT(pushed.causes.front().what,
              testing::EndsWith("tells only what NICs send, so one that receives slowly would not be seen"));
  for (const char* link : {"ps:a:1+b:1+c:1", "mpi:eth0", "nccl"})
    EXPECT_THAT(
        what(3, link, false, 3),
        testing::EndsWith(std::string(link) + " tells nothing of single NICs, so a slow one would not be seen"));
}

TEST(Explain, ASlowNicThatComputeHidesIsNoCause) {
  auto job = traced_simulation(even_profile(12, 400'000, 0.0005), "fifo", {.steps = 40, .nodes = {{}, {}, {}}});
  add_traffic(job, [](std::uint32_t from, std::uint32_t) { return from == 1 ? 50.0 : 100.0; });
  const auto explanation = explained(job);
  EXPECT_EQ(explanation.causes.front().cause, "none") << explanation.causes.front().what;
  EXPECT_THAT(explanation.causes.front().what, HasSubstr("nothing stands out"));
}

TEST(Explain, PartsThatAreTooSmallAreNamed) {
  // All parts are alike, so only the kernel's counters tell that most of the links' time is latency.
  auto job = traced_simulation(even_profile(200, 24'000, 0.002, 500), "fifo", {.steps = 20, .nodes = {{}, {}}});
  add_traffic(job, [](std::uint32_t, std::uint32_t) { return 500; });
  const auto explanation = explained(job);
  EXPECT_EQ(explanation.causes.front().cause, "small-parts") << explanation.causes.front().what;
  EXPECT_THAT(explanation.causes.front().what, HasSubstr("parts of 23.4 KB"));
}

TEST(Explain, PartsThatAreTooLargeAreNamed) {
  auto job = traced_simulation(even_profile(2, 8'000'000, 0.005), "fifo", {.steps = 30, .nodes = {{}, {}}});
  cut_tensors(job, 20);
  const auto explanation = explained(job);
  EXPECT_EQ(explanation.causes.front().cause, "large-parts") << explanation.causes.front().what;
}

// A large tensor is handed over at once, and forward waits for all of it. So smaller parts of it win nothing.
TEST(Explain, PartsOfATensorAreNotReadyBeforeIt) {
  const auto explanation =
      explained(traced_simulation(even_profile(2, 8'000'000, 0.005), "fifo", {.steps = 30, .nodes = {{}, {}}}));
  for (const auto& cause : explanation.causes) EXPECT_NE(cause.cause, "large-parts") << cause.what;
}

// Buckets of another size may let plans update less often, which makes steps shorter and is no gain.
TEST(Explain, FewerUpdatesAreNoGain) {
  for (const std::uint64_t bytes : {std::uint64_t{100'000}, std::uint64_t{2'000'000}}) {
    auto job =
        traced_simulation(even_profile(8'000'000 / bytes, bytes, 0.03), "fifo", {.steps = 30, .nodes = {{}, {}}});
    for (auto& node : job.nodes) node.trace.header.options = {{"policy", "knapsack"}, {"compression", "none"}};
    const auto measured = measure(job);
    ASSERT_TRUE(measured);
    const auto now = replay(*measured, {});
    const Evidence evidence{job, *measured, now->step_us_p50};
    for (const auto& cause : wrong_sizes(evidence)) {
      if (cause.gain_us <= 0) continue;
      const auto then = with_buckets(*measured, cause.options.at("bucketing"));
      EXPECT_GE(replay(*then, {})->updates_per_step, 0.99 * now->updates_per_step) << cause.what;
    }
  }
}

TEST(Explain, AGradientThatComesLastAndCannotHideIsNamed) {
  auto truth = even_profile(12, 200'000, 0.004);
  truth.buckets.front().bytes = 8'000'000;
  truth.buckets.front().name = "embedding";
  const auto explanation = explained(traced_simulation(truth, "fifo", {.steps = 30, .nodes = {{}, {}}}));
  EXPECT_EQ(explanation.causes.front().cause, "late-gradient") << explanation.causes.front().what;
  EXPECT_THAT(explanation.causes.front().what, HasSubstr("embedding comes last: its 7.6 MB cannot hide"));
  EXPECT_EQ(explanation.causes.front().where, "bucket11");
}

TEST(Explain, ACreditThatIsTooLargeIsNamed) {
  const auto job = traced_simulation(even_profile(12, 400'000, 0.015), "bytescheduler",
                                     {.steps = 30, .nodes = {{}, {}}}, std::uint64_t{64} << 20);
  const auto explanation = explained(job);
  EXPECT_EQ(explanation.causes.front().cause, "large-credit") << explanation.causes.front().what;
  EXPECT_THAT(explanation.causes.front().what, HasSubstr("waits for bucket"));
}

// No daemon writes such a trace: all parts are under way at once, and each has waited for all of those before it.
TEST(Explain, PartsThatAllWaitForEachOtherDoNotTakeHours) {
  auto job = traced_simulation(even_profile(12, 400'000, 0.015), "bytescheduler", {.steps = 30, .nodes = {{}, {}}},
                               std::uint64_t{64} << 20);
  const auto measured = measure(job);
  ASSERT_TRUE(measured);
  auto& records = job.nodes.front().trace.records;
  const TimeUs end_us = records.back().end_us() + 1'000'000;
  for (std::uint64_t i = 0; i < 200'000; ++i) {
    trace::OrderTrace order{.number = 1'000'000 + i, .generation = 3, .bucket = static_cast<std::uint32_t>(i % 12)};
    order.set_bytes(4096);
    records.emplace_back(end_us, end_us, order);
    records.emplace_back(end_us, 2 * end_us,
                         trace::TransferTrace{.number = order.number, .bytes = 4096, .wire_bytes = 4096, .stage = 3});
  }
  const auto causes = large_credit({job, *measured, replayed_us(*measured), launches_of(job.nodes.front().trace)});
  ASSERT_EQ(causes.size(), 1U);
  EXPECT_THAT(causes.front().what, HasSubstr("waits for bucket"));
}

// DDP waits outside Deft.
TEST(Explain, AWorkerThatTellsOfNoWaitWaitsForTheLastTransfer) {
  const auto truth = even_profile(12, 400'000, 0.02);
  auto job = traced_simulation(truth, "fifo", {.steps = 40, .nodes = {{}, {}}, .overlaps_forward = false});
  const auto told = explained(job);
  for (auto& node : job.nodes)
    for (auto& record : node.trace.records)
      if (record.kind() == trace::TraceKind::kStage) {
        auto stage = record.as<trace::StageTrace>();
        stage.waited_us = 0;
        record = {record.begin_us(), record.end_us(), stage};
      }
  const auto measured = measure(job);
  ASSERT_TRUE(measured);
  EXPECT_NEAR(measured->profile.compute_us(), 60'000, 600);
  EXPECT_FALSE(measured->overlaps_forward);
  const auto untold = explained(job);
  EXPECT_NEAR(untold.shares.compute_us, told.shares.compute_us, 0.02 * told.measured_step_us);
  EXPECT_NEAR(untold.shares.communication_us, told.shares.communication_us, 0.02 * told.measured_step_us);
  EXPECT_GT(untold.shares.communication_us, 0.3 * told.measured_step_us);
}

TEST(Explain, TheSharesAddUpToTheStep) {
  for (const char* policy : {"fifo", "bytescheduler", "p3"})
    for (const double us_per_byte : {0.001, 0.01, 0.03}) {
      const auto explanation = explained(
          traced_simulation(even_profile(12, 400'000, us_per_byte), policy, {.steps = 40, .nodes = {{}, {1.2, 0}}}));
      const auto& shares = explanation.shares;
      EXPECT_NEAR(shares.step_us(), explanation.measured_step_us, 0.03 * explanation.measured_step_us)
          << policy << " " << us_per_byte;
    }
}

// A trace of which only so many of a hundred records are left, at random.
JobTrace with_losses(int kept, unsigned seed) {
  auto job = traced_simulation(even_profile(4, 400'000, 0.01), "bytescheduler", {.steps = 12, .nodes = {{}, {}, {}}});
  add_traffic(job, [](std::uint32_t from, std::uint32_t) { return from == 1 ? 50.0 : 100.0; });
  add_servers(job, 3, [](std::uint32_t, std::uint32_t server) { return 1e5 * (1 + server); });
  std::minstd_rand random(seed);
  for (auto& node : job.nodes)
    std::erase_if(node.trace.records, [&](const auto&) { return static_cast<int>(random() % 100) >= kept; });
  return job;
}

TEST(Explain, FewMissingRecordsAreNoObstacle) {
  int explained_jobs = 0;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    const JobTrace job = with_losses(98, seed);
    if (const auto measured = measure(job)) explained_jobs += explain(job, *measured) ? 1 : 0;
  }
  EXPECT_GE(explained_jobs, 20);
}

// The reader gives what it could read: any part of the records may be missing, and any number may be anything.
RC_GTEST_PROP(Explain, WhateverIsMissingIsNoCrash, ()) {
  const JobTrace job = with_losses(*rc::gen::inRange(50, 101), *rc::gen::arbitrary<unsigned>());
  const auto measured = measure(job);
  if (!measured) return;
  const auto explanation = explain(job, *measured);
  if (!explanation) return;
  RC_ASSERT(!explanation->causes.empty());
  for (double TimeShares::*share : {&TimeShares::compute_us, &TimeShares::communication_us, &TimeShares::queueing_us})
    RC_ASSERT((explanation->shares.*share) >= 0);
}

}  // namespace
}  // namespace deft::replay
