// Plans on their way from the leader to the nodes, and their records on the way to the workers.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/model/plan.h"
#include "core/shm/layout.h"
#include "proto/plan.pb.h"

namespace deft::daemon {

deft::Plan plan_message(const model::Plan& plan, std::uint64_t epoch, std::uint64_t step);

// The plan of a message, with the hash that it was sent with; kMismatch where this node computes another.
Result<model::Plan> plan_of(const deft::Plan& message);

// What a worker gets of a plan: PLAN and its PLAN_GENERATIONs.
std::vector<shm::Record> plan_records(std::uint32_t group, const deft::Plan& message);

}  // namespace deft::daemon
