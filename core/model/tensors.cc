#include "core/model/tensors.h"

#include <algorithm>
#include <unordered_set>

#include "core/model/buckets.h"

namespace deft::model {
namespace {

Result<void> check(const TensorSpec& tensor, std::size_t index) {
  const std::string at = "tensor " + std::to_string(index) + " '" + tensor.name + "'";
  if (tensor.name.empty()) return fail(ErrorKind::kInvalid, "tensor " + std::to_string(index) + " has no name");
  if (dtype_bytes(tensor.dtype) == 0) return fail(ErrorKind::kInvalid, at + " has an unknown element type");
  if (tensor.shape.size() > kMaxDims) return fail(ErrorKind::kInvalid, at + " has more than 8 dimensions");
  if (tensor.codec.size() > kMaxCodecTextBytes)
    return fail(ErrorKind::kInvalid, at + " names a codec of more than 128 bytes");
  std::uint64_t elements = 1;
  for (const auto extent : tensor.shape) {
    if (extent == 0) return fail(ErrorKind::kInvalid, at + " has no elements", "leave empty tensors out");
    if (extent > kMaxArenaBytes / elements) return fail(ErrorKind::kInvalid, at + " is too large");
    elements *= extent;
  }
  return {};
}

}  // namespace

std::uint64_t TensorSpec::elements() const {
  std::uint64_t count = 1;
  for (const auto extent : shape) count *= extent;
  return count;
}

std::string TensorSpec::describe() const {
  std::string text = name + " " + std::string(to_string(dtype)) + " [";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  text += "]";
  return codec.empty() ? text : text + ", " + codec;
}

Result<ArenaLayout> lay_out(std::span<const TensorSpec> tensors, std::uint32_t slots) {
  if (tensors.empty()) return fail(ErrorKind::kInvalid, "no tensors were declared");
  if (tensors.size() > kMaxTensors) return fail(ErrorKind::kInvalid, "more than 1048576 tensors were declared");
  if (slots == 0 || slots > 8)
    return fail(ErrorKind::kInvalid, "an arena has 1 to 8 slots, not " + std::to_string(slots));
  ArenaLayout layout;
  layout.slots = slots;
  layout.tensors.resize(tensors.size());
  std::unordered_set<std::string_view> names;
  std::vector<DType> order;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (auto ok = check(tensors[i], i); !ok) return tl::unexpected(ok.error());
    if (!names.insert(tensors[i].name).second)
      return fail(ErrorKind::kInvalid, "two tensors are named '" + tensors[i].name + "'", "give each its own name");
    if (std::find(order.begin(), order.end(), tensors[i].dtype) == order.end()) order.push_back(tensors[i].dtype);
  }
  std::uint64_t offset = 0;
  for (const DType dtype : order) {
    Region region{dtype, round_up(offset, kRegionAlignBytes), 0};
    offset = region.offset;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].dtype != dtype) continue;
      const std::uint64_t bytes = tensors[i].bytes();
      const std::uint64_t alignment = bytes >= kLargeTensorBytes ? kPartAlignBytes : kTensorAlignBytes;
      layout.tensors[i] = {round_up(offset, alignment), bytes};
      offset = layout.tensors[i].offset + round_up(bytes, alignment);
      if (offset > kMaxArenaBytes) return fail(ErrorKind::kInvalid, "the tensors need more than 4 TiB");
    }
    region.bytes = offset - region.offset;
    layout.regions.push_back(region);
  }
  layout.slot_bytes = round_up(offset, kRegionAlignBytes);
  return layout;
}

bool is_encodable(const TensorSpec& tensor, std::uint64_t min_bytes) {
  return tensor.codec.empty() && is_codable(tensor.dtype) && tensor.shape.size() >= 2 && tensor.bytes() >= min_bytes;
}

bool has_own_codec(const TensorSpec& tensor) {
  return !tensor.codec.empty() && tensor.codec != "none" && is_codable(tensor.dtype) &&
         tensor.bytes() >= kLargeTensorBytes;
}

std::uint64_t bytes_in(const Bucket& bucket, const TensorPlace& tensor) {
  const std::uint64_t from = std::max(tensor.offset, bucket.offset);
  const std::uint64_t to = std::min(tensor.offset + tensor.bytes, bucket.offset + bucket.bytes);
  return from < to ? to - from : 0;
}

void set_coded_bytes(std::vector<Bucket>& buckets, std::span<const TensorSpec> tensors, const ArenaLayout& layout,
                     std::uint64_t min_bytes) {
  for (Bucket& bucket : buckets) {
    bucket.coded_bytes = 0;
    for (std::size_t i = bucket.first_tensor, left = bucket.tensor_count; left > 0; ++i) {
      if (tensors[i].dtype != bucket.dtype) continue;
      --left;
      if (is_encodable(tensors[i], min_bytes)) bucket.coded_bytes += bytes_in(bucket, layout.tensors[i]);
    }
  }
}

std::string first_difference(std::span<const TensorSpec> mine, std::string_view my_name,
                             std::span<const TensorSpec> other, std::string_view other_name) {
  const std::size_t common = std::min(mine.size(), other.size());
  for (std::size_t i = 0; i < common; ++i)
    if (!(mine[i] == other[i]))
      return "tensor " + std::to_string(i) + " is " + mine[i].describe() + " on " + std::string(my_name) + " and " +
             other[i].describe() + " on " + std::string(other_name);
  if (mine.size() != other.size())
    return std::string(my_name) + " declares " + std::to_string(mine.size()) + " tensors and " +
           std::string(other_name) + " declares " + std::to_string(other.size());
  return {};
}

}  // namespace deft::model
