// How a group's tensors and buckets lie in the arena: which tensors a bucket touches, and which buckets a tensor.
//
//   BucketMap map(specs, layout);
//   map.set_buckets(buckets);            // checked: they cover the arena exactly once
//   map.tensors_of(bucket); map.buckets_of(tensor);
//   map.check_part({bucket, offset, bytes});   // a part that the leader ordered
//
// Plain data; it does not change any more once the buckets are set.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/model/buckets.h"
#include "core/model/tensors.h"

namespace deft::daemon {

class BucketMap {
 public:
  BucketMap(std::vector<model::TensorSpec> specs, model::ArenaLayout layout);

  // Checks that the buckets cover every region exactly once, and gives each its forward_position. Once only.
  Result<void> set_buckets(std::vector<model::Bucket> buckets);

  [[nodiscard]] const std::vector<model::TensorSpec>& specs() const { return specs_; }
  [[nodiscard]] const model::ArenaLayout& layout() const { return layout_; }
  [[nodiscard]] const std::vector<model::Bucket>& buckets() const { return buckets_; }  // empty: not set yet
  [[nodiscard]] const std::vector<std::uint32_t>& tensors_of(model::BucketIndex bucket) const {
    return bucket_tensors_[bucket];
  }
  [[nodiscard]] const std::vector<model::BucketIndex>& buckets_of(std::uint32_t tensor) const {
    return tensor_buckets_[tensor];
  }
  [[nodiscard]] std::uint64_t extent_bytes(std::uint32_t tensor) const { return extents_[tensor]; }  // with its padding
  [[nodiscard]] std::uint64_t slot_of(std::uint64_t generation) const { return generation % layout_.slots; }

  // kViolation for a part that does not exist, cuts an element, or does not lie in one piece of memory of one type.
  [[nodiscard]] Result<void> check_part(const model::BucketPiece& part) const;
  // Calls visit(piece) for each bucket of a part until it gives false; false then, and if there are not so many bytes.
  template <typename Visit>
  bool for_each_piece(const model::BucketPiece& part, const Visit& visit) const {
    return model::for_each_piece(
        part, buckets_.size(), [this](model::BucketIndex bucket) { return buckets_[bucket].bytes; }, visit);
  }
  // The bytes of `tensor` that lie in `piece`.
  [[nodiscard]] std::uint64_t shared_bytes(const model::BucketPiece& piece, std::uint32_t tensor) const;

 private:
  void map_tensors();

  std::vector<model::TensorSpec> specs_;
  model::ArenaLayout layout_;
  std::vector<model::Bucket> buckets_;
  std::vector<std::vector<std::uint32_t>> bucket_tensors_;
  std::vector<std::vector<model::BucketIndex>> tensor_buckets_;
  std::vector<std::uint64_t> extents_;
};

}  // namespace deft::daemon
