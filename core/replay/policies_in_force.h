// Reads from the leader's records which policies a traced job had in force, from which step on, and why.
//
//   const auto policies = policies_in_force(leader, *group);          // by step; empty: an older version wrote the trace, or plans decide
//   const auto* most = in_force_in_most(policies, steps);             // null: not known
//   for (const std::string& text : decisions(policies, steps)) ...    // "bytescheduler (...) from step 12 on: the simulator expected ..."
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/policy_reason.h"
#include "core/replay/worker_steps.h"
#include "core/sched/policy_change.h"
#include "core/trace/trace_file.h"

namespace deft::replay {

struct PolicyInForce {
  std::uint64_t step = 0;  // from its backward on
  TimeUs recorded_us = 0;
  sched::PolicyChoice choice;
  sched::LaunchSizes sizes;
  model::PolicyReason why = model::PolicyReason::kBegan;
  double before_us = 0,
         after_us = 0;  // of a step under the earlier policy, and under the policy that was tried; 0: not measured

  [[nodiscard]] bool is_same(const PolicyInForce& other) const {
    return choice == other.choice && sizes == other.sizes;
  }
  // Deft chose it, and no user.
  [[nodiscard]] bool is_own() const { return why != model::PolicyReason::kBegan && why != model::PolicyReason::kUser; }
};

// Ascending by step.
std::vector<PolicyInForce> policies_in_force(const trace::NodeTrace& leader, const trace::TraceGroup& group);

// Null: the step comes before the first of them.
const PolicyInForce* in_force_at(const std::vector<PolicyInForce>& policies, std::uint64_t step);

// In most of the steps. Of two the later one.
const PolicyInForce* in_force_in_most(const std::vector<PolicyInForce>& policies, const std::vector<WorkerStep>& steps);

// "fifo (25 MB)".
std::string to_text(const PolicyInForce& policy);

// The policy in force when the first of the steps began, and each decision until the last step ended. Sentences without a full stop.
std::vector<std::string> decisions(const std::vector<PolicyInForce>& policies, const std::vector<WorkerStep>& steps);

}  // namespace deft::replay
