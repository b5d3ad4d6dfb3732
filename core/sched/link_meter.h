// Estimates what a link costs from what its parts took.
//
//   LinkMeter meter({"gloo:eth0", 200, 1000});   // the guess to begin with
//   meter.add(part_bytes, part_us);
//   const model::LinkModel now = meter.model();
//
// A part's time includes waiting for slower nodes and whatever disturbed it, so of the newest parts the quicker ones
// count: the upper third of the throughputs. Small parts tell the latency, without the time of their bytes on the wire.
// Parts that were under way together share the wire in any proportion: they count as one, mostly the newest of them, and
// show no latency.
#pragma once

#include <cstdint>
#include <utility>

#include "core/model/profile.h"
#include "core/sched/recent.h"

namespace deft::sched {

class LinkMeter {
 public:
  explicit LinkMeter(model::LinkModel guess) : model_(std::move(guess)) {}

  // `us`: from its start, or from the end of the part before it where that is later and they overlapped.
  void add(std::uint64_t bytes, double us, bool overlapped = false);
  [[nodiscard]] const model::LinkModel& model() const { return model_; }

 private:
  struct Sample {
    double bytes;
    double us;
    bool overlapped = false;
  };
  static constexpr std::size_t kSamples = 24;  // remembered: a change shows within some steps
  static constexpr std::size_t kLeast = 4;     // before the guess is given up

  [[nodiscard]] double latency_us() const;
  [[nodiscard]] double bytes_per_us() const;

  model::LinkModel model_;
  Sample run_{0, 0};                // the last part, with those it overlapped
  Recent<Sample, kSamples> large_;  // parts whose bytes dominate
  Recent<Sample, kSamples> small_;  // parts whose latency does
};

}  // namespace deft::sched
