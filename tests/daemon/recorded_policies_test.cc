// What files tell of the decisions of a job's leader: policies, and what it takes links for.
#include <gtest/gtest.h>

#include <limits>
#include <utility>
#include <vector>

#include "core/base/policy_traits.h"
#include "core/model/policy_reason.h"
#include "core/trace/link_cost_trace.h"
#include "tests/daemon/recording.h"

namespace deft::daemon {
namespace {

using trace::TraceKind;

GroupPolicy policy_of(std::uint32_t group, std::uint64_t step, const std::string& name) {
  sched::PolicyChange change{
      .step = step, .choice = {.policy = name}, .reason = "", .why = model::PolicyReason::kConfirmed};
  change.sizes = {128 << 10, 1 << 20};
  change.before_us = 9000.4, change.after_us = 1e12;
  return {group, std::move(change)};
}

std::vector<trace::PolicyTrace> policies_in(const trace::NodeTrace& trace) {
  std::vector<trace::PolicyTrace> policies;
  for (const auto& record : trace.records)
    if (record.kind() == TraceKind::kPolicy) policies.push_back(record.as<trace::PolicyTrace>());
  return policies;
}

class RecordedDecisions : public Recording {
 protected:
  void change(GroupPolicy policy, TimeUs now_us) {
    scheduler_.policies.push_back(std::move(policy));
    recorder_->take_decisions(scheduler_, now_us);
  }
  void measure(const std::vector<double>& bytes_per_us, TimeUs now_us) {
    scheduler_.links.clear();
    for (const double rate : bytes_per_us) scheduler_.links.push_back({"gloo:lo", 200, rate});
    recorder_->take_decisions(scheduler_, now_us);
  }

  FakeScheduler scheduler_;
};

// Link and rate.
std::vector<std::pair<int, double>> link_costs_in(const trace::NodeTrace& trace) {
  std::vector<std::pair<int, double>> costs;
  for (const auto& record : trace.records)
    if (record.kind() == TraceKind::kLinkCost) {
      const auto cost = record.as<trace::LinkCostTrace>();
      EXPECT_EQ(cost.latency_us, 200);
      costs.emplace_back(cost.link, cost.bytes_per_us);
    }
  return costs;
}

TEST_F(RecordedDecisions, AFileHasTheCostOfEachLinkAndHowItChanges) {
  make("");
  ASSERT_TRUE(begin());
  measure({3, 4}, 1000);
  measure({3.5, 4}, 1100);
  ASSERT_TRUE(obey({ipc::TraceAction::kStart, folder_.string()}));
  measure({3.5, 4.004}, 1200);
  measure({3.5, 3}, 1300);
  using Costs = std::vector<std::pair<int, double>>;
  EXPECT_EQ(link_costs_in(written()), (Costs{{1, 4}, {0, 3.5}, {1, 3}})) << "a change of 0.1 % decides nothing";
}

TEST_F(RecordedDecisions, AFileThatBeginsLaterHasTheNewestPolicyOfEachGroup) {
  make("");
  ASSERT_TRUE(begin());
  change(policy_of(0, 3, "p3"), 1000);
  change(policy_of(0, 5, "bytescheduler"), 1100);
  change(policy_of(1, 4, "usbyte"), 1200);
  ASSERT_TRUE(obey({ipc::TraceAction::kStart, folder_.string()}));
  change(policy_of(1, 9, "fifo"), 1300);
  const auto policies = policies_in(written());
  ASSERT_EQ(policies.size(), 3U);
  const auto& first = policies[0];
  EXPECT_EQ(first.step, 5U);
  EXPECT_EQ(first.group, 0U);
  EXPECT_EQ(first.policy, static_cast<std::uint8_t>(PolicyId::kByteScheduler));
  EXPECT_EQ(first.partition_bytes, 128U << 10U);
  EXPECT_EQ(first.credit_bytes, 1U << 20U);
  EXPECT_EQ(first.before_us, 9000U);
  EXPECT_EQ(first.after_us, std::numeric_limits<std::uint32_t>::max());
  EXPECT_EQ(first.reason, static_cast<std::uint8_t>(model::PolicyReason::kConfirmed));
  EXPECT_EQ(policies[1].policy, static_cast<std::uint8_t>(PolicyId::kUsByte));
  EXPECT_EQ(policies[2].step, 9U);
}

TEST_F(RecordedDecisions, ADumpHasThePolicyThatCameIntoForceLongAgo) {
  make("");
  ASSERT_TRUE(begin());
  change(policy_of(0, 3, "p3"), 1000);
  for (std::uint64_t number = 0; number < trace::Recorder::kRecords / 4; ++number) step(number);
  recorder_->end(false);
  recorder_.reset();
  const auto dumps = dumps_in(folder_);
  ASSERT_EQ(dumps.size(), 1U);
  const auto policies = policies_in(dumps.begin()->second);
  ASSERT_EQ(policies.size(), 1U);
  EXPECT_EQ(policies[0].step, 3U);
}

}  // namespace
}  // namespace deft::daemon
