// A node's account of one group of gradients: who has handed in what, and which bytes are reduced. No I/O.
//
// A CommTask is one bucket of one generation; it has ByteScheduler's calls (paper, section 4.1). It is enqueued by the
// first sign of it, becomes ready when every local worker has handed in all tensors that overlap the bucket, is
// partitioned into SubCommTasks by the leader's scheduler, which are started and finished one by one, and ends when all
// its bytes are reduced (conservation: no byte twice, none left out).
//
//   Gradients gradients(specs, layout, workers);
//   gradients.set_buckets(buckets);
//   auto ready = gradients.notify_ready(worker, {first, count}, generation, dates, slot, now_us);  // buckets ready now
//   auto ended = gradients.notify_finish(bucket, generation, offset, bytes);                // tensors that are complete now
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/model/bucket_run.h"
#include "core/model/buckets.h"
#include "core/model/tensors.h"

namespace deft::daemon {

struct TensorRange {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

struct FinishedTensors {
  TensorRange tensors;
  std::uint64_t generation = 0;
};

// What must be the same for a generation on all workers, or they apply it at different steps. See model::UpdateWindow.
struct GenerationDates {
  std::uint64_t last_step = 0;
  std::uint64_t cycle_step = 0;
  bool operator==(const GenerationDates&) const = default;
};

// A bucket of a generation that some workers owe, for stall reports.
struct Owed {
  model::BucketIndex bucket = 0;
  std::uint64_t generation = 0;
  TimeUs since_us = 0;               // first worker handed in, or the launch came
  std::vector<std::size_t> workers;  // local indices that have not handed everything in
  std::uint32_t tensor = 0;          // the first tensor that the first of them owes
};

class Gradients {
 public:
  Gradients(std::vector<model::TensorSpec> specs, model::ArenaLayout layout, std::size_t workers);

  // Checks that the buckets cover every region exactly once, and gives each its forward_position; they may be set once.
  Result<void> set_buckets(std::vector<model::Bucket> buckets);

  // Worker `worker` hands in `tensors` of `generation` in `slot`. Gives the buckets that are ready now. kViolation for
  // a tensor that does not exist, comes twice, too early or in the wrong slot; kMismatch where workers date the generation
  // differently, as they do when not all of them have flushed.
  Result<std::vector<model::BucketIndex>> notify_ready(std::size_t worker, TensorRange tensors,
                                                       std::uint64_t generation, const GenerationDates& dates,
                                                       std::uint32_t slot, TimeUs now_us);

  [[nodiscard]] bool is_ready(model::BucketIndex bucket, std::uint64_t generation) const;
  // Of all buckets that a part touches.
  [[nodiscard]] bool is_ready(const model::BucketPiece& part, std::uint64_t generation) const;

  // The leader ordered this part of the bucket, of a generation that it dates so. It may run on over the buckets behind it,
  // where they are next to it in memory of the same type. kViolation for one that cannot be, kMismatch as above.
  Result<void> start(model::BucketIndex bucket, std::uint64_t generation, const GenerationDates& dates,
                     std::uint64_t offset, std::uint64_t bytes, TimeUs now_us);

  // Bytes [offset, offset + bytes) of the bucket, as started, are reduced. Gives the tensors that are complete now, of each
  // tensor the generations in order: one that is complete before an older one (on another link) is told after it.
  Result<std::vector<FinishedTensors>> notify_finish(model::BucketIndex bucket, std::uint64_t generation,
                                                     std::uint64_t offset, std::uint64_t bytes);

  // Buckets that somebody waits for (a worker handed in, or a launch was ordered) since before `before_us`, and that
  // local workers owe.
  [[nodiscard]] std::vector<Owed> owed(TimeUs before_us) const;
  // The oldest bucket that is ready here and not ordered since before `before_us`.
  [[nodiscard]] std::optional<Owed> unordered(TimeUs before_us) const;
  // What local workers owe for this bucket of `generation`, whether or not anything was handed in.
  [[nodiscard]] Owed missing(model::BucketIndex bucket, std::uint64_t generation) const;
  [[nodiscard]] bool idle() const { return tasks_.empty(); }

  [[nodiscard]] const std::vector<model::TensorSpec>& specs() const { return specs_; }
  [[nodiscard]] const model::ArenaLayout& layout() const { return layout_; }
  [[nodiscard]] const std::vector<model::Bucket>& buckets() const { return buckets_; }
  [[nodiscard]] const std::vector<model::BucketIndex>& buckets_of(std::uint32_t tensor) const {
    return tensor_buckets_[tensor];
  }
  [[nodiscard]] std::uint64_t finished_generations() const { return finished_generations_; }
  [[nodiscard]] std::uint64_t slot_of(std::uint64_t generation) const { return generation % layout_.slots; }

 private:
  struct CommTask {  // one bucket of one generation
    TimeUs first_us = 0;
    TimeUs ready_us = 0;        // 0: not ready
    std::uint32_t missing = 0;  // (worker, tensor) pairs still owed
    GenerationDates dates;
    std::uint64_t ordered_bytes = 0;
    std::uint64_t finished_bytes = 0;
  };
  using TaskKey = std::pair<std::uint64_t, model::BucketIndex>;  // generation first: in the order of age

  Result<CommTask*> enqueue(model::BucketIndex bucket, std::uint64_t generation, const GenerationDates& dates,
                            TimeUs now_us);
  // Calls visit(piece) for each bucket of a part while it gives true; false where it did not or there are not so many bytes.
  template <typename Visit>
  bool for_each_piece(const model::BucketPiece& part, const Visit& visit) const {
    return model::for_each_piece(
        part, buckets_.size(), [this](model::BucketIndex bucket) { return buckets_[bucket].bytes; }, visit);
  }
  [[nodiscard]] Result<void> check_part(const model::BucketPiece& part) const;
  Result<void> finish_piece(const model::BucketPiece& piece, std::uint64_t generation,
                            std::vector<FinishedTensors>& ended);
  void tell_in_order(std::uint32_t tensor, std::vector<FinishedTensors>& ended);
  [[nodiscard]] Result<void> check_ready(std::size_t worker, std::uint32_t tensor, std::uint64_t generation) const;
  void map_tensors();
  void collect_workers(Owed& owed) const;

  std::vector<model::TensorSpec> specs_;
  model::ArenaLayout layout_;
  std::size_t workers_;
  std::vector<model::Bucket> buckets_;
  std::vector<std::vector<std::uint32_t>> bucket_tensors_;  // tensors that overlap each bucket
  std::vector<std::vector<model::BucketIndex>> tensor_buckets_;
  std::vector<std::uint64_t> extents_;            // padded bytes of each tensor
  std::vector<std::vector<std::uint64_t>> next_;  // [worker][tensor]: next generation
  std::vector<std::uint64_t> complete_;           // [tensor]: generations reduced
  std::vector<std::map<std::uint64_t, std::uint64_t>>
      remaining_;  // [tensor]: generation -> bytes left; 0: waits for older ones
  std::map<TaskKey, CommTask> tasks_;
  std::uint64_t finished_generations_ = 0;
};

}  // namespace deft::daemon
