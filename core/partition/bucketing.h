// Cutting the arena into buckets.
//
// A bucketing sees the declared tensors and their layout and gives buckets that cover every byte of every region
// exactly once, in the order of the arena. Strategies by name: `uniform:BYTES` (buckets of at most BYTES; tensors are
// fused and cut as needed), `ddp` (fuses whole tensors until a bucket holds 25 MB, 1 MB for the first), `tensor` (a
// bucket a tensor, small neighbours fused up to 64 KiB or the partition size), and what later policies bring.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/model/buckets.h"
#include "core/model/tensors.h"

namespace deft::partition {

struct Request {
  std::string_view bucketing;  // empty: the policy's own
  std::string_view policy;
  std::uint64_t bucket_bytes = 2 << 20;     // of `uniform` where it is a policy's own
  std::uint64_t partition_bytes = 1 << 20;  // of `tensor`
};

// The bucketing that a policy uses where none is asked for: fifo fuses and cuts to `bucket_bytes`, the others keep
// tensors apart so that each can have its own urgency, or be merged by what it takes.
std::string default_bucketing(std::string_view policy, std::uint64_t bucket_bytes);

Result<std::vector<model::Bucket>> cut_buckets(std::span<const model::TensorSpec> tensors,
                                               const model::ArenaLayout& layout, const Request& request);

}  // namespace deft::partition
