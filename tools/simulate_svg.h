// The timelines of a simulation as a picture.
#pragma once

#include <ostream>
#include <vector>

#include "tools/simulate_output.h"

namespace deft::tools {

// One panel a policy, all to the same scale: a lane for compute and one for each link, colours by bucket, stripes where
// a generation has another parity than its neighbours, hatched where compute waits, a mark where an update is applied.
void draw_timelines(std::ostream& out, const model::Profile& profile, const std::vector<PolicyRun>& runs);

}  // namespace deft::tools
