#include "core/replay/recut.h"

#include <numeric>
#include <vector>

#include "core/partition/bucketing.h"

namespace deft::replay {

trace::TraceGroup recut(const trace::TraceGroup& group, std::string_view bucketing, std::uint64_t partition_bytes) {
  std::vector<model::TensorSpec> tensors;
  for (const auto& tensor : group.tensors)
    tensors.push_back({.name = tensor.name,
                       .dtype = model::DType::kUInt8,  // all alike: bytes count
                       .shape = {tensor.bytes},
                       .forward_position = tensor.forward_position});
  const auto layout = model::lay_out(tensors, 1);
  if (!layout) return group;
  const auto buckets = partition::cut_buckets(
      tensors, *layout, {.bucketing = bucketing, .policy = {}, .partition_bytes = partition_bytes});
  if (!buckets || buckets->empty()) return group;
  trace::TraceGroup cut = group;
  cut.buckets.clear();
  for (const model::Bucket& bucket : *buckets) {
    auto& made = cut.buckets.emplace_back();
    made.bytes = bucket.bytes;
    made.forward_position = bucket.forward_position;
    made.tensors.resize(bucket.tensor_count);
    std::iota(made.tensors.begin(), made.tensors.end(), bucket.first_tensor);
  }
  return cut;
}

}  // namespace deft::replay
