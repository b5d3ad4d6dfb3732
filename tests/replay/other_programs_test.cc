// Jobs on whose nodes other programs run.
#include "core/replay/other_programs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/replay/causes.h"
#include "core/trace/cores_trace.h"
#include "tests/replay/even_job.h"

namespace deft::replay {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr TimeUs kHalfUs = 500'000;

// Three nodes on machines of their own, of which node 1 computes so many times as long.
JobTrace job_on_hosts(double slower = 1.5, std::uint64_t steps = 40) {
  auto job = traced_simulation(even_profile(12, 400'000, 0.002), "fifo",
                               {.steps = steps, .nodes = {{}, {.slowdown = slower}, {}}});
  for (std::size_t n = 0; n < job.nodes.size(); ++n) job.nodes[n].trace.header.host = "host" + std::to_string(n);
  return job;
}

// What a node's daemon tells of its cores each half of a second: shares of one of `cores`.
struct Told {
  double busy = 0, own = 0, waited = 0;  // `waited`: by the one worker
  std::uint16_t cores = 4;
  std::uint64_t which = 0xf;
};

void tell(JobTrace& job, std::size_t node, const Told& told, TimeUs from_us = 0) {
  trace::NodeTrace& trace = job.nodes[node].trace;
  const TimeUs end_us = trace.records.back().end_us();
  const auto us = [](double share) { return static_cast<std::uint64_t>(share * kHalfUs); };
  std::vector<trace::TraceRecord> records;
  for (TimeUs at_us = trace.records.front().begin_us(); at_us + kHalfUs <= end_us; at_us += kHalfUs)
    if (at_us >= from_us)
      records.emplace_back(at_us, at_us + kHalfUs,
                           trace::CoresTrace{.busy_us = us(told.busy),
                                             .own_us = us(told.own),
                                             .waited_us = us(told.waited),
                                             .which = told.which,
                                             .cores = told.cores,
                                             .workers = 1});
  trace.records.insert(trace.records.end(), records.begin(), records.end());
  std::ranges::stable_sort(trace.records, {}, &trace::TraceRecord::begin_us);
}

constexpr Told kQuiet{.busy = 2.2, .own = 2.1, .waited = 0.01};
constexpr Told kDisturbed{.busy = 3.9, .own = 2.1, .waited = 0.3};

TEST(OtherPrograms, ThatTakeTheCoresOfASlowNodeAreTheCause) {
  auto job = job_on_hosts();
  for (const std::size_t node : {0U, 2U}) tell(job, node, kQuiet);
  tell(job, 1, kDisturbed);
  const auto explanation = explained(job);
  const Cause& first = explanation.causes.front();
  EXPECT_EQ(first.cause, "noisy-neighbour");
  EXPECT_EQ(first.where, "node1");
  EXPECT_EQ(first.what, "node1 computes 50 % longer than the others, and other programs take 45 % of its cores");
  EXPECT_GT(first.gain_us, 10'000);
  EXPECT_THAT(explanation.notes, IsEmpty()) << "the cause says it";
}

TEST(OtherPrograms, OfASlowNodeWithoutThemTheNodeItselfIsTheCause) {
  constexpr Told kAlone{.busy = 3.9, .own = 3.8, .waited = 0.3}, kLowPriority{.busy = 4, .own = 1.9, .waited = 0.01};
  for (const Told& told : {kQuiet, kAlone, kLowPriority}) {
    auto job = job_on_hosts();
    for (std::size_t node = 0; node < 3; ++node) tell(job, node, node == 1 ? told : kQuiet);
    EXPECT_EQ(explained(job).causes.front().cause, "slow-worker");
  }
}

TEST(OtherPrograms, OnCoresThatTheWorkersDoNotNeedAreNoCause) {
  auto job = job_on_hosts();
  for (const std::size_t node : {0U, 2U}) tell(job, node, kQuiet);
  tell(job, 1, {.busy = 16, .own = 2, .waited = 0.01, .cores = 64, .which = ~std::uint64_t{0}});
  const auto explanation = explained(job);
  EXPECT_EQ(explanation.causes.front().cause, "slow-worker");
  EXPECT_THAT(explanation.notes, IsEmpty());
}

// Each node loads its data by children of the workers, for instance.
TEST(OtherPrograms, ThatAllNodesHaveAlikeMakeNoNodeSlow) {
  auto job = job_on_hosts();
  for (std::size_t node = 0; node < 3; ++node) tell(job, node, kDisturbed);
  const auto explanation = explained(job);
  EXPECT_EQ(explanation.causes.front().cause, "slow-worker");
  ASSERT_EQ(explanation.notes.size(), 1U);
  EXPECT_EQ(explanation.notes.front(),
            "other programs take 45 % of the cores of node0, and more than 10 % of those of 2 more: neither workers "
            "nor daemons of this job");
}

TEST(OtherPrograms, ThatBeginLaterCountFromThenOn) {
  auto job = traced_simulation(even_profile(12, 400'000, 0.03), "fifo",
                               {.steps = 120, .nodes = {{}, {}, {}}, .overlaps_forward = false});
  TimeUs from_us = 0;
  for (std::size_t n = 0; n < 3; ++n) job.nodes[n].trace.header.host = "host" + std::to_string(n);
  for (auto& record : job.nodes[2].trace.records) {
    if (record.kind() != trace::TraceKind::kStage) continue;
    auto stage = record.as<trace::StageTrace>();
    if (stage.step <= 60 || stage.stage != 1) continue;
    if (from_us == 0) from_us = record.begin_us();
    ASSERT_GT(stage.waited_us, 20'000U);
    stage.waited_us -= 20'000;
    record = {record.begin_us(), record.end_us(), stage};
  }
  for (std::size_t node = 0; node < 2; ++node) tell(job, node, kQuiet);
  auto early = job;
  tell(job, 2, kDisturbed, from_us);
  const auto measured = measure(job);
  ASSERT_TRUE(measured);
  const auto causes = slow_workers({job, *measured, replayed_us(*measured)});
  ASSERT_EQ(causes.size(), 1U);
  EXPECT_EQ(causes.front().what,
            "node2 computes 33 % longer than the others since step 60, and other programs take 45 % of its cores");
  // They were there before, and have ended.
  tell(early, 2, kQuiet, from_us);
  trace::NodeTrace& trace = early.nodes[2].trace;
  trace.records.emplace_back(
      trace.records.front().begin_us(), trace.records.front().begin_us() + kHalfUs,
      trace::CoresTrace{.busy_us = 4 * kHalfUs, .waited_us = kHalfUs, .which = 0xf, .cores = 4, .workers = 1});
  std::ranges::stable_sort(trace.records, {}, &trace::TraceRecord::begin_us);
  const auto without = slow_workers({early, *measured, replayed_us(*measured)});
  ASSERT_EQ(without.size(), 1U);
  EXPECT_EQ(without.front().cause, "slow-worker");
}

TEST(OtherPrograms, OnASteadyJobAreTheReasonWhyANodeVaries) {
  auto job = traced_simulation(even_profile(12, 400'000, 0.016), "fifo",
                               {.steps = 60, .nodes = {{}, {}, {}}, .overlaps_forward = false});
  for (std::size_t n = 0; n < 3; ++n) job.nodes[n].trace.header.host = "host" + std::to_string(n);
  for (auto& record : job.nodes[2].trace.records) {
    if (record.kind() != trace::TraceKind::kStage) continue;
    auto stage = record.as<trace::StageTrace>();
    if (stage.step == 0 || stage.step % 3 != 0 || stage.stage != 1) continue;
    ASSERT_GT(stage.waited_us, 30'000U);
    stage.waited_us -= 30'000;
    record = {record.begin_us(), record.end_us(), stage};
  }
  for (std::size_t node = 0; node < 3; ++node) tell(job, node, node == 2 ? kDisturbed : kQuiet);
  const auto measured = measure(job);
  ASSERT_TRUE(measured);
  const auto causes = unsteady_workers({job, *measured, replayed_us(*measured)});
  ASSERT_EQ(causes.size(), 1U);
  EXPECT_THAT(causes.front().what, HasSubstr("those of the others less, and other programs take 45 % of its cores"));
}

// Emulated nodes run on the same cores: what one of them does is no other program to another one.
TEST(OtherPrograms, AreNotTheOtherNodesOfTheSameMachine) {
  auto job = job_on_hosts();
  for (auto& node : job.nodes) node.trace.header.host = "one";
  for (std::size_t node = 0; node < 3; ++node) tell(job, node, {.busy = 3.9, .own = 1.2, .waited = 0.3});
  const auto shares = shares_of_cores(job, 0);
  for (const auto& use : shares) {
    ASSERT_TRUE(use);
    EXPECT_NEAR(use->others, 0.3 / 4, 1e-6);
    EXPECT_NEAR(use->waiting, 0.3, 1e-6);
  }
  EXPECT_THAT(explained(job).notes, IsEmpty());
  // Nodes on cores of their own are as machines of their own.
  auto apart = job_on_hosts();
  for (auto& node : apart.nodes) node.trace.header.host = "one";
  for (std::size_t node = 0; node < 3; ++node) {
    Told told = node == 1 ? kDisturbed : kQuiet;
    told.which = std::uint64_t{0xf} << (4 * node);
    tell(apart, node, told);
  }
  EXPECT_EQ(explained(apart).causes.front().cause, "noisy-neighbour");
}

TEST(OtherPrograms, AreUnknownInTracesOfOlderVersionsAndOfSomeNodes) {
  auto job = job_on_hosts();
  for (const auto& use : shares_of_cores(job, 0)) EXPECT_FALSE(use);
  EXPECT_EQ(explained(job).causes.front().cause, "slow-worker");
  tell(job, 1, kDisturbed);
  EXPECT_EQ(explained(job).causes.front().cause, "slow-worker") << "no other node tells";
  for (const std::size_t node : {0U, 2U}) tell(job, node, kQuiet);
  for (auto& node : job.nodes) node.trace.header.nodes = 4;
  EXPECT_THAT(note_of_other_programs(job), IsEmpty()) << "the fourth one's workers may be on the same cores";
}

// A file may come from anywhere.
TEST(OtherPrograms, NumbersThatCannotBeAreShares) {
  auto job = job_on_hosts();
  const std::uint64_t most = ~std::uint64_t{0};
  for (auto& node : job.nodes) {
    const TimeUs at_us = node.trace.records.back().begin_us();
    node.trace.records.emplace_back(at_us, at_us, trace::CoresTrace{.busy_us = most, .own_us = 0, .which = most});
    node.trace.records.emplace_back(
        at_us, at_us + 1,
        trace::CoresTrace{.busy_us = most, .waited_us = most, .which = most, .cores = 65535, .workers = 65535});
  }
  for (const auto& use : shares_of_cores(job, 0)) {
    ASSERT_TRUE(use);
    EXPECT_LE(use->others, 1);
    EXPECT_LE(use->waiting, 1);
  }
}

}  // namespace
}  // namespace deft::replay
