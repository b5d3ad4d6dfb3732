// A timetable is a plan with the proof that the links can keep its dates. The planner builds and runs timetables and keeps the
// plan of the best one. Nobody executes a timetable.
//
//   const Evaluation result = evaluate(timetable, problem);   // runs it to its steady state
//
// Each link sends its parts in the order of its list: the list for cycle 0, then the same list for cycle 1, and so on. A part
// waits until its bucket is ready in the last step that its generation merges. In cycle c a part with `cycles_back` k belongs
// to cycle c - k: a stale part is sent when the more urgent parts of later steps leave room.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/model/plan.h"
#include "core/plan/problem.h"

namespace deft::plan {

// A part in the list of a link.
struct TimetablePart {
  model::BucketIndex bucket = 0;
  std::uint32_t generation = 0;  // its number in the cycle
  std::uint64_t offset = 0;      // in the bucket
  std::uint64_t bytes = 0;
  std::uint32_t cycles_back = 0;
};

struct Timetable {
  model::Plan plan;
  std::vector<std::vector<TimetablePart>> links;  // [link]: the parts of one cycle, in the order in which they start
  double part_us = 0;                             // that its builder was given

  [[nodiscard]] std::size_t parts() const {
    std::size_t count = 0;
    for (const auto& link : links) count += link.size();
    return count;
  }
};

// The result of running a timetable.
struct Evaluation {
  bool runs = false;   // false: the order of a link waits for a step that waits for that link
  double step_us = 0;  // in the steady state
};

// Runs `timetable` exactly. Each link keeps its order, and starts a part as soon as the link is free and the part is ready.
Evaluation evaluate(const Timetable& timetable, const Problem& problem);

// The timetable with the times that running it gives: step_us and compute_us of its plan. Nothing if it does not run, or if there is none.
std::optional<Timetable> timed(std::optional<Timetable> timetable, const Problem& problem);

}  // namespace deft::plan
