// Which updates of each bucket are due and whether their data has arrived. It also checks the scheduler: every byte of a
// generation once, every step merged once and in order, no update made known too late.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "core/base/status.h"
#include "core/sched/scheduler.h"

namespace deft::sim {

class UpdateBook {
 public:
  // `bucket_bytes` by the scheduler's numbers, as all buckets here.
  explicit UpdateBook(std::vector<std::uint64_t> bucket_bytes);

  // `forward_step`: the last step whose forward of the bucket has begun anywhere, plus one.
  Result<void> decided(const sched::Update& update, std::uint64_t forward_step);
  // True when a generation is now complete and somebody may have waited for it.
  Result<bool> sent(model::BucketIndex bucket, std::uint64_t generation, std::uint64_t bytes, double now_us);
  // No update that applies before the forward of `step` is incomplete.
  [[nodiscard]] bool may_begin(model::BucketIndex bucket, std::uint64_t step) const;

  struct Applied {
    sched::Update update;
    double complete_us;
  };
  // The updates that the forward of `step` is the first to see, once may_begin; each is given once.
  std::vector<Applied> apply(model::BucketIndex bucket, std::uint64_t step);
  // All that is complete, whatever its step: at the end.
  std::vector<Applied> apply_rest(model::BucketIndex bucket) { return apply(bucket, ~std::uint64_t{0}); }
  // For people: what the forward of `bucket` waits for.
  [[nodiscard]] std::string describe_wait(model::BucketIndex bucket, std::uint64_t step) const;

 private:
  struct Generation {
    std::uint64_t number = 0;
    std::uint64_t sent_bytes = 0;
    double complete_us = -1;
    std::optional<sched::Update> update;
  };
  struct Book {
    std::uint64_t bytes = 0;
    std::uint64_t next_step = 0;     // the first that no update has merged yet
    std::deque<Generation> pending;  // known and not yet applied, by number
  };
  Generation& generation(Book& book, std::uint64_t number);
  std::vector<Book> books_;
};

}  // namespace deft::sim
