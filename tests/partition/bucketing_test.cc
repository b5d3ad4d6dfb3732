// Every bucketing covers the arena exactly once, in order, and says rightly which tensors a bucket holds.
#include "core/partition/bucketing.h"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <numeric>

#include "core/model/buckets.h"

namespace deft::partition {
namespace {

using model::Bucket;
using model::DType;
using model::TensorSpec;

std::vector<TensorSpec> random_tensors() {
  const auto count = *rc::gen::inRange(1, 60);
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < count; ++i) {
    const int magnitude = *rc::gen::inRange(0, 21);
    const auto dtype = *rc::gen::element(DType::kFloat32, DType::kFloat16, DType::kInt8);
    const auto elements = *rc::gen::inRange<std::uint64_t>(1, (1u << magnitude) + 2);
    tensors.push_back({"t" + std::to_string(i), dtype, {elements}, static_cast<std::uint32_t>((count - i) / 2)});
  }
  return tensors;
}

std::string random_bucketing() {
  if (*rc::gen::arbitrary<bool>()) return *rc::gen::element<std::string>("ddp", "tensor");
  return "uniform:" + std::to_string(*rc::gen::inRange<std::uint64_t>(model::kPartAlignBytes, 1 << 22));
}

void covers_all_regions(const model::ArenaLayout& layout, const std::vector<Bucket>& buckets) {
  std::size_t next = 0;
  for (const auto& region : layout.regions) {
    std::uint64_t at = region.offset;
    while (at < region.offset + region.bytes) {
      RC_ASSERT(next < buckets.size());
      const Bucket& bucket = buckets[next++];
      RC_ASSERT(bucket.offset == at);
      RC_ASSERT(bucket.bytes > 0u);
      RC_ASSERT(bucket.bytes % model::dtype_bytes(region.dtype) == 0u);
      RC_ASSERT(bucket.dtype == region.dtype);
      at += bucket.bytes;
    }
    RC_ASSERT(at == region.offset + region.bytes);
  }
  RC_ASSERT(next == buckets.size());
}

void names_its_tensors(const std::vector<TensorSpec>& tensors, const model::ArenaLayout& layout, const Bucket& bucket) {
  std::vector<std::size_t> overlapping;
  std::uint32_t position = ~0u;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& place = layout.tensors[i];
    if (tensors[i].dtype != bucket.dtype) continue;
    if (place.offset >= bucket.offset + bucket.bytes || place.offset + place.bytes <= bucket.offset) continue;
    overlapping.push_back(i);
    position = std::min(position, tensors[i].forward_position);
  }
  RC_ASSERT(!overlapping.empty());
  RC_ASSERT(bucket.first_tensor == overlapping.front());
  RC_ASSERT(bucket.tensor_count == overlapping.size());
  RC_ASSERT(bucket.forward_position == position);
}

RC_GTEST_PROP(Bucketing, CoversEveryByteOnceAndNamesItsTensors, ()) {
  const auto tensors = random_tensors();
  const auto layout = model::lay_out(tensors, 1);
  const std::string name = random_bucketing();
  const auto buckets = cut_buckets(tensors, *layout, {name, "fifo"});
  RC_ASSERT(buckets.has_value());
  covers_all_regions(*layout, *buckets);
  for (const auto& bucket : *buckets) names_its_tensors(tensors, *layout, bucket);
}

RC_GTEST_PROP(Bucketing, CodedBytesAreThoseOfEncodableTensors, ()) {
  auto tensors = random_tensors();
  for (TensorSpec& tensor : tensors)
    if (*rc::gen::arbitrary<bool>()) tensor.shape.insert(tensor.shape.begin(), 1);  // of one dimension none is encoded
  const auto layout = model::lay_out(tensors, 1);
  auto buckets = cut_buckets(tensors, *layout, {random_bucketing(), "fifo"});
  RC_ASSERT(buckets.has_value());
  const auto least = *rc::gen::inRange<std::uint64_t>(0, 1 << 16);
  model::set_coded_bytes(*buckets, tensors, *layout, least);
  for (const auto& bucket : *buckets) {
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (model::is_encodable(tensors[i], least)) bytes += model::bytes_in(bucket, layout->tensors[i]);
    RC_ASSERT(bucket.coded_bytes == bytes);
  }
}

