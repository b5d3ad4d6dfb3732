// Jobs whose leader took links for slower or faster than they were.
#include "core/replay/believed_links.h"

#include <gtest/gtest.h>

#include "core/plan/plan_limits.h"
#include "core/replay/replay.h"
#include "core/trace/link_cost_trace.h"
#include "tests/replay/traced_simulation.h"

namespace deft::replay {
namespace {

// Two links of this rate, of which the leader takes the second one for one of `second`.
constexpr double kRate = 25;
model::Profile two_links() {
  model::Profile profile = busy_profile();
  for (auto& link : profile.links) link.bytes_per_us = kRate;
  return profile;
}
std::vector<model::LinkModel> believed(double second) {
  return {{"gloo:eth0", 150, kRate}, {"gloo:eth1", 150, second}};
}

JobTrace traced(const std::string& policy, double second) {
  return traced_simulation(two_links(), policy, {.steps = 60, .nodes = {{}, {}}, .believed_links = believed(second)});
}

// As the leader's node records it.
void tell(JobTrace& job, TimeUs at_us, double second) {
  auto& records = job.nodes[0].trace.records;
  std::uint16_t link = 0;
  for (const auto& cost : believed(second))
    records.emplace_back(at_us, at_us, trace::LinkCostTrace{cost.latency_us, cost.bytes_per_us, link++});
  std::ranges::stable_sort(records, {}, &trace::TraceRecord::begin_us);
}

double error_of(const JobTrace& job) {
  const auto measured = measure(job);
  EXPECT_TRUE(measured) << measured.error().message();
  const auto now = replay(*measured, {});
  EXPECT_TRUE(now) << now.error().message();
  return std::abs(now->step_us_p50 / now->measured_step_us_p50 - 1);
}

TEST(BelievedLinks, AReplayOfTheTracedPolicyGoesByWhatTheLeaderBelieved) {
  auto job = traced("bytescheduler", kRate / 4);
  EXPECT_GT(error_of(job), 0.05) << "without it";
  tell(job, 0, kRate / 4);
  EXPECT_LT(error_of(job), 0.02);
}

// How many updates a step the plans of a leader have that takes the second link for one of this rate.
double planned_updates(double second) {
  auto setup = sim::setup_for(two_links(), "knapsack");
  setup.limits = plan::training_limits();
  auto scheduler = sched::make_scheduler(setup);
  const auto outcome =
      sim::simulate(**scheduler, two_links(),
                    {.steps = 160, .warmup_steps = 60, .nodes = {{}, {}}, .believed_links = believed(second)});
  EXPECT_TRUE(outcome);
  return outcome ? outcome->updates_per_step : 0;
}

double replayed_updates(const JobTrace& job) {
  const auto measured = measure(job);
  EXPECT_TRUE(measured) << measured.error().message();
  return measured ? replay(*measured, {})->updates_per_step : 0;
}

TEST(BelievedLinks, PlansAreThoseOfTheLeader) {
  ASSERT_GT(planned_updates(kRate), 1.05 * planned_updates(kRate / 2)) << "it takes the links for slower";
  for (const double second : {kRate, kRate / 2}) {
    auto job = traced("knapsack", second);
    tell(job, 0, second);
    EXPECT_NEAR(replayed_updates(job), planned_updates(second), 0.01) << second;
  }
}

// Before the meters have seen parts enough, costs are guesses.
TEST(BelievedLinks, TheUsualCostOfTheTracedStepsCounts) {
  auto job = traced("fifo", kRate);
  const auto steps = steps_of(job.leader()->trace, job.leader()->trace.groups[0], 0);
  ASSERT_GT(steps.size(), 20U);
  tell(job, 0, 1000);
  tell(job, steps[4].ended_us, 5);
  tell(job, steps.back().ended_us + 1, 7);
  const auto costs = believed_links(job.leader()->trace, steps, two_links().links);
  ASSERT_EQ(costs.size(), 2U);
  EXPECT_EQ(costs[0].bytes_per_us, kRate);
  EXPECT_EQ(costs[1].bytes_per_us, 5);
  EXPECT_EQ(costs[1].latency_us, 150);
}

TEST(BelievedLinks, ATraceThatTellsOfOneLinkAloneTellsNothing) {
  auto job = traced("fifo", kRate);
  const auto& leader = job.leader()->trace;
  const auto steps = steps_of(leader, leader.groups[0], 0);
  EXPECT_TRUE(believed_links(leader, steps, two_links().links).empty());
  job.nodes[0].trace.records.emplace_back(0, 0, trace::LinkCostTrace{150, kRate, 1});
  EXPECT_TRUE(believed_links(leader, steps, two_links().links).empty());
}

// Faster links are taken for as much faster, and another policy for what they are.
TEST(BelievedLinks, OtherLinksAreMistakenAlikeAndOtherPoliciesMistakeNone) {
  auto job = traced("bytescheduler", kRate / 4);
  const auto plain = measure(job);
  tell(job, 0, kRate / 4);
  const auto told = measure(job);
  ASSERT_TRUE(plain && told);
  const auto us = [](const MeasuredJob& measured, const WhatIf& what_if) {
    return replay(measured, what_if)->step_us_p50;
  };
  EXPECT_EQ(us(*told, {.policy = "p3"}), us(*plain, {.policy = "p3"}));
  const WhatIf slower{.link_speed = {{"gloo:eth0", 0.5}, {"gloo:eth1", 0.5}}};
  EXPECT_GT(us(*told, slower), us(*plain, slower));
}

}  // namespace
}  // namespace deft::replay
