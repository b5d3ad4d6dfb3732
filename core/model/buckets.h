// Buckets, their parts, and the cost of the links that carry them. Plain data.
//
// A bucket is a contiguous byte range of one slot of the arena. A part is a range of a bucket. A transfer carries a part, or
// goes on over several buckets:
//   for_each_piece({bucket, offset, bytes}, buckets.size(), bytes_of, [](const BucketPiece& piece) { ...; return true; });
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/model/dtype.h"

namespace deft::model {

using BucketIndex = std::uint32_t;  // buckets are numbered in the order of the arena: backward's production order
using LinkIndex = std::uint32_t;

// Which half of an all-reduce a launch does, or both. The halves are launches of their own: the reduce-scatter leaves each node with
// the sum of its own share of the bytes, and a later all-gather of the same bytes brings all shares to all nodes.
enum class AllReduceHalf : std::uint8_t { kBoth, kReduceScatter, kAllGather };

struct Bucket {
  std::string name;
  std::uint64_t offset = 0;  // bytes from the beginning of a slot
  std::uint64_t bytes = 0;   // a whole number of elements
  DType dtype = DType::kFloat32;
  std::uint32_t forward_position = 0;  // the smallest position of its tensors; forward needs a lower one earlier
  // The tensors that overlap the bucket: `tensor_count` tensors of its dtype, in the order of declaration.
  std::uint32_t first_tensor = 0;
  std::uint32_t tensor_count = 0;
  std::uint64_t coded_bytes = 0;  // of tensors that a codec may encode (is_encodable, core/model/tensors.h)
  bool joined = false;  // the bucket begins in the middle of a tensor, whose beginning is in the bucket before
  // No policy cuts it into parts: a low-rank codec goes on with the factors of the rows that were in the launch of the generation before.
  bool uncut = false;
};

// The share of a bucket that a codec may encode. Costs of codecs are told for float32. Elements of two bytes are widened first, so they
// are priced as twice their bytes: int8 makes 26 % of a float32 gradient, and 52 % of a bfloat16 one.
struct CodedShare {
  double share = 1;     // of the bucket's bytes
  double widening = 1;  // float32 has so many times the bytes of an element in the arena
};
inline CodedShare coded_share(std::uint64_t coded_bytes, std::uint64_t bytes, bool of_halves) {
  const double share = static_cast<double>(coded_bytes) / static_cast<double>(std::max<std::uint64_t>(1, bytes));
  return {std::min(1.0, share), of_halves ? 2.0 : 1.0};
}
inline CodedShare coded_share(const Bucket& bucket) {
  return coded_share(bucket.coded_bytes, bucket.bytes, is_half(bucket.dtype));
}

// The cost of a link: an all-reduce of n bytes takes latency_us + n / bytes_per_us.
struct LinkModel {
  std::string name;
  double latency_us = 0;
  double bytes_per_us = 1;
};

// A whole number of elements of every type, and of blocks of every codec (core/compress): 256 float32.
inline constexpr std::uint64_t kPartAlignBytes = 1024;

// `bytes` rounded up to a multiple of `unit`.
constexpr std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

// PyTorch's DDP fuses gradients until a bucket holds so many bytes. The first bucket is small, so that the link begins early.
inline constexpr std::uint64_t kDdpBucketBytes = 25 << 20;
inline constexpr std::uint64_t kDdpFirstBucketBytes = 1 << 20;

// The size of the next part of a bucket of which `rest` bytes are left, from byte `begin` of the arena on. It is about `most` bytes, and
// the part ends between two blocks of a codec. Buckets of small tensors may begin inside a block.
constexpr std::uint64_t aligned_part(std::uint64_t begin, std::uint64_t rest, std::uint64_t most) {
  if (most >= rest) return rest;
  const std::uint64_t end = (begin + most) / kPartAlignBytes * kPartAlignBytes;
  return std::min(rest, (end > begin ? end : end + kPartAlignBytes) - begin);
}

// A transfer of at most so many bytes overtakes larger ones on a link that has a priority channel (core/link/link.h).
inline constexpr std::uint64_t kSmallBytes = 16 << 10;
constexpr bool is_small(std::uint64_t bytes) { return bytes <= kSmallBytes; }

// The size of all parts but the last. No part is larger than `limit`, and the last one is not much smaller than the others.
constexpr std::uint64_t even_part_bytes(std::uint64_t bytes, std::uint64_t limit) {
  if (bytes <= limit) return bytes;
  const std::uint64_t unit_limit = std::max<std::uint64_t>(1, limit / kPartAlignBytes);
  const std::uint64_t units = (bytes + kPartAlignBytes - 1) / kPartAlignBytes;
  const std::uint64_t parts = (units + unit_limit - 1) / unit_limit;
  return (units + parts - 1) / parts * kPartAlignBytes;
}

// Bytes [offset, offset + bytes), counted from the beginning of `bucket`. The transfer of merged buckets begins in one bucket and
// goes on over the buckets behind it.
struct BucketPiece {
  BucketIndex bucket = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// Calls visit(piece) for each piece of `run`, until a call gives false. Returns false then, and also if the run goes beyond the
// last of `count` buckets. bytes_of(bucket) gives the size of a bucket. An offset beyond its bucket counts on in the next one.
template <typename BytesOf, typename Visit>
bool for_each_piece(BucketPiece run, std::size_t count, const BytesOf& bytes_of, const Visit& visit) {
  for (; run.bytes > 0; ++run.bucket) {
    if (run.bucket >= count) return false;
    const std::uint64_t size = bytes_of(run.bucket);
    if (run.offset >= size) {
      run.offset -= size;
      continue;
    }
    const std::uint64_t bytes = std::min(run.bytes, size - run.offset);
    if (!visit(BucketPiece{run.bucket, run.offset, bytes})) return false;
    run.bytes -= bytes;
    run.offset = 0;
  }
  return true;
}

}  // namespace deft::model
