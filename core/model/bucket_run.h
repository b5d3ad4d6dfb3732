// A run of bytes that begins in one bucket and may go on over the buckets behind it, as a merged transfer does: piece by
// piece, each within a bucket.
//
//   for_each_piece({bucket, offset, bytes}, buckets.size(), bytes_of, [](const BucketPiece& piece) { ...; return true; });
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/model/buckets.h"

namespace deft::model {

// Bytes [offset, offset + bytes), counted from the beginning of `bucket`.
struct BucketPiece {
  BucketIndex bucket = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// Calls visit(piece) until one gives false. False then, and where the run goes beyond the last of `count` buckets, whose
// sizes bytes_of(bucket) gives. An offset beyond its bucket is counted on, too.
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