RC_GTEST_PROP(Bucketing, UniformBucketsStayWithinTheirSize, ()) {
  const auto tensors = random_tensors();
  const auto layout = model::lay_out(tensors, 1);
  const auto limit = *rc::gen::inRange<std::uint64_t>(model::kPartAlignBytes, 1 << 20);
  const auto buckets = cut_buckets(tensors, *layout, {"uniform:" + std::to_string(limit), "fifo"});
  for (const auto& bucket : *buckets) RC_ASSERT(bucket.bytes <= limit);
}

std::vector<TensorSpec> megabytes(std::initializer_list<std::uint64_t> sizes) {
  std::vector<TensorSpec> tensors;
  for (const auto size : sizes)
    tensors.push_back({"t" + std::to_string(tensors.size()),
                       DType::kFloat32,
                       {size * 262144},
                       static_cast<std::uint32_t>(sizes.size() - tensors.size() - 1)});
  return tensors;
}

std::vector<std::uint32_t> counts(const std::vector<TensorSpec>& tensors, const BucketingRequest& request) {
  std::vector<std::uint32_t> out;
  const auto buckets = cut_buckets(tensors, *model::lay_out(tensors, 1), request);
  for (const auto& bucket : buckets.value()) out.push_back(bucket.tensor_count);
  return out;
}

TEST(Bucketing, DdpFusesWholeTensorsAfterASmallFirstBucket) {
  EXPECT_THAT(counts(megabytes({2, 20, 6, 1, 1}), {"ddp", "fifo"}), testing::ElementsAre(1, 2, 2));
}

TEST(Bucketing, AnUrgentTensorKeepsItsOwnBucketAndABiasGoesWithItsWeight) {
  std::vector<TensorSpec> tensors = megabytes({4, 4});
  tensors.insert(tensors.begin() + 1, {"bias", DType::kFloat32, {100}, 1});
  EXPECT_THAT(counts(tensors, {"", "bytescheduler"}), testing::ElementsAre(2, 1));
}

TEST(Bucketing, SmallNeighboursShareAMessage) {
  std::vector<TensorSpec> tensors;
  for (std::uint32_t i = 0; i < 32; ++i)
    tensors.push_back({"t" + std::to_string(i), DType::kFloat32, {2048}, 31 - i});  // 8 KiB each, of 64
  EXPECT_THAT(counts(tensors, {"", "bytescheduler"}), testing::ElementsAre(8, 8, 8, 8));
}

TEST(Bucketing, ALayerDoesNotWaitForTheOneBeforeIt) {
  std::vector<TensorSpec> tensors;  // in the order of backward, two large layers behind a small one
  for (std::uint32_t layer = 3; layer-- > 0;) {
    const std::string name = "conv" + std::to_string(layer + 1);
    tensors.push_back({name + ".bias", DType::kFloat32, {64}, 2 * layer + 1});
    tensors.push_back({name + ".weight", DType::kFloat32, {layer == 0 ? 288U : 36864U}, 2 * layer});
  }
  EXPECT_THAT(counts(tensors, {"", "knapsack"}), testing::ElementsAre(2, 2, 2));
}

TEST(Bucketing, ABadNameIsAnErrorThatNamesIt) {
  const auto tensors = megabytes({1});
  for (const std::string name :
       {"uniform", "uniform:", "uniform:0", "uniform:-4", "uniform:4x", "uniform:1e9", "dpp"}) {
    const auto buckets = cut_buckets(tensors, *model::lay_out(tensors, 1), {name, "fifo"});
    ASSERT_FALSE(buckets.has_value()) << name;
    EXPECT_EQ(buckets.error().kind, ErrorKind::kInvalid);
    EXPECT_THAT(buckets.error().message(), testing::HasSubstr(name));
  }
}

}  // namespace
}  // namespace deft::partition
