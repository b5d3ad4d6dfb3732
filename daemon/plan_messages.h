// The records by which a worker hears of a plan.
#pragma once

#include <cstdint>
#include <vector>

#include "core/shm/layout.h"
#include "proto/plan.pb.h"

namespace deft::daemon {

// What a worker gets of a plan: PLAN and its PLAN_GENERATIONs.
std::vector<shm::Record> plan_records(std::uint32_t group, const deft::Plan& message);

}  // namespace deft::daemon
