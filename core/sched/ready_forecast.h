// Forecasts when the buckets that backward has not produced yet will be ready, from a profile and from the last steps.
//
//   ReadyForecast forecast(setup.buckets.size());
//   forecast.backward_began(step, now_us);
//   forecast.ready(bucket, step, now_us);
//   forecast.next_us(ranks, ranks[bucket]);   // when the next bucket is expected that is more urgent than `bucket`
//
// All times are in microseconds of the driver's clock. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/clock.h"
#include "core/sched/scheduler.h"

namespace deft::sched {

class ReadyForecast {
 public:
  explicit ReadyForecast(std::size_t buckets);

  // Takes the times of buckets that were not seen yet from `profile`.
  void learn(const model::Profile& profile);
  // True if some bucket was neither seen nor learned.
  [[nodiscard]] bool is_incomplete() const;

  void backward_began(std::uint64_t step, TimeUs now_us);
  void ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us);

  // The time when the next bucket with a rank below `rank` is expected. Nothing if no such bucket comes in this backward. 0 in
  // the very first step without a profile, because any time is possible.
  [[nodiscard]] std::optional<double> next_us(std::span<const std::uint32_t> ranks, std::uint64_t rank) const;
  // The time when `bucket` is expected. Nothing if it is ready, if backward does not run, or if it was never seen.
  [[nodiscard]] std::optional<double> ready_us(model::BucketIndex bucket) const;

 private:
  void begin(std::uint64_t step, TimeUs now_us);

  std::vector<double> offset_us_;              // [bucket]: from the beginning of backward; negative: not known yet
  std::vector<model::BucketIndex> by_offset_;  // the buckets in the order in which they are expected
  mutable std::size_t passed_ = 0;             // so many first entries of by_offset_ are ready
  std::vector<bool> is_ready_;
  std::size_t missing_;  // buckets that are not ready in this step
  bool running_ = false;
  std::uint64_t step_ = 0;
  TimeUs began_us_ = 0;
};

}  // namespace deft::sched
