// Keeps which updates of each bucket are due, and whether their data has arrived. It also checks the scheduler: every byte of a
// generation is sent once, every step is merged once and in order, and no update comes too late. An error (kInternal) is a bug
// of the scheduler.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/status.h"
#include "core/sched/scheduler.h"

namespace deft::sim {

class UpdateBook {
 public:
  // `bucket_bytes` has the size of each bucket. All buckets have the scheduler's numbers.
  explicit UpdateBook(std::vector<std::uint64_t> bucket_bytes);

  // `forward_step` is the last step whose forward of the bucket has begun on some node, plus 1.
  Result<void> decided(const sched::Update& update, std::uint64_t forward_step);
  // True if a generation is now complete, so that a node may have waited for it. A reduce-scatter completes nothing.
  Result<bool> sent(model::BucketIndex bucket, const sched::Launch& launch, std::uint64_t bytes, double now_us);
  // True if all updates that apply before the forward of `step` are complete.
  [[nodiscard]] bool may_begin(model::BucketIndex bucket, std::uint64_t step) const;

  // Calls visit(update, complete_us) for the updates that no forward before that of `step` has seen. Call it when may_begin is true. Each
  // update is given once.
  template <typename Visit>
  void apply(model::BucketIndex bucket, std::uint64_t step, const Visit& visit) {
    auto& pending = books_[bucket].pending;
    auto rest = pending.begin();
    for (; rest != pending.end() && rest->update && rest->update->apply_step <= step && rest->complete_us >= 0; ++rest)
      visit(*rest->update, rest->complete_us);
    pending.erase(pending.begin(), rest);
  }
  // All complete updates, whatever their step. For the end of the run.
  template <typename Visit>
  void apply_rest(model::BucketIndex bucket, const Visit& visit) {
    apply(bucket, ~std::uint64_t{0}, visit);
  }
  // Says for people why the forward of `bucket` waits.
  [[nodiscard]] std::string describe_wait(model::BucketIndex bucket, std::uint64_t step) const;

 private:
  struct Generation {
    std::uint64_t number = 0;
    std::uint64_t reduced_bytes = 0;  // by whole launches and by reduce-scatters
    std::uint64_t sent_bytes = 0;     // that all nodes have
    double complete_us = -1;
    std::optional<sched::Update> update;
  };
  struct Book {
    std::uint64_t bytes = 0;
    std::uint64_t next_step = 0;      // the first step that no update has merged yet
    std::vector<Generation> pending;  // the few generations that are known and not applied yet, by number
  };
  Generation& generation(Book& book, std::uint64_t number);
  std::vector<Book> books_;
};

}  // namespace deft::sim
