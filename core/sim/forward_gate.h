// Decides when a node may begin the forward of a bucket, and remembers the nodes that wait. Buckets have the scheduler's
// numbers.
//
//   if (gate.may_begin(node, bucket, step, leader_step)) start(node);   // otherwise the node waits
//   for (const auto node : gate.take_waiting(bucket)) ...               // when a generation of the bucket is complete
//   for (const auto node : gate.take_waiting_for_leader()) ...          // when the leader has begun another stage
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/sim/update_book.h"

namespace deft::sim {

class ForwardGate {
 public:
  explicit ForwardGate(const std::vector<std::uint64_t>& bucket_bytes)
      : book_(bucket_bytes), begun_(bucket_bytes.size()), waiting_(bucket_bytes.size()) {}

  [[nodiscard]] UpdateBook& book() { return book_; }

  // An error if the update comes too late, or if it does not merge the next steps.
  Result<void> decided(const sched::Update& update) { return book_.decided(update, begun_[update.bucket]); }

  bool may_begin(std::uint32_t node, model::BucketIndex bucket, std::uint64_t step, std::uint64_t leader_step) {
    if (step > leader_step) {  // the scheduler decides the updates that are due before a step when the leader begins it
      waiting_for_leader_.push_back(node);
      return false;
    }
    if (!book_.may_begin(bucket, step)) {
      waiting_[bucket].push_back(node);
      return false;
    }
    begun_[bucket] = std::max(begun_[bucket], step + 1);
    return true;
  }
  std::vector<std::uint32_t> take_waiting(model::BucketIndex bucket) { return std::exchange(waiting_[bucket], {}); }
  std::vector<std::uint32_t> take_waiting_for_leader() { return std::exchange(waiting_for_leader_, {}); }

 private:
  UpdateBook book_;
  std::vector<std::uint64_t> begun_;                 // [bucket]: how many steps have begun its forward on some node
  std::vector<std::vector<std::uint32_t>> waiting_;  // [bucket]: the nodes that wait for it
  std::vector<std::uint32_t> waiting_for_leader_;
};

}  // namespace deft::sim
