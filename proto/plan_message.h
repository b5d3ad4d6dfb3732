// A plan between core/model's plain data and its protobuf message (deft.Plan), as the leader gives it to the other nodes.
//
//   *order->mutable_plan() = to_message({epoch, step, plan});
//   auto plan = from_message(order.plan(), bucket_bytes);  // checked, and its hash computed anew
#pragma once

#include <cstdint>
#include <span>

#include "core/base/status.h"
#include "core/model/plan.h"
#include "proto/plan.pb.h"

namespace deft::messages {

// A plan, and from when on it holds: its cycles begin at `activation_step`.
struct ScheduledPlan {
  std::uint64_t epoch = 0;  // counts plans
  std::uint64_t activation_step = 0;
  model::Plan plan;
  bool operator==(const ScheduledPlan&) const = default;
};

deft::Plan to_message(const ScheduledPlan& dated);

// `bucket_bytes`: the sizes of the group's buckets. An error names the field: "plan.generations[1].apply_step: ...". If the plan's hash is
// another than the message says, the error is a kMismatch.
Result<ScheduledPlan> from_message(const deft::Plan& message, std::span<const std::uint64_t> bucket_bytes);

}  // namespace deft::messages
