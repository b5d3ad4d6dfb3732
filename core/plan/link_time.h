// The time of each link while a timetable is built: which part goes on which link, and when.
//
//   LinkTime links(problem, part_us);
//   Sending sending{generation, bucket, ready_us, bytes};
//   links.place(sending, links.best(links.idle(), sending));   // places one part; repeat until sending.rest is 0
//   links.placed(link)                                         // the parts of a link in the order in which they start
//
// Times are virtual microseconds. Not thread-safe.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "core/plan/problem.h"

namespace deft::plan {

// A bucket of a generation that is being sent.
struct Sending {
  std::uint32_t generation = 0;
  model::BucketIndex bucket = 0;
  double ready_us = 0;
  std::uint64_t rest = 0;  // bytes that are not placed yet
  double finish_us = 0;    // when the last placed part ends
};

// A placed part. Its offset is decided later, when it is known which neighbours stay together.
struct Placed {
  std::uint32_t generation = 0;
  model::BucketIndex bucket = 0;
  std::uint64_t bytes = 0;
  double start_us = 0;
};

class LinkTime {
 public:
  // A bucket that would occupy a link for longer than `part_us` is sent in parts. `problem` must outlive this object.
  LinkTime(const Problem& problem, double part_us)
      : problem_(problem), part_us_(part_us), free_us_(problem.links()), placed_(problem.links()) {}

  // The link that is free first.
  [[nodiscard]] std::size_t idle() const;
  // The link for the next part of `sending`: `idle`, unless the whole rest would finish earlier on another link than the next
  // part on `idle`.
  [[nodiscard]] std::size_t best(std::size_t idle, const Sending& sending) const;

  // Places the next part on `link`, as soon as the link is free and the bucket is ready. The part lasts `most_us` at most.
  void place(Sending& sending, std::size_t link, double most_us = std::numeric_limits<double>::infinity());
  // The shortest part of the bucket that is worth its latency.
  [[nodiscard]] double least_us(std::size_t link, model::BucketIndex bucket) const;
  // Keeps the link free until `until_us`.
  void wait(std::size_t link, double until_us) { free_us_[link] = std::max(free_us_[link], until_us); }

  [[nodiscard]] double free_us(std::size_t link) const { return free_us_[link]; }
  [[nodiscard]] const std::vector<Placed>& placed(std::size_t link) const { return placed_[link]; }

 private:
  [[nodiscard]] std::uint64_t piece(std::size_t link, const Sending& sending, double most_us) const;

  const Problem& problem_;
  double part_us_;
  std::vector<double> free_us_;
  std::vector<std::vector<Placed>> placed_;
};

}  // namespace deft::plan
