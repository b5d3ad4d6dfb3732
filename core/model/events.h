// What happened when: computing, sending and updating, as plain data. A simulation gives a Timeline; for files each entry is an
// Event, which has names instead of numbers, and a line of JSON (`deft simulate --events`).
//
//   for (const Event& event : events_of(timeline, "fifo", bucket_names, link_names)) out << event_line(event) << '\n';
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace deft::model {

enum class Stage : std::uint8_t { kForward = 1, kBackward = 2 };

// Buckets are numbered in forward order, as in the profile; times are microseconds since the beginning.
struct ComputeSpan {
  Stage stage;
  std::uint64_t step;
  std::uint32_t bucket;
  double start_us;
  double end_us;
};
struct SendSpan {
  std::uint32_t link;
  std::uint32_t bucket;
  std::uint64_t generation;
  std::uint64_t offset;
  std::uint64_t bytes;
  double start_us;
  double end_us;
};
struct UpdateMark {
  std::uint32_t bucket;
  std::uint64_t generation;
  std::uint64_t first_step;
  std::uint64_t last_step;
  double at_us;  // once the data is there and the backward before its forward has used the old weights
};
struct Timeline {  // of one node
  std::vector<ComputeSpan> compute;
  std::vector<SendSpan> sends;
  std::vector<UpdateMark> updates;
};

struct Event {
  std::string policy;
  std::string bucket;
  std::string link;                                      // of a SendSpan; empty in the others
  std::variant<ComputeSpan, SendSpan, UpdateMark> what;  // its numbers of bucket and link are not used
};

// The timeline's entries with the names of these buckets and links: computing first, then sending, then updating.
std::vector<Event> events_of(const Timeline& timeline, std::string_view policy,
                             const std::vector<std::string>& bucket_names, const std::vector<std::string>& link_names);

// One JSON object without a line break; times with three digits behind the point.
std::string event_line(const Event& event);

}  // namespace deft::model
