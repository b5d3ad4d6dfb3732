// Writes a job's timeline in the formats of trace viewers.
//
//   write_perfetto(out, timeline);      // opens in ui.perfetto.dev
//   write_chrome(out, timeline);        // JSON, for chrome://tracing and others
#pragma once

#include <ostream>

#include "core/replay/job_timeline.h"

namespace deft::tools {

// A node is a process. Arrows join the slices of one launch over all nodes, and each send with its receive. TrackEvent protobuf, and the
// trace event format.
void write_perfetto(std::ostream& out, const replay::JobTimeline& timeline);
void write_chrome(std::ostream& out, const replay::JobTimeline& timeline);

}  // namespace deft::tools
