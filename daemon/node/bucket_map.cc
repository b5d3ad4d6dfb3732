#include "daemon/node/bucket_map.h"

#include <algorithm>

namespace deft::daemon {

using model::BucketIndex;

BucketMap::BucketMap(std::vector<model::TensorSpec> specs, model::ArenaLayout layout)
    : specs_(std::move(specs)), layout_(std::move(layout)) {
  extents_.reserve(specs_.size());
  for (const auto& place : layout_.tensors) extents_.push_back(model::round_up(place.bytes, model::kTensorAlignBytes));
}

Result<void> BucketMap::set_buckets(std::vector<model::Bucket> buckets) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const auto& bucket : buckets) {
    const std::size_t element = model::dtype_bytes(bucket.dtype);
    if (element == 0 || bucket.bytes == 0 || bucket.bytes % element != 0 || bucket.offset % element != 0)
      return fail(ErrorKind::kViolation, "bucket '" + bucket.name + "' is no whole number of elements");
    ranges.emplace_back(bucket.offset, bucket.bytes);
  }
  std::sort(ranges.begin(), ranges.end());
  std::size_t next = 0;
  for (const auto& region : layout_.regions) {
    std::uint64_t at = region.offset;
    for (; next < ranges.size() && ranges[next].first == at && at < region.offset + region.bytes; ++next)
      at += ranges[next].second;
    if (at != region.offset + region.bytes)
      return fail(ErrorKind::kViolation, "the buckets do not cover the arena at byte " + std::to_string(at));
  }
  if (next != ranges.size()) return fail(ErrorKind::kViolation, "a bucket lies outside the arena");
  buckets_ = std::move(buckets);
  map_tensors();
  return {};
}

void BucketMap::map_tensors() {
  bucket_tensors_.assign(buckets_.size(), {});
  tensor_buckets_.assign(specs_.size(), {});
  std::vector<std::uint32_t> order(specs_.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto offset = [this](std::uint32_t t) { return layout_.tensors[t].offset; };
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return offset(a) < offset(b); });
  for (BucketIndex b = 0; b < buckets_.size(); ++b) {
    auto& bucket = buckets_[b];
    bucket.forward_position = ~0U;
    auto it = std::partition_point(order.begin(), order.end(),
                                   [&](std::uint32_t t) { return offset(t) + extents_[t] <= bucket.offset; });
    for (; it != order.end() && offset(*it) < bucket.offset + bucket.bytes; ++it) {
      bucket.forward_position = std::min(bucket.forward_position, specs_[*it].forward_position);
      bucket_tensors_[b].push_back(*it);
      tensor_buckets_[*it].push_back(b);
    }
  }
}

Result<void> BucketMap::check_part(const model::BucketPiece& part) const {
  if (part.bucket >= buckets_.size() || part.bytes == 0 || part.offset >= buckets_[part.bucket].bytes)
    return fail(ErrorKind::kViolation, "the leader ordered a part that does not exist");
  const model::Bucket& first = buckets_[part.bucket];
  const std::size_t element = model::dtype_bytes(first.dtype);
  if (part.offset % element != 0 || part.bytes % element != 0)
    return fail(ErrorKind::kViolation, "the leader ordered a part that cuts an element");
  std::uint64_t next = first.offset + part.offset;
  const bool one_piece = for_each_piece(part, [&](const model::BucketPiece& piece) {
    const model::Bucket& bucket = buckets_[piece.bucket];
    const bool follows = bucket.dtype == first.dtype && bucket.offset + piece.offset == next;
    next += piece.bytes;
    return follows;
  });
  if (!one_piece) return fail(ErrorKind::kViolation, "the leader ordered a part that does not lie in one piece");
  return {};
}

std::uint64_t BucketMap::shared_bytes(const model::BucketPiece& piece, std::uint32_t tensor) const {
  const std::uint64_t begin = buckets_[piece.bucket].offset + piece.offset, end = begin + piece.bytes;
  const std::uint64_t from = std::max(begin, layout_.tensors[tensor].offset);
  const std::uint64_t to = std::min(end, layout_.tensors[tensor].offset + extents_[tensor]);
  return from < to ? to - from : 0;
}

}  // namespace deft::daemon
