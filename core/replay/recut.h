// Cuts the traced gradients into buckets in another way than the traced job did.
//
//   const auto by_tensor = recut(group, "tensor", partition_bytes);
//   steps_of(node.trace, *by_tensor, 0)            // when each of these buckets was ready
//
// Workers hand in tensors, so the times of other buckets are as well known as those of the traced ones, and so is what codecs may encode.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/trace/trace_file.h"

namespace deft::replay {

// `bucketing`: of core/partition/bucketing.h. Empty if that is unknown, or if the tensors cannot be.
std::optional<trace::TraceGroup> recut(const trace::TraceGroup& group, std::string_view bucketing,
                                       std::uint64_t partition_bytes);

// Where each tensor begins in the arena, in which the buckets follow each other. Empty if the tensors cannot be.
std::vector<std::uint64_t> arena_offsets(const trace::TraceGroup& group);

}  // namespace deft::replay
