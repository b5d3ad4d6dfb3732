// Cuts the arena of declared tensors into buckets.
//
//   auto buckets = cut_buckets(tensors, layout, {.bucketing = "uniform:4194304", .policy = "fifo"});
//
// The buckets cover every byte of every region exactly once, in the order of the arena. The strategies:
//   uniform:BYTES   buckets of at most BYTES; tensors are fused and cut as needed
//   ddp             fuses whole tensors until a bucket holds 25 MB, the first one 1 MB
//   tensor          a bucket for each tensor; small neighbours are fused up to 64 KiB or the partition size
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

// A strategy by name, and the sizes that it uses.
struct BucketingRequest {
  std::string_view bucketing;  // empty: the default of `policy`
  std::string_view policy;
  std::uint64_t bucket_bytes = 2 << 20;     // the size for `uniform` if the policy chose it
  std::uint64_t partition_bytes = 1 << 20;  // the size for `tensor`
};

// The strategy that `policy` uses by default. fifo fuses and cuts to `bucket_bytes`. The others keep tensors apart, so that
// each can have its own priority or be merged by its times.
std::string default_bucketing(std::string_view policy, std::uint64_t bucket_bytes);

// The buckets for `tensors`, which `layout` places. kInvalid for an unknown strategy, or a size that is none.
Result<std::vector<model::Bucket>> cut_buckets(std::span<const model::TensorSpec> tensors,
                                               const model::ArenaLayout& layout, const BucketingRequest& request);

}  // namespace deft::partition
