// What `deft simulate` prints: the table, the JSON list, the lines of the event file.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "core/model/profile.h"
#include "core/sim/simulation.h"

namespace deft::tools {

struct PolicyRun {
  std::string policy;
  double solve_us = 0;     // real time that the policy took to plan
  model::Profile profile;  // with the buckets that it ran with
  sim::Outcome outcome;
};

void print_table(std::ostream& out, const model::Profile& profile, const std::vector<PolicyRun>& runs);
void print_json(std::ostream& out, const std::vector<PolicyRun>& runs);
void write_events(std::ostream& out, const PolicyRun& run);

}  // namespace deft::tools
