// A job's trace as people look at it: tracks, and slices on them. The writers of trace viewers' formats (tools/) go through it.
//
//   JobTimeline timeline = make_timeline(job, Detail::kSegments);
//   for (const TrackSlice& slice : timeline.slices) ... timeline.tracks[slice.track] ...
//
// Each node has a track for each worker (its stages, and the gradients that it hands in), tracks for buckets that wait for a link,
// and tracks for each link. The leader's node has a track for policies, with a mark when a policy comes into force.
// Slices of one track nest or follow each other. So things that go on at once have a track each. The slices of one launch have the same
// flow on all nodes. On request each link also has tracks for what the node sends over it and what it receives. There a send and a receive
// that it fed have a flow of their own.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/replay/job_trace.h"

namespace deft::replay {

struct TimelineNode {
  std::uint32_t number = 0;
  std::string name;  // "node 0: hosta"
};

struct Track {
  std::uint32_t node = 0;
  std::string name;
};

struct TrackSlice {
  std::uint32_t track = 0;
  TimeUs begin_us = 0;  // since the beginning of the trace
  TimeUs end_us = 0;    // begin_us: it happened at once
  std::string name;
  std::string category;  // "compute", "gradient", "wait", "transfer", "stage", "policy", "send", "receive"
  std::vector<std::pair<std::string, std::uint64_t>> numbers;  // what else is known
  std::vector<std::uint64_t> flows = {};                       // arrows join slices of one flow
};

struct JobTimeline {
  std::vector<TimelineNode> nodes;  // whose traces are here
  std::vector<Track> tracks;
  std::vector<TrackSlice> slices;  // by track, then by begin; a slice comes before those that it contains
};

enum class Detail : std::uint8_t { kStages, kSegments };
JobTimeline make_timeline(const JobTrace& job, Detail detail = Detail::kStages);

// Flows of launches are smaller. Viewers read numbers of JSON as doubles, which are exact up to twice this one.
inline constexpr std::uint64_t kFirstSegmentFlow = std::uint64_t{1} << 52U;

// When the trace began, on the leader's clock. Answers of the clock may be much older: a file has those from before its beginning.
TimeUs beginning_of(const JobTrace& job);

}  // namespace deft::replay
