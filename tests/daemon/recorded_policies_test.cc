// What files tell of the policies of a job.
#include <gtest/gtest.h>

#include <limits>
#include <utility>
#include <vector>

#include "core/base/policy_traits.h"
#include "core/model/policy_reason.h"
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

TEST_F(Recording, AFileThatBeginsLaterHasTheNewestPolicyOfEachGroup) {
  make("");
  ASSERT_TRUE(begin());
  recorder_->policy_changed(policy_of(0, 3, "p3"), 1000);
  recorder_->policy_changed(policy_of(0, 5, "bytescheduler"), 1100);
  recorder_->policy_changed(policy_of(1, 4, "usbyte"), 1200);
  ASSERT_TRUE(obey({ipc::TraceAction::kStart, folder_.string()}));
  recorder_->policy_changed(policy_of(1, 9, "fifo"), 1300);
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

TEST_F(Recording, ADumpHasThePolicyThatCameIntoForceLongAgo) {
  make("");
  ASSERT_TRUE(begin());
  recorder_->policy_changed(policy_of(0, 3, "p3"), 1000);
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
