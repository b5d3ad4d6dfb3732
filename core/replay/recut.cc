#include "core/replay/recut.h"

#include <algorithm>
#include <vector>

#include "core/partition/bucketing.h"

namespace deft::replay {
namespace {

using trace::TraceGroup;

// If the trace does not tell of all tensors what they are made of, all are alike: bytes count.
std::vector<model::TensorSpec> specs_of(const TraceGroup& group) {
  const auto tells = [](const TraceGroup::Tensor& tensor) { return tensor.elements.has_value(); };
  const bool all_tell = std::ranges::all_of(group.tensors, tells);
  std::vector<model::TensorSpec> specs;
  for (const TraceGroup::Tensor& tensor : group.tensors) {
    const auto dtype = all_tell ? tensor.elements->dtype : model::DType::kUInt8;
    specs.push_back({.name = tensor.name,
                     .dtype = dtype,
                     .shape = {tensor.bytes / model::dtype_bytes(dtype)},
                     .forward_position = tensor.forward_position});
  }
  return specs;
}

TraceGroup::Bucket traced(const model::Bucket& bucket, const TraceGroup& group,
                          const std::vector<model::TensorSpec>& specs, const model::ArenaLayout& layout) {
  TraceGroup::Bucket made{.bytes = bucket.bytes, .forward_position = bucket.forward_position};
  TraceGroup::Elements elements{.dtype = bucket.dtype};
  bool tells = true;
  for (std::uint32_t i = bucket.first_tensor; made.tensors.size() < bucket.tensor_count; ++i) {
    if (specs[i].dtype != bucket.dtype) continue;
    made.tensors.push_back(i);
    const auto& of_tensor = group.tensors[i].elements;
    tells = tells && of_tensor && of_tensor->dtype == bucket.dtype;
    if (tells && of_tensor->coded_bytes > 0) elements.coded_bytes += model::bytes_in(bucket, layout.tensors[i]);
  }
  if (tells) made.elements = elements;
  return made;
}

}  // namespace

std::optional<TraceGroup> recut(const TraceGroup& group, std::string_view bucketing, std::uint64_t partition_bytes) {
  const auto specs = specs_of(group);
  const auto layout = model::lay_out(specs, 1);
  if (!layout) return std::nullopt;
  const auto buckets = partition::cut_buckets(
      specs, *layout, {.bucketing = bucketing, .policy = {}, .partition_bytes = partition_bytes});
  if (!buckets || buckets->empty()) return std::nullopt;
  TraceGroup cut = group;
  cut.buckets.clear();
  for (const model::Bucket& bucket : *buckets) cut.buckets.push_back(traced(bucket, group, specs, *layout));
  return cut;
}

std::vector<std::uint64_t> arena_offsets(const TraceGroup& group) {
  const auto layout = model::lay_out(specs_of(group), 1);
  if (!layout) return {};
  std::vector<std::uint64_t> offsets;
  for (const auto& place : layout->tensors) {
    std::uint64_t before = 0, begin = 0;  // the regions before that of the tensor, without the gaps between them
    for (const auto& region : layout->regions)
      if (region.offset <= place.offset) begin = region.offset;
    for (const auto& region : layout->regions)
      if (region.offset < begin) before += region.bytes;
    offsets.push_back(before + place.offset - begin);
  }
  return offsets;
}

}  // namespace deft::replay
