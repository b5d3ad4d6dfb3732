// A plan between core/model's plain data and its protobuf message (deft.Plan), as the leader gives it to the other nodes.
//
//   *order->mutable_plan() = to_message({epoch, step, plan});
//   auto plan = from_message(order.plan(), bucket_bytes, links);  // checked, and its hash computed anew
//   auto plan = parse_plan(json, bucket_bytes, links);            // the message's JSON form
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

// An error names the field: "plan.links[1].parts[4].bucket: 9, and there are 6 buckets". A plan whose hash is another
// than the message says is a mismatch.
Result<ScheduledPlan> from_message(const deft::Plan& message, std::span<const std::uint64_t> bucket_bytes,
                                   std::size_t links);

std::string to_json(const ScheduledPlan& dated);
Result<ScheduledPlan> parse_plan(std::string_view json, std::span<const std::uint64_t> bucket_bytes, std::size_t links);

}  // namespace deft::messages
