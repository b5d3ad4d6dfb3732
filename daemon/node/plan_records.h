// The records by which a worker hears of a plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/shm/layout.h"
#include "daemon/node/gradients.h"
#include "daemon/wire/messages.h"

namespace deft::daemon {

// All of a plan comes at once, so a worker cannot read it meanwhile. A worker that leaves 65,536 unread is taken for one
// that reads nothing.
inline constexpr std::size_t kMostPlanRecords = 60'000;

// The records by which a worker gets a plan: for each range of tensors with the same dates a PLAN and its PLAN_GENERATIONs. An error
// if a tensor lies in buckets with different dates, or if there are more than kMostPlanRecords.
Result<std::vector<shm::Record>> plan_records(const wire::PlanOrder& order, const Gradients& gradients);

}  // namespace deft::daemon
