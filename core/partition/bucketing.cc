#include "core/partition/bucketing.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>

#include "core/base/numbers.h"
#include "core/base/policy_traits.h"
#include "core/model/buckets.h"
#include "core/partition/rebucket.h"

namespace deft::partition {
namespace {

using model::ArenaLayout;
using model::Bucket;
using model::Region;
using model::TensorSpec;

constexpr std::uint64_t kMinBucketBytes = model::kPartAlignBytes;
constexpr std::size_t kMaxBuckets = 1 << 20;
constexpr std::uint64_t kFusedBytes =
    64 << 10;  // of `tensor`: some milliseconds at 100 Mbit/s, worth a message at 10 Gbit/s

// The tensors of one region, in the order of the arena.
struct RegionView {
  const Region* region;
  std::vector<std::uint32_t> tensors;  // indices as declared
};

// Where buckets of a region begin, as offsets in the slot; the first is the region's own offset.
using Cuts = std::vector<std::uint64_t>;

struct Input {
  std::span<const TensorSpec> tensors;
  const ArenaLayout& layout;
  const BucketingRequest& request;
};

std::vector<RegionView> view_regions(const Input& input) {
  std::vector<RegionView> views;
  for (const Region& region : input.layout.regions) {
    views.push_back({&region, {}});
    for (std::uint32_t i = 0; i < input.tensors.size(); ++i)
      if (input.tensors[i].dtype == region.dtype) views.back().tensors.push_back(i);
  }
  return views;
}

Cuts cut_uniform(const Region& region, std::uint64_t limit) {
  const std::uint64_t bucket = model::even_part_bytes(region.bytes, limit);  // all alike: no sliver at the end
  Cuts cuts;
  for (std::uint64_t at = 0; at < region.bytes; at += bucket) cuts.push_back(region.offset + at);
  return cuts;
}

// Cuts as DDP does: a bucket takes whole tensors until it is full.
Cuts cut_ddp(const Input& input, const RegionView& view) {
  Cuts cuts{view.region->offset};
  std::uint64_t bytes = 0;
  for (const auto tensor : view.tensors) {
    const auto& place = input.layout.tensors[tensor];
    const std::uint64_t full = cuts.size() == 1 ? model::kDdpFirstBucketBytes : model::kDdpBucketBytes;
    if (bytes >= full) cuts.push_back(place.offset), bytes = 0;
    bytes += place.bytes;
  }
  return cuts;
}

// Frameworks name a layer's tensors "layer.weight" and "layer.bias"; if there is no such name, neighbours in forward
// count as one.
bool same_layer(const TensorSpec& a, const TensorSpec& b) {
  const auto dot_a = a.name.rfind('.'), dot_b = b.name.rfind('.');
  if (dot_a != std::string::npos && dot_b != std::string::npos)
    return std::string_view(a.name).substr(0, dot_a) == std::string_view(b.name).substr(0, dot_b);
  return std::max(a.forward_position, b.forward_position) - std::min(a.forward_position, b.forward_position) <= 1;
}

// A bucket a tensor, so that each has its own priority. Small neighbours share one up to `limit`, and a small tensor of
// the same layer (a bias) goes with its large neighbour: a message of its own would cost more than it is worth. A bucket is
// ready with its last tensor and needed with its first, so one that spans layers hides badly behind compute.
Cuts cut_by_tensor(const Input& input, const RegionView& view, std::uint64_t limit) {
  const std::uint64_t small = limit / 8;
  Cuts cuts;
  std::uint64_t bytes = 0;    // in the current bucket
  std::uint64_t largest = 0;  // of its tensors
  for (std::size_t i = 0; i < view.tensors.size(); ++i) {
    const auto& place = input.layout.tensors[view.tensors[i]];
    const std::uint64_t main = std::max(largest, place.bytes);
    const bool beside_large = i > 0 && main > limit / 2 && bytes + place.bytes - main <= small &&
                              same_layer(input.tensors[view.tensors[i - 1]], input.tensors[view.tensors[i]]);
    const bool joins = i > 0 && (bytes + place.bytes <= limit || beside_large);
    if (!joins) cuts.push_back(i == 0 ? view.region->offset : place.offset), bytes = largest = 0;
    bytes += place.bytes;
    largest = std::max(largest, place.bytes);
  }
  return cuts;
}

Bucket make_bucket(const Input& input, const RegionView& view, std::uint64_t begin, std::uint64_t end,
                   std::size_t index) {
  Bucket bucket{{}, begin, end - begin, view.region->dtype, 0, 0, 0, false};
  const auto ends_after = [&](std::uint64_t offset, std::uint32_t tensor) {
    return offset < input.layout.tensors[tensor].offset + input.layout.tensors[tensor].bytes;
  };
  auto it = std::upper_bound(view.tensors.begin(), view.tensors.end(), begin, ends_after);
  // Only padding is behind the last tensor; it belongs to that tensor's bucket.
  if (it == view.tensors.end()) --it;
  bucket.first_tensor = *it;
  bucket.joined = begin > input.layout.tensors[*it].offset;
  bucket.forward_position = input.tensors[*it].forward_position;
  bucket.name = "b" + std::to_string(index) + ":" + input.tensors[*it].name;
  do {
    bucket.forward_position = std::min(bucket.forward_position, input.tensors[*it].forward_position);
    ++bucket.tensor_count;
    ++it;
  } while (it != view.tensors.end() && input.layout.tensors[*it].offset < end);
  return bucket;
}

using Cutter = std::function<Cuts(const RegionView&)>;

Result<Cutter> choose_cutter(const Input& input, std::string_view name) {
  if (name.starts_with("uniform")) {
    const auto bytes = uniform_bytes(name);
    if (!bytes) return tl::unexpected(bytes.error());
    return [limit = *bytes](const RegionView& view) { return cut_uniform(*view.region, limit); };
  }
  if (name == "ddp") return [&input](const RegionView& view) { return cut_ddp(input, view); };
  if (name == "tensor")
    return [&input](const RegionView& view) {
      return cut_by_tensor(input, view, std::min(kFusedBytes, input.request.partition_bytes));
    };
  return fail(ErrorKind::kInvalid, "unknown bucketing '" + std::string(name) + "'", "one of uniform:BYTES ddp tensor");
}

}  // namespace

Result<std::uint64_t> uniform_bytes(std::string_view bucketing) {
  constexpr std::string_view kUniform = "uniform:";
  std::optional<std::uint64_t> bytes;
  if (bucketing.starts_with(kUniform)) bytes = parse_whole<std::uint64_t>(bucketing.substr(kUniform.size()));
  if (!bytes || *bytes < kMinBucketBytes)
    return fail(ErrorKind::kInvalid, "bucketing '" + std::string(bucketing) + "' names no usable size",
                "give a whole number of bytes, at least " + std::to_string(kMinBucketBytes));
  return *bytes;
}

std::string default_bucketing(std::string_view policy, std::uint64_t bucket_bytes) {
  const PolicyTraits* const traits = find_policy(policy);
  if (traits && traits->bucketing == OwnBucketing::kByTensor) return "tensor";
  return "uniform:" + std::to_string(bucket_bytes);
}

Result<std::vector<Bucket>> cut_buckets(std::span<const TensorSpec> tensors, const ArenaLayout& layout,
                                        const BucketingRequest& request) {
  const std::string name = request.bucketing.empty() ? default_bucketing(request.policy, request.bucket_bytes)
                                                     : std::string(request.bucketing);
  const Input input{tensors, layout, request};
  const auto cutter = choose_cutter(input, name);
  if (!cutter) return tl::unexpected(cutter.error());
  std::vector<Bucket> buckets;
  for (const RegionView& view : view_regions(input)) {
    const Cuts cuts = (*cutter)(view);
    if (buckets.size() + cuts.size() > kMaxBuckets)
      return fail(ErrorKind::kInvalid, "bucketing '" + name + "' gives more than 1048576 buckets",
                  "use larger buckets");
    const std::uint64_t region_end = view.region->offset + view.region->bytes;
    for (std::size_t i = 0; i < cuts.size(); ++i) {
      const std::uint64_t end = i + 1 < cuts.size() ? cuts[i + 1] : region_end;
      buckets.push_back(make_bucket(input, view, cuts[i], end, buckets.size()));
    }
  }
  return buckets;
}

}  // namespace deft::partition
