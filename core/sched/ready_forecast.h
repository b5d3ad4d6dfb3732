// When the buckets that backward has not produced yet will be ready: from a profile, and from what the last steps did.
//
//   ReadyForecast forecast(setup.buckets.size());
//   forecast.backward_began(step, now_us);
//   forecast.ready(bucket, step, now_us);
//   forecast.next_us(ranks, ranks[bucket]);   // the next bucket that is more urgent than `bucket`
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

  // Takes what `profile` says of buckets that have not been seen yet.
  void learn(const model::Profile& profile);
  // Some bucket has been neither seen nor learned.
  [[nodiscard]] bool is_incomplete() const;

  void backward_began(std::uint64_t step, TimeUs now_us);
  void ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us);

  // When the next bucket with a rank below `rank` is expected; nothing where no such bucket is to come in this
  // backward. In the very first step, without a profile, any time is possible: 0.
  [[nodiscard]] std::optional<double> next_us(std::span<const std::uint32_t> ranks, std::uint64_t rank) const;
  // When `bucket` is expected; nothing where it is ready, backward does not run, or it was never seen.
  [[nodiscard]] std::optional<double> ready_us(model::BucketIndex bucket) const;

 private:
  void begin(std::uint64_t step, TimeUs now_us);

  std::vector<double> offset_us_;              // from the beginning of backward; negative: not known yet
  std::vector<model::BucketIndex> by_offset_;  // the buckets in the order in which they are expected
  mutable std::size_t passed_ = 0;             // of by_offset_: all ready
  std::vector<bool> is_ready_;
  std::size_t missing_;  // buckets that are not ready in this step
  bool running_ = false;
  std::uint64_t step_ = 0;
  TimeUs began_us_ = 0;
};

}  // namespace deft::sched
