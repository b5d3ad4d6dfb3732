// Cuts a run of bytes at the borders of buckets. A merged transfer is such a run: it begins in one bucket and may go on over
// the buckets behind it.
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
