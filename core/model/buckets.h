// Buckets, which are contiguous byte ranges of one slot of the arena, and the cost of the links that carry them. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/dtype.h"

namespace deft::model {

using BucketIndex = std::uint32_t;  // buckets are numbered in the order of the arena: backward's production order
using LinkIndex = std::uint32_t;

struct Bucket {
  std::string name;
  std::uint64_t offset = 0;  // bytes from the beginning of a slot
  std::uint64_t bytes = 0;   // a whole number of elements
  DType dtype = DType::kFloat32;
  std::uint32_t forward_position = 0;  // the smallest position of its tensors; forward needs a lower one earlier
  // The tensors that overlap the bucket: `tensor_count` tensors of its dtype, in the order of declaration.
  std::uint32_t first_tensor = 0;
  std::uint32_t tensor_count = 0;
  bool joined = false;  // the bucket begins in the middle of a tensor, whose beginning is in the bucket before
};

// The cost of a link: an all-reduce of n bytes takes latency_us + n / bytes_per_us.
struct LinkModel {
  std::string name;
  double latency_us = 0;
  double bytes_per_us = 1;
};

}  // namespace deft::model
