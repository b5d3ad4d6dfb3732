#include "core/link/work_request.h"

#include <numeric>
#include <utility>

#include "core/reduce/reduce.h"

namespace deft::link {

void add(const OwnedSegment& segment) {
  const std::size_t count = segment.data.size() / model::dtype_bytes(segment.dtype);
  reduce::reduce(segment.data.data(), segment.inputs, count, segment.dtype, segment.op);
}

WorkRequest WorkRequest::all_reduce(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op,
                                    std::uint64_t id, std::uint32_t priority) {
  return {.data = data, .count = count, .dtype = dtype, .op = op, .id = id, .priority = priority};
}

WorkRequest WorkRequest::reduce_scatter(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op,
                                        std::uint64_t id, std::uint32_t priority) {
  WorkRequest request = all_reduce(data, count, dtype, op, id, priority);
  request.kind = Kind::kReduceScatter;
  return request;
}

WorkRequest WorkRequest::reduce_by_all(std::byte* data, std::size_t bytes, OwnerStage stage) {
  WorkRequest request = all_reduce(data, bytes, model::DType::kUInt8, model::ReduceOp::kSum);
  request.kind = Kind::kReduceByAll;
  request.owner_stage = std::move(stage);
  return request;
}

WorkRequest WorkRequest::all_gather(std::byte* data, std::vector<std::size_t> block_bytes, std::uint64_t id) {
  return {.kind = Kind::kAllGather, .data = data, .block_of = {.bytes = std::move(block_bytes)}, .id = id};
}

WorkRequest WorkRequest::broadcast(std::byte* data, std::size_t bytes, std::uint32_t root, std::uint64_t id) {
  return {.kind = Kind::kBroadcast, .data = data, .count = bytes, .block_of = {.root = root}, .id = id};
}

std::size_t WorkRequest::bytes() const {
  if (kind == Kind::kAllGather) return std::accumulate(block_of.bytes.begin(), block_of.bytes.end(), std::size_t{0});
  return kind == Kind::kBroadcast ? count : count * model::dtype_bytes(dtype);
}

Range WorkRequest::owned_by(std::uint32_t node, std::uint32_t nodes) const {
  if (kind == Kind::kReduceByAll) return {0, count};
  return slice_of(count, granule_of(model::dtype_bytes(dtype), block), nodes, node);
}

std::vector<std::size_t> WorkRequest::blocks(std::uint32_t nodes) const {
  if (kind == Kind::kAllGather) return block_of.bytes;
  std::vector<std::size_t> bytes(nodes, 0);
  if (kind == Kind::kBroadcast) bytes[block_of.root] = count;
  return bytes;
}

}  // namespace deft::link
