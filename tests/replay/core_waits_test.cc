// Jobs whose daemons take the workers' cores.
#include "core/replay/core_waits.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/model/daemon_thread.h"
#include "core/replay/quantiles.h"
#include "core/replay/replay.h"
#include "core/trace/cores_trace.h"
#include "tests/replay/even_job.h"

namespace deft::replay {
namespace {

constexpr TimeUs kPeriodUs = 100'000;

// Shares of a core that each node has for itself.
struct Told {
  double busy = 0, daemon = 0, waited = 0;
};

void tell(JobTrace& job, const Told& told) {
  const auto us = [](double share) { return static_cast<std::uint64_t>(share * kPeriodUs); };
  for (std::size_t n = 0; n < job.nodes.size(); ++n) {
    trace::NodeTrace& trace = job.nodes[n].trace;
    const TimeUs begin_us = trace.records.front().begin_us(), end_us = trace.records.back().end_us();
    for (TimeUs at_us = begin_us; at_us + kPeriodUs <= end_us; at_us += kPeriodUs) {
      trace.records.emplace_back(at_us, at_us + kPeriodUs,
                                 trace::CoresTrace{.busy_us = us(told.busy),
                                                   .own_us = us(told.daemon),
                                                   .waited_us = us(told.waited),
                                                   .which = std::uint64_t{1} << n,
                                                   .cores = 1,
                                                   .workers = 1});
      trace.records.emplace_back(
          at_us, at_us + kPeriodUs,
          trace::CpuTrace{.cpu_us = us(told.daemon), .thread = static_cast<std::uint16_t>(model::DaemonThread::kAll)});
    }
    std::ranges::stable_sort(trace.records, {}, &trace::TraceRecord::begin_us);
  }
}

// 120 parts a step, each of which costs much beside its bytes. Compute takes 66 ms, and 60 ms without the daemons.
constexpr double kTrulyUs = 60'000, kLonger = 1.1;
const model::Profile kSmallParts = even_profile(120, 20'000, 0.005, 500, kTrulyUs);

JobTrace job_of_small_parts() {
  return traced_simulation(kSmallParts, "fifo", {.steps = 30, .nodes = {{kLonger, 0}, {kLonger, 0}}});
}

MeasuredJob measured_with(const Told& told) {
  auto job = job_of_small_parts();
  if (told.busy > 0) tell(job, told);
  auto measured = measure(job);
  EXPECT_TRUE(measured) << measured.error().message();
  measured->profile.links = kSmallParts.links;  // equal parts do not tell latency and throughput apart
  measured->core_waits = core_waits_of(job, kSmallParts.links);
  return *std::move(measured);
}

double compute_us(const MeasuredJob& measured, const std::string& bucketing) {
  const auto changed = with_buckets(measured, bucketing);
  EXPECT_TRUE(changed);
  const auto prediction = replay(*changed, {});
  EXPECT_TRUE(prediction) << prediction.error().message();
  return prediction->compute_us;
}

// In the 66 ms the main thread had no core for 6 ms.
Told all_by_daemons() {
  auto job = job_of_small_parts();
  const double step_us = median(measure(job)->steps_us);
  return {.busy = 0.9, .daemon = 0.9, .waited = (kLonger - 1) * kTrulyUs / step_us};
}

constexpr const char* kFewParts = "uniform:600000";  // 4

TEST(CoreWaits, FewerPartsLeaveTheWorkersTheirCores) {
  const MeasuredJob measured = measured_with(all_by_daemons());
  EXPECT_NEAR(measured.core_waits.parts_per_step, 120, 1);
  EXPECT_NEAR(measured.core_waits.cost_of_parts, 500.0 / 600, 0.01);
  EXPECT_NEAR(compute_us(measured, "profile"), kLonger * kTrulyUs, 0.002 * kTrulyUs) << "as many parts as before";
  const double left =
      1 - 5.0 / 6 * (1 - 4.0 / 120);  // of what the daemons took: 5 of 6 parts of their work were for parts
  EXPECT_NEAR(compute_us(measured, kFewParts), (1 + left * (kLonger - 1)) * kTrulyUs, 0.005 * kTrulyUs);
}

TEST(CoreWaits, HalfAsManyPartsLeaveThemHalfOfIt) {
  const MeasuredJob measured = measured_with(all_by_daemons());
  const double left = 1 - 5.0 / 6 / 2;
  EXPECT_NEAR(compute_us(measured, "uniform:40000"), (1 + left * (kLonger - 1)) * kTrulyUs, 0.005 * kTrulyUs);
}

TEST(CoreWaits, WhatOtherProgramsTakeTheyGoOnTaking) {
  Told told = all_by_daemons();
  told.daemon = 0.01;
  EXPECT_NEAR(compute_us(measured_with(told), kFewParts), kLonger * kTrulyUs, 0.005 * kTrulyUs);
}

// The steps in which the machine paused are few, and replay predicts the usual one.
TEST(CoreWaits, APauseOfTheMachineIsNoUsualWaiting) {
  auto job = job_of_small_parts();
  tell(job, all_by_daemons());
  for (auto& node : job.nodes) {
    const auto first = std::ranges::find(node.trace.records, trace::TraceKind::kCores, &trace::TraceRecord::kind);
    ASSERT_NE(first, node.trace.records.end());
    auto cores = first->as<trace::CoresTrace>();
    cores.waited_us = kPeriodUs;
    *first = trace::TraceRecord(first->begin_us(), first->end_us(), cores);
  }
  const CoreWaits steady = measured_with(all_by_daemons()).core_waits, paused = core_waits_of(job, kSmallParts.links);
  EXPECT_EQ(paused.share, steady.share);
}

TEST(CoreWaits, MorePartsAndTracesThatDoNotTellChangeNothing) {
  const MeasuredJob measured = measured_with(all_by_daemons()), silent = measured_with({});
  EXPECT_DOUBLE_EQ(compute_us(measured, "uniform:4096"), compute_us(silent, "uniform:4096"));
  EXPECT_NEAR(compute_us(silent, kFewParts), kLonger * kTrulyUs, 0.005 * kTrulyUs);
}

}  // namespace
}  // namespace deft::replay
