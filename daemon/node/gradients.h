// A node's account of one group of gradients: who has handed in what, and which bytes are reduced. No I/O.
//
// A CommTask is one bucket of one generation, with ByteScheduler's calls (paper, section 4.1). It is enqueued by the first
// tensor that a worker hands in, or by the first launch that the leader orders. It becomes ready when every local worker has
// handed in all tensors that overlap the bucket. The leader's scheduler cuts it into SubCommTasks, which start and finish
// one by one. It ends when all its bytes are reduced: no byte twice, none left out (conservation).
//
//   Gradients gradients(specs, layout, workers);
//   gradients.set_buckets(buckets);
//   auto ready = gradients.notify_ready(worker, {first, count}, generation, dates, slot, now_us);  // buckets ready now
//   auto ended = gradients.notify_finish(bucket, generation, offset, bytes);                // tensors that are complete now
//
// Reactor thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "daemon/node/bucket_map.h"
#include "daemon/node/scattered_parts.h"

namespace deft::daemon {

struct TensorRange {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

struct FinishedTensors {
  TensorRange tensors;
  std::uint64_t generation = 0;
};

// Must be the same for a generation on all workers; otherwise they would apply it at different steps. See model::UpdateWindow.
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
  bool ordered = false;              // by the leader: other nodes wait, too
};

class Gradients {
 public:
  Gradients(std::vector<model::TensorSpec> specs, model::ArenaLayout layout, std::size_t workers);

  // See BucketMap::set_buckets().
  Result<void> set_buckets(std::vector<model::Bucket> buckets) { return map_.set_buckets(std::move(buckets)); }

  // Worker `worker` hands in `tensors` of `generation` in `slot`. Gives the buckets that became ready. kViolation for a
  // tensor that does not exist, comes twice, too early or in the wrong slot. kMismatch if workers merge different steps into
  // the generation, which happens if only some of them have flushed.
  Result<std::vector<model::BucketIndex>> notify_ready(std::size_t worker, TensorRange tensors,
                                                       std::uint64_t generation, const GenerationDates& dates,
                                                       std::uint32_t slot, TimeUs now_us);

  [[nodiscard]] bool is_ready(model::BucketIndex bucket, std::uint64_t generation) const;
  // All buckets that a part touches are ready. An all-gather is ready when its reduce-scatter has finished here.
  [[nodiscard]] bool is_ready(const model::BucketPiece& part, std::uint64_t generation,
                              model::AllReduceHalf half = model::AllReduceHalf::kBoth) const;

  // The leader ordered this part of the bucket, or half of its all-reduce. A part may run on over the buckets behind it, if they
  // lie next to it in memory of the same type. An all-gather has the bytes of one reduce-scatter that was ordered before.
  // kViolation for a part that cannot be; kMismatch if the leader's dates are not the workers'.
  Result<void> start(model::BucketIndex bucket, std::uint64_t generation, const GenerationDates& dates,
                     std::uint64_t offset, std::uint64_t bytes, TimeUs now_us,
                     model::AllReduceHalf half = model::AllReduceHalf::kBoth);

  // Bytes [offset, offset + bytes) of the bucket, as started, are reduced. Gives the tensors that are complete now; a
  // reduce-scatter completes none. The generations of a tensor come in order: if a younger one is complete first, on another
  // link, it waits for the older one.
  Result<std::vector<FinishedTensors>> notify_finish(model::BucketIndex bucket, std::uint64_t generation,
                                                     std::uint64_t offset, std::uint64_t bytes,
                                                     model::AllReduceHalf half = model::AllReduceHalf::kBoth);

  // Buckets that local workers owe, and for which a worker or a launch has waited since before `before_us`.
  [[nodiscard]] std::vector<Owed> owed(TimeUs before_us) const;
  // The oldest bucket that is ready here and not ordered since before `before_us`.
  [[nodiscard]] std::optional<Owed> unordered(TimeUs before_us) const;
  // What local workers owe for this bucket of `generation`, even if nothing was handed in.
  [[nodiscard]] Owed missing(model::BucketIndex bucket, std::uint64_t generation) const;
  [[nodiscard]] bool idle() const { return tasks_.empty(); }

  [[nodiscard]] const BucketMap& map() const { return map_; }
  [[nodiscard]] const std::vector<model::TensorSpec>& specs() const { return map_.specs(); }
  [[nodiscard]] const model::ArenaLayout& layout() const { return map_.layout(); }
  [[nodiscard]] const std::vector<model::Bucket>& buckets() const { return map_.buckets(); }
  [[nodiscard]] std::uint64_t finished_generations() const { return finished_generations_; }

 private:
  struct CommTask {  // one bucket of one generation
    TimeUs first_us = 0;
    TimeUs ready_us = 0;        // 0: not ready
    std::uint32_t missing = 0;  // pairs of worker and tensor that are still owed
    GenerationDates dates;
    std::uint64_t ordered_bytes = 0;
    std::uint64_t finished_bytes = 0;
  };
  using TaskKey = std::pair<std::uint64_t, model::BucketIndex>;  // generation first: in the order of age

  Result<CommTask*> enqueue(model::BucketIndex bucket, std::uint64_t generation, const GenerationDates& dates,
                            TimeUs now_us);
  Result<void> finish_piece(const model::BucketPiece& piece, std::uint64_t generation,
                            std::vector<FinishedTensors>& ended);
  void report_in_order(std::uint32_t tensor, std::vector<FinishedTensors>& ended);
  [[nodiscard]] Result<void> check_ready(std::size_t worker, std::uint32_t tensor, std::uint64_t generation) const;
  void collect_workers(Owed& owed) const;

  BucketMap map_;
  ScatteredParts halves_;
  std::size_t workers_;
  std::vector<std::vector<std::uint64_t>> next_;  // [worker][tensor]: next generation
  std::vector<std::uint64_t> complete_;           // [tensor]: generations reduced
  std::vector<std::map<std::uint64_t, std::uint64_t>>
      remaining_;  // [tensor]: generation -> bytes left; 0: waits for older ones
  std::map<TaskKey, CommTask> tasks_;
  std::uint64_t finished_generations_ = 0;
};

}  // namespace deft::daemon
