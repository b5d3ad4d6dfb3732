#include "core/link/ps/segment_answer.h"

#include <cstring>
#include <vector>

namespace deft::link::ps_backend {

std::size_t SegmentAnswer::values() const { return segment.bytes / request.block * request.encoded->block_values; }

std::size_t SegmentAnswer::bytes() const {
  if (segment.owner == node) return 0;
  if (segment.keeper == kEveryNode) return (nodes - 1) * segment.bytes;
  if (segment.keeper != node) return segment.bytes;
  return keeper_bytes(nodes, segment.bytes, values());
}

void SegmentAnswer::take(std::span<const std::byte> payload) const {
  if (segment.keeper != node && segment.keeper != kEveryNode)
    std::memcpy(data().data(), payload.data(), payload.size());
  else if (segment.keeper == node && gets_sum(nodes, segment.bytes, values()))
    take_sum(payload);
  else
    take_codes(payload);
}

// The codes of the other nodes, in their order. This node's own codes stand in the data still.
void SegmentAnswer::take_codes(std::span<const std::byte> codes) const {
  std::vector<const std::byte*> inputs;
  for (std::uint32_t n = 0; n < nodes; ++n) {
    inputs.push_back(n == node ? data().data() : codes.data());
    if (n != node) codes = codes.subspan(segment.bytes);
  }
  request.owner_stage({data(), segment.offset, inputs, request.dtype, request.op});
}

void SegmentAnswer::take_sum(std::span<const std::byte> sum) const {
  std::vector<float> aligned(values());
  std::memcpy(aligned.data(), sum.data(), sum.size());
  request.owner_stage({data(), segment.offset, {}, request.dtype, request.op, aligned});
}

}  // namespace deft::link::ps_backend
