// The records by which a worker hears of a plan.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/shm/layout.h"
#include "daemon/node/gradients.h"
#include "daemon/wire/messages.h"

namespace deft::daemon {

// The records by which a worker gets a plan: for each range of tensors with the same dates a PLAN and its PLAN_GENERATIONs. An error
// if a tensor lies in buckets with different dates.
Result<std::vector<shm::Record>> plan_records(const wire::PlanOrder& order, const Gradients& gradients);

}  // namespace deft::daemon
