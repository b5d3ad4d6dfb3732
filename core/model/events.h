// The history of a run as plain data: each computation, transfer and update, with its times. A simulation gives a Timeline. In a file
// (`deft simulate --events`) each entry is an Event, which has names instead of numbers, and is written as a line of JSON.
//
//   for (const Event& event : events_of(timeline, "fifo", bucket_names, link_names)) out << event_line(event) << '\n';
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/model/buckets.h"

namespace deft::model {

enum class Stage : std::uint8_t { kForward = 1, kBackward = 2 };

// In these three structs buckets are numbered in forward order, as in the profile, and times are microseconds since the
// beginning of the run.
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
  AllReduceHalf half = AllReduceHalf::kBoth;
};
struct UpdateMark {
  std::uint32_t bucket;
  std::uint64_t generation;
  std::uint64_t first_step;
  std::uint64_t last_step;
  double at_us;  // when the data was there and the backward before that forward had used the old weights
};
// The history of one node.
struct Timeline {
  std::vector<ComputeSpan> compute;
  std::vector<SendSpan> sends;
  std::vector<UpdateMark> updates;
};

// One entry of a timeline, with names.
struct Event {
  std::string policy;
  std::string bucket;
  std::string link;                                      // empty unless `what` is a SendSpan
  std::variant<ComputeSpan, SendSpan, UpdateMark> what;  // its numbers of bucket and link are not used
};

// The entries of `timeline` with names: first all that compute, then all that send, then the updates. `bucket_names` and
// `link_names` have the name of each number.
std::vector<Event> events_of(const Timeline& timeline, std::string_view policy,
                             const std::vector<std::string>& bucket_names, const std::vector<std::string>& link_names);

// One JSON object without a line break; times with three digits behind the point.
std::string event_line(const Event& event);

}  // namespace deft::model
