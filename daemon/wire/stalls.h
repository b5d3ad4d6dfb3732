// The messages about workers that live but keep others waiting: see stall_watchdog.h and late_nodes.h.
#pragma once

#include <cstdint>
#include <string>

#include "core/model/buckets.h"

namespace deft::daemon::wire {

enum class Duty : std::uint8_t { kGradients, kDeclaration, kCollective };

struct Stalled {  // both ways: this worker owes something
  std::uint32_t rank = 0;
  std::string tensor = {};  // or a collective, or whose declaration
  std::uint64_t step = 0;   // of a tensor
  std::uint64_t age_ms = 0;
  Duty duty = Duty::kGradients;
};

struct Waiting {  // both ways: this bucket is ready on the sender, and the leader has not ordered it for long
  std::uint32_t group = 0;
  model::BucketIndex bucket = 0;
  std::uint64_t generation = 0;
};

// To a node: others have asked for this collective or declared this group. The node answers which of its workers have not.
struct Late {
  std::string collective = {};  // empty: a declaration
  std::uint32_t group = 0;
  std::uint64_t age_ms = 0;
};

}  // namespace deft::daemon::wire
