// Writes the output of `deft simulate`: the table, the JSON list, and the lines of the event file.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "core/model/profile.h"
#include "core/sim/simulation.h"

namespace deft::tools {

// The simulation of one policy.
struct PolicyRun {
  std::string policy;
  double solve_us = 0;     // the real time that the policy needed to plan
  model::Profile profile;  // the profile with the buckets that the policy used
  sim::Outcome outcome;
};

void print_table(std::ostream& out, const model::Profile& profile, const std::vector<PolicyRun>& runs);
void print_json(const std::vector<PolicyRun>& runs);
void write_events(std::ostream& out, const PolicyRun& run);

}  // namespace deft::tools
