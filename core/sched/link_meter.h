// Estimates the cost of a link from the times of its parts.
//
//   LinkMeter meter({"gloo:eth0", 200, 1000});   // the guess to begin with
//   meter.add(part_bytes, part_us);
//   const model::LinkModel now = meter.model();
//
// The time of a part includes waiting for slower nodes and disturbances. So only the quicker ones of the newest parts count:
// the upper third of the throughputs. Small parts give the latency, after the time of their bytes is taken off. Parts that
// were in flight together shared the wire in an unknown proportion. They count as one part, and say nothing about the latency.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <utility>

#include "core/model/profile.h"
#include "core/sched/recent.h"

namespace deft::sched {

class LinkMeter {
 public:
  explicit LinkMeter(model::LinkModel guess) : model_(std::move(guess)) {}

  // Adds a part. `us` counts from its start or, if it overlapped with the part before it, from the end of that part, whichever
  // is later.
  void add(std::uint64_t bytes, double us, bool overlapped = false);
  [[nodiscard]] const model::LinkModel& model() const { return model_; }

 private:
  struct Sample {
    double bytes;
    double us;
    bool overlapped = false;
  };
  static constexpr std::size_t kSamples = 24;  // the samples that are kept, so that a change shows within some steps
  static constexpr std::size_t kLeast = 4;     // with fewer samples the guess stays

  [[nodiscard]] double latency_us() const;
  [[nodiscard]] double bytes_per_us() const;

  model::LinkModel model_;
  Sample run_{0, 0};                // the last part, together with the parts that it overlapped
  Recent<Sample, kSamples> large_;  // parts whose bytes dominate
  Recent<Sample, kSamples> small_;  // parts whose latency does
};

}  // namespace deft::sched
