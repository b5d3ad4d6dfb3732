// Which steps of a long trace a picture shows, if it has no room for all: whole steps, spread evenly over the trace.
//
//   JobTimeline timeline = make_timeline(job);
//   const auto sample = sample_steps(timeline, step_spans(job), 400'000);
//   if (!sample.has_all) ... "of sample.steps_of_trace steps sample.steps.size() are shown", and timeline.slices has theirs alone
//
// Steps are those of the leader's first worker. A step's picture is all that goes on between its forward and the next one, on all nodes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/replay/job_timeline.h"

namespace deft::replay {

struct StepSpan {
  std::uint64_t step = 0;
  TimeUs begin_us = 0, end_us = 0;  // since the beginning of the trace
};

// The whole steps that steps_of() has, ascending.
std::vector<StepSpan> step_spans(const JobTrace& job);

struct StepSample {
  bool has_all = true;               // the picture has the whole trace
  bool is_cut = false;               // there is no room for a single step: some of its slices are left out, too
  std::vector<StepSpan> steps = {};  // that are shown; empty: all, or there are no whole steps
  std::size_t steps_of_trace = 0;

  // Whether the picture has what went on then.
  [[nodiscard]] bool shows(TimeUs begin_us, TimeUs end_us) const;
};

// Leaves at most `most` slices in the timeline. Marks of policies stay, as long as there is room for them.
StepSample sample_steps(JobTimeline& timeline, const std::vector<StepSpan>& steps, std::size_t most);

}  // namespace deft::replay
