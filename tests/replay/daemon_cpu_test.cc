// Jobs whose daemons have busy threads.
#include "core/replay/daemon_cpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/replay/causes.h"
#include "core/replay/explain.h"
#include "tests/replay/traced_simulation.h"

namespace deft::replay {
namespace {

using model::DaemonThread;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr TimeUs kTenthUs = 100'000;
const char* const kBusyReader =
    "the thread of node1 that receives for gloo:eth0 was busy 97 % of the time in which that link had transfers";

// Three nodes with one link. At 0.02 us a byte communication takes half as long again as compute.
JobTrace busy_job(double us_per_byte = 0.02, std::vector<sim::NodeSpeed> nodes = {{}, {}, {}}) {
  model::Profile profile;
  for (int i = 0; i < 12; ++i)
    profile.buckets.push_back({"b" + std::to_string(11 - i), 400'000, 5000.0 / 3, 10'000.0 / 3, std::nullopt});
  profile.links.push_back(
      {.name = "gloo:eth0", .latency_us = 150, .relative_time = std::nullopt, .bytes_per_us = 1 / us_per_byte});
  return traced_simulation(profile, "fifo", {.steps = 40, .nodes = std::move(nodes)});
}

// How long the link had transfers then: one at a time.
double transfers_us(const trace::NodeTrace& trace, TimeUs from_us, TimeUs to_us) {
  TimeUs sum_us = 0;
  for (const auto& record : trace.records)
    if (record.kind() == trace::TraceKind::kTransfer)
      sum_us += std::max<TimeUs>(0, std::min(to_us, record.end_us()) - std::max(from_us, record.begin_us()));
  return static_cast<double>(sum_us);
}

// In each tenth of a second the thread is busy for this share of the time in which the link has transfers.
void add_thread(JobTrace& job, std::size_t node, DaemonThread thread, double busy) {
  trace::NodeTrace& trace = job.nodes[node].trace;
  const TimeUs end_us = trace.records.back().end_us();
  std::vector<trace::TraceRecord> told;
  for (TimeUs at_us = trace.records.front().begin_us(); at_us + kTenthUs <= end_us; at_us += kTenthUs)
    told.emplace_back(
        at_us, at_us + kTenthUs,
        trace::CpuTrace{.cpu_us = static_cast<std::uint64_t>(busy * transfers_us(trace, at_us, at_us + kTenthUs)),
                        .thread = static_cast<std::uint16_t>(thread)});
  trace.records.insert(trace.records.end(), told.begin(), told.end());
  std::ranges::stable_sort(trace.records, {}, &trace::TraceRecord::begin_us);
}

Explanation explained_with_threads(const JobTrace& job) {
  const auto measured = measure(job);
  EXPECT_TRUE(measured) << measured.error().message();
  auto explanation = explain(job, *measured);
  EXPECT_TRUE(explanation) << explanation.error().message();
  return *std::move(explanation);
}

TEST(DaemonCpu, AThreadThatIsBusyWhileItsLinkHasTransfersIsNamed) {
  auto job = busy_job();
  const auto before = explained_with_threads(job);
  ASSERT_EQ(before.causes.front().cause, "none");
  for (std::size_t node = 0; node < 3; ++node) {
    add_thread(job, node, DaemonThread::kReceives, node == 1 ? 0.97 : 0.4);
    add_thread(job, node, DaemonThread::kLink, 0.2);
  }
  const auto uses = thread_uses(job);
  ASSERT_EQ(uses.size(), 6U);
  for (const ThreadUse& use : uses) {
    EXPECT_NEAR(use.busy, use.thread == DaemonThread::kLink ? 0.2 : use.node == 1 ? 0.97 : 0.4, 0.001);
    EXPECT_LT(use.share, use.busy) << "the link has nothing to do now and then";
  }
  const auto explanation = explained_with_threads(job);
  EXPECT_THAT(explanation.causes.front().what, EndsWith(std::string("compute cannot hide, and ") + kBusyReader));
  EXPECT_THAT(explanation.notes, IsEmpty()) << "it is said already";
}

TEST(DaemonCpu, BesideAnotherCauseItIsANote) {
  auto job = busy_job(0.002, {{}, {1.3, 0}, {}});
  add_thread(job, 1, DaemonThread::kReceives, 0.97);
  const auto explanation = explained_with_threads(job);
  EXPECT_EQ(explanation.causes.front().cause, "slow-worker");
  EXPECT_THAT(explanation.notes, testing::ElementsAre(kBusyReader));
}

TEST(DaemonCpu, WorkOfTheDaemonThatCannotHideNamesTheThread) {
  auto job = busy_job();
  add_thread(job, 1, DaemonThread::kReceives, 0.97);
  const auto measured = measure(job);
  ASSERT_TRUE(measured);
  const auto causes = costly_stages({job, *measured, 100'000}, {.compute_us = 80'000, .daemon_us = 20'000});
  const auto overhead = std::ranges::find(causes, "overhead", &Cause::cause);
  ASSERT_NE(overhead, causes.end());
  EXPECT_EQ(overhead->where, "node1/eth0");
  EXPECT_THAT(overhead->what, EndsWith(kBusyReader));
  EXPECT_NEAR(overhead->share, 0.2, 1e-9);
}

// What all threads use together, also for other jobs, says nothing of a thread.
TEST(DaemonCpu, TheEventLoopIsComparedWithAllTimeAndAllThreadsWithNothing) {
  auto job = busy_job();
  auto& records = job.nodes[2].trace.records;
  const TimeUs begin_us = records.front().begin_us();
  const auto add = [&](DaemonThread thread, std::uint64_t cpu_us) {
    records.insert(records.begin(), {begin_us, begin_us + 2 * kTenthUs,
                                     trace::CpuTrace{.cpu_us = cpu_us, .thread = static_cast<std::uint16_t>(thread)}});
  };
  add(DaemonThread::kAll, 500'000);
  EXPECT_FALSE(busy_thread(job));
  EXPECT_NEAR(thread_uses(job).front().share, 2.5, 1e-9);
  add(DaemonThread::kReactor, 190'000);
  const auto busy = busy_thread(job);
  ASSERT_TRUE(busy);
  EXPECT_EQ(sentence_of(*busy, job), "the event loop of node2 was busy 95 % of the time");
  EXPECT_EQ(place_of(*busy, job), "node2");
}

TEST(DaemonCpu, OlderTracesTellOfNoThread) {
  EXPECT_THAT(thread_uses(busy_job()), IsEmpty());
  EXPECT_FALSE(busy_thread(busy_job()));
}

// A trace may come from anywhere.
TEST(DaemonCpu, LinksThatDoNotExistAreNumbers) {
  auto job = busy_job();
  for (auto& record : job.nodes[0].trace.records) {
    if (record.kind() != trace::TraceKind::kTransfer) continue;
    auto transfer = record.as<trace::TransferTrace>();
    transfer.link = 9;
    record = {record.begin_us(), record.end_us(), transfer};
  }
  const TimeUs begin_us = job.nodes[0].trace.records.front().begin_us();
  job.nodes[0].trace.records.insert(
      job.nodes[0].trace.records.begin(),
      {begin_us, begin_us + 10 * kTenthUs, trace::CpuTrace{.cpu_us = ~std::uint64_t{0}, .thread = 3, .link = 9}});
  const auto busy = busy_thread(job);
  ASSERT_TRUE(busy);
  EXPECT_THAT(sentence_of(*busy, job), HasSubstr("for link 9 was busy 100 %"));
  EXPECT_EQ(place_of(*busy, job), "node0");
}

}  // namespace
}  // namespace deft::replay
