// Jobs whose policy was chosen, or changed, while they ran.
#include "core/replay/policies_in_force.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/policy_traits.h"
#include "core/replay/job_timeline.h"
#include "core/replay/replay.h"
#include "core/sched/policy_chooser.h"
#include "tests/replay/traced_simulation.h"

namespace deft::replay {
namespace {

using model::PolicyReason;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr TimeUs kBeforeTheTrace = 1000;

trace::PolicyTrace in_force(const std::string& policy, std::uint64_t step, PolicyReason why) {
  return {.step = step,
          .partition_bytes = sched::LaunchSizes{}.partition_bytes,
          .credit_bytes = sched::LaunchSizes{}.credit_bytes,
          .policy = static_cast<std::uint8_t>(find_policy(policy)->id),
          .reason = static_cast<std::uint8_t>(why)};
}

// A job that runs with `runs`, and whose option is `policy`.
JobTrace job_of(const std::string& policy, const std::string& runs, const std::vector<trace::PolicyTrace>& policies) {
  auto job = traced_simulation(busy_profile(0.015), runs, {.steps = 20, .nodes = {{}, {}}});
  for (auto& node : job.nodes) node.trace.header.options["policy"] = policy;
  auto& records = job.nodes[0].trace.records;
  std::vector<trace::TraceRecord> told;
  for (const auto& one : policies) told.emplace_back(kBeforeTheTrace, kBeforeTheTrace, one);
  records.insert(records.begin(), told.begin(), told.end());
  return job;
}

double step_us(const MeasuredJob& measured, const WhatIf& what_if = {}) {
  const auto prediction = replay(measured, what_if);
  EXPECT_TRUE(prediction) << prediction.error().message();
  return prediction ? prediction->step_us_p50 : 0;
}

TEST(PoliciesInForce, AutoIsReplayedAsWhatItHadInForce) {
  const auto measured = measure(job_of("auto", "fifo", {in_force("fifo", 0, PolicyReason::kBegan)}));
  ASSERT_TRUE(measured) << measured.error().message();
  const auto unknown = measure(job_of("auto", "fifo", {}));
  const auto plain = measure(job_of("fifo", "fifo", {}));
  ASSERT_TRUE(unknown && plain);
  EXPECT_LT(step_us(*unknown), 0.95 * step_us(*plain)) << "it would choose another one";
  EXPECT_EQ(step_us(*measured), step_us(*plain));
  EXPECT_EQ(step_us(*measured, {.policy = "auto"}), step_us(*plain));
  EXPECT_LT(step_us(*measured, {.policy = "bytescheduler"}), 0.95 * step_us(*plain));
  EXPECT_EQ(replay(*measured, {})->policy, "auto");
  EXPECT_FALSE(measured->in_force->sizes) << "they are those of the options";
  EXPECT_THAT(measured->decisions, ElementsAre("fifo, with which the job began"));
  EXPECT_THAT(measured->problems, IsEmpty());
}

TEST(PoliciesInForce, AutoHasItsTunedSizesAndItsFusedBuckets) {
  auto tuned = in_force("bytescheduler", 3, PolicyReason::kForecast);
  tuned.partition_bytes = 64 << 10, tuned.credit_bytes = 64 << 10;
  const auto small = measure(job_of("auto", "bytescheduler", {tuned}));
  const auto own = measure(job_of("auto", "bytescheduler", {in_force("bytescheduler", 0, PolicyReason::kForecast)}));
  ASSERT_TRUE(small && own);
  EXPECT_EQ(small->in_force->sizes, (sched::LaunchSizes{64 << 10, 64 << 10}));
  auto set = measure(job_of("bytescheduler", "bytescheduler", {}));
  ASSERT_TRUE(set);
  EXPECT_EQ(step_us(*own), step_us(*set));
  set->options["partition_bytes"] = set->options["credit_bytes"] = "65536";
  EXPECT_EQ(step_us(*small), step_us(*set));
  EXPECT_LT(step_us(*small), 0.99 * step_us(*own));
  EXPECT_THAT(small->decisions, ElementsAre(HasSubstr("bytescheduler (parts 64 KB, credit 64 KB) from step 3 on")));
  auto fused = in_force("fifo", 0, PolicyReason::kBegan);
  const auto apart = measure(job_of("auto", "fifo", {fused}));
  fused.fused_bytes = 25 << 20;
  const auto together = measure(job_of("auto", "fifo", {fused}));
  ASSERT_TRUE(apart && together);
  EXPECT_GT(step_us(*together), 1.05 * step_us(*apart)) << "all gradients go when the last one has come";
  EXPECT_THAT(together->decisions, ElementsAre(HasSubstr("fifo (25 MB)")));
}

// It begins with fifo, tries another one at step 5, and goes back at step 8.
std::vector<trace::PolicyTrace> refused_trial() {
  auto back = in_force("fifo", 8, PolicyReason::kNoBetter);
  back.before_us = 90'200, back.after_us = 92'000;
  return {in_force("fifo", 0, PolicyReason::kBegan), in_force("bytescheduler", 5, PolicyReason::kForecast), back};
}

TEST(PoliciesInForce, WhatWasInForceInMostOfTheTracedStepsCounts) {
  const auto job = job_of("auto", "fifo", refused_trial());
  const auto plain = measure(job_of("fifo", "fifo", {}));
  const auto measured = measure(job);
  ASSERT_TRUE(measured && plain);
  EXPECT_EQ(measured->in_force->policy, "fifo");
  EXPECT_EQ(measured->steps_us.size(), plain->steps_us.size() - 3) << "steps 5 to 7 were others";
  EXPECT_THAT(measured->problems, ElementsAre(HasSubstr("replay has fifo, as 14 of 17 steps had")));
  EXPECT_THAT(
      measured->decisions,
      ElementsAre(HasSubstr("the job began"), HasSubstr("from step 5 on: the simulator expected it to be faster"),
                  "fifo from step 8 on, because bytescheduler (parts 1024 KB, credit 4096 KB) was no better: a "
                  "step took 92.0 ms, and 90.2 ms before"));
}

TEST(PoliciesInForce, WhatWasDecidedBeforeAndBehindTheTracedStepsIsNotTold) {
  auto policies = refused_trial();
  for (auto& policy : policies) policy.step = policy.step == 8 ? 100 : policy.step / 5;  // 0, 1 and 100
  const auto measured = measure(job_of("auto", "bytescheduler", policies));
  ASSERT_TRUE(measured);
  EXPECT_THAT(measured->decisions, ElementsAre(HasSubstr("bytescheduler")));
  EXPECT_EQ(measured->in_force->policy, "bytescheduler");
  EXPECT_THAT(measured->problems, IsEmpty());
}

TEST(PoliciesInForce, ThePolicyThatTheUserHasSetMeanwhileIsTheJobs) {
  const auto measured = measure(
      job_of("fifo", "p3", {in_force("fifo", 0, PolicyReason::kBegan), in_force("p3", 6, PolicyReason::kUser)}));
  ASSERT_TRUE(measured);
  EXPECT_FALSE(measured->in_force);
  EXPECT_EQ(policy_of(measured->options), "p3");
  EXPECT_THAT(measured->decisions, ElementsAre(HasSubstr("fifo"), "p3 from step 6 on: the user set it"));
  EXPECT_THAT(measured->problems, ElementsAre(HasSubstr("the policy changed")));
  const auto chosen = measure(
      job_of("fifo", "bytescheduler",
             {in_force("fifo", 0, PolicyReason::kBegan), in_force("bytescheduler", 1, PolicyReason::kConfirmed)}));
  ASSERT_TRUE(chosen);
  EXPECT_EQ(policy_of(chosen->options), "auto") << "the user has set it while the job ran";
  EXPECT_EQ(chosen->in_force->policy, "bytescheduler");
}

TEST(PoliciesInForce, OfAnotherGroupTellNothing) {
  auto other = in_force("p3", 0, PolicyReason::kForecast);
  other.group = 7;
  const auto measured = measure(job_of("auto", "fifo", {other}));
  ASSERT_TRUE(measured);
  EXPECT_FALSE(measured->in_force);
}

TEST(PoliciesInForce, AreMarkedOnTheTimelineOnce) {
  auto job = job_of("auto", "fifo", refused_trial());
  auto& records = job.nodes[0].trace.records;
  records.insert(records.begin(), records.front());
  const TimeUs later_us = beginning_of(job) + 5000;
  records.emplace_back(later_us, later_us, in_force("p3", 9, PolicyReason::kUser));
  const auto timeline = make_timeline(job);
  std::vector<std::string> names;
  std::vector<TimeUs> times_us;
  for (const auto& slice : timeline.slices) {
    if (slice.category != "policy") continue;
    EXPECT_EQ(timeline.tracks[slice.track].name, "policy");
    EXPECT_EQ(slice.begin_us, slice.end_us);
    names.push_back(slice.name), times_us.push_back(slice.begin_us);
  }
  EXPECT_THAT(names, ElementsAre("fifo", HasSubstr("bytescheduler"), "fifo", "p3"));
  EXPECT_THAT(times_us, ElementsAre(0, 0, 0, 5000)) << "the time before the trace does not count";
}

// A job whose workers wait for all updates before forward, as DDP's and TensorFlow's do.
TEST(PoliciesInForce, AutoChoosesForWorkersThatWaitAsThoseOfTheTrace) {
  const sim::Options waits{.steps = 40, .nodes = {{}, {}}, .overlaps_forward = false};
  auto truth = busy_profile(0.015);
  for (auto& link : truth.links) link.latency_us = 400;
  for (auto& bucket : truth.buckets) bucket.forward_us = 4500;
  const auto measured = measure(traced_simulation(truth, "bytescheduler", waits));
  ASSERT_TRUE(measured) << measured.error().message();
  ASSERT_FALSE(measured->overlaps_forward);
  double best_us = 1e12;
  for (const auto& choice : sched::PolicyChooser::candidates()) {
    auto as_chosen = *measured;
    as_chosen.options["policy"] = "auto";
    as_chosen.in_force = choice;
    best_us = std::min(best_us, step_us(as_chosen));
  }
  EXPECT_LT(step_us(*measured, {.policy = "auto"}), 1.011 * best_us);
}

}  // namespace
}  // namespace deft::replay
