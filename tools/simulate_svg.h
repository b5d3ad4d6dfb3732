// Draws the timelines of a simulation (`deft simulate --svg`).
#pragma once

#include <ostream>
#include <vector>

#include "tools/simulate_output.h"

namespace deft::tools {

// Writes an SVG with one panel for each policy, all to the same scale. A panel has a row for compute and a row for each link.
// Colours show the bucket, and stripes tell generations of odd number from even ones. Hatching shows that compute waits, and a
// mark that an update is applied.
void draw_timelines(std::ostream& out, const model::Profile& profile, const std::vector<PolicyRun>& runs);

}  // namespace deft::tools
