// A plan between core/model's plain data and its protobuf message (deft.Plan), as the leader gives it to the other nodes.
//
//   *order->mutable_plan() = to_message({epoch, step, plan});
//   auto plan = from_message(order.plan(), bucket_bytes);  // checked, and its hash computed anew
//   auto plan = parse_plan(json, bucket_bytes);            // the message's JSON form
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

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

// `bucket_bytes`: the sizes of the group's buckets. An error names the field: "plan.generations[1].apply_step: ...". A plan whose hash is another
// than the message says is a mismatch.
Result<ScheduledPlan> from_message(const deft::Plan& message, std::span<const std::uint64_t> bucket_bytes);

std::string to_json(const ScheduledPlan& dated);
Result<ScheduledPlan> parse_plan(std::string_view json, std::span<const std::uint64_t> bucket_bytes);

}  // namespace deft::messages
