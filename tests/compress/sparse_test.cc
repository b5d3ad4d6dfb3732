// topk and dgc: the selection is exact, the momentum is that of the paper, and headers are checked.
#include "core/compress/sparse_format.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <numeric>

#include "tests/compress/codec_cases.h"

namespace deft::compress {
namespace {

constexpr Slice kSlice{.job = 1, .generation = 2, .first = 0};

// By definition: sort all by magnitude, the first of equal ones first; zeros are not sent.
std::vector<std::size_t> largest_by_sorting(const Floats& values, std::size_t wanted) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order,
                           [&](std::size_t a, std::size_t b) { return std::abs(values[a]) > std::abs(values[b]); });
  order.resize(wanted);
  std::erase_if(order, [&](std::size_t i) { return values[i] == 0; });
  std::ranges::sort(order);
  return order;
}

std::vector<std::size_t> sent_indices(const Floats& decoded) {
  std::vector<std::size_t> sent;
  for (std::size_t i = 0; i < decoded.size(); ++i)
    if (decoded[i] != 0) sent.push_back(i);
  return sent;
}

TEST(Topk, SendsExactlyTheLargest) {
  const CodecPointer codec = codec_of("topk/ratio=0.01");
  for (const KernelSet& set : kernel_sets()) {
    const CodecPointer one = codec_of("topk/ratio=0.01", *set.kernels);
    for (const Data data : kFiniteData)
      for (const std::size_t count : {1U, 99U, 4096U, 4111U, 50'000U, 300'001U}) {
        const Floats values = make_values(data, count, count);
        const Floats back = decoded(*one, kSlice, encoded(*one, kSlice, values), count);
        const auto wanted = std::max<std::size_t>(1, static_cast<std::size_t>(std::lround(0.01 * count)));
        ASSERT_EQ(sent_indices(back), largest_by_sorting(values, wanted))
            << set.name << static_cast<int>(data) << " " << count;
        for (const std::size_t i : sent_indices(back)) ASSERT_EQ(back[i], values[i]);
      }
  }
}

// A sample cannot see this: what it takes is small or large, and nothing else is.
TEST(Topk, IsExactWhateverTheSampleSays) {
  const CodecPointer codec = codec_of("topk/ratio=0.01");
  std::mt19937 random(2);
  for (const int shape : {0, 1, 2}) {
    Floats values(200'000);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float noise = 1e-3F * static_cast<float>(random() % 1000 + 1);
      const bool is_large = shape == 0 ? i < 1000 : shape == 1 ? i > 198'500 : i % 64 < 16;
      values[i] = is_large ? 100 + noise : noise;
    }
    const Floats back = decoded(*codec, kSlice, encoded(*codec, kSlice, values), values.size());
    EXPECT_EQ(sent_indices(back), largest_by_sorting(values, 2000)) << shape;
  }
}

TEST(Topk, TheResidualIsWhatWasNotSent) {
  const CodecPointer codec = codec_of("topk/ratio=0.01");
  const Floats values = normal_values(100'000, 1), old = normal_values(100'000, 2);
  Floats residual = old;
  const Floats back = decoded(*codec, kSlice, encoded_with_feedback(*codec, kSlice, values, residual), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(back[i] + residual[i], old[i] + values[i]);
    ASSERT_TRUE(back[i] == 0 || residual[i] == 0);
  }
}

TEST(Topk, EveryValueIsSentInTheEnd) {
  const CodecPointer codec = codec_of("topk/ratio=0.05");
  Floats values(200), residual(200), sum(200);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1 + static_cast<float>(i);
  for (std::uint64_t step = 0; step < 2000; ++step) {
    const Bytes code = encoded_with_feedback(*codec, {.job = 1, .generation = step, .first = 0}, values, residual);
    ASSERT_TRUE(codec->decode_add(kSlice, code, sum).has_value());
  }
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(sum[i] / 2000, values[i], 0.15 * values[i] + 0.2) << i;
}

TEST(Dgc, MomentumIsCorrectedAndMasked) {
  const CodecPointer codec = codec_of("dgc/ratio=0.01,momentum=0.5");
  constexpr std::size_t kCount = 10'000;
  Floats momentum(kCount), residual(kCount);
  std::vector<double> expected_momentum(kCount), expected_residual(kCount);
  for (std::uint64_t step = 0; step < 20; ++step) {
    const Floats values = normal_values(kCount, step);
    Bytes code(codec->encoded_bytes(kCount));
    const Slice slice{.job = 1, .generation = step, .first = 0};
    code.resize(codec->encode_with_momentum(slice, values, momentum, residual, code).value());
    const Floats back = decoded(*codec, slice, code, kCount);
    EXPECT_EQ(sent_indices(back).size(), 100U);
    for (std::size_t i = 0; i < kCount; ++i) {
      expected_momentum[i] = 0.5 * expected_momentum[i] + values[i];
      expected_residual[i] += expected_momentum[i];
      if (back[i] != 0) {
        ASSERT_NEAR(back[i], expected_residual[i], 1e-5);
        expected_residual[i] = expected_momentum[i] = 0;
      }
      ASSERT_NEAR(residual[i], expected_residual[i], 1e-5);
      ASSERT_NEAR(momentum[i], expected_momentum[i], 1e-5);
    }
  }
}

TEST(Dgc, NaNLeavesMomentumAndResidualAlone) {
  const CodecPointer codec = codec_of("dgc");
  Floats values = normal_values(5000, 1), momentum = normal_values(5000, 2), residual = normal_values(5000, 3);
  const Floats old_momentum = momentum, old_residual = residual;
  values[4999] = std::numeric_limits<float>::infinity();
  Bytes code(codec->encoded_bytes(5000));
  code.resize(codec->encode_with_momentum(kSlice, values, momentum, residual, code).value());
  EXPECT_TRUE(same_bits(momentum, old_momentum));
  EXPECT_TRUE(same_bits(residual, old_residual));
  EXPECT_TRUE(std::isnan(decoded(*codec, kSlice, code, 5000)[0]));
}

TEST(Dgc, WarmsUp) {
  const CodecPointer codec = codec_of("dgc/ratio=0.001,warmup=10");
  const auto entries = [&](std::uint64_t generation) {
    return (codec->encoded_bytes_at(generation, 100'000) - kSparseHeaderBytes) / kSparseEntryBytes;
  };
  EXPECT_EQ(entries(0), 25'000U);
  EXPECT_EQ(entries(1), 25'000U);
  EXPECT_EQ(entries(2), 6250U);
  EXPECT_EQ(entries(9), 100U);
  EXPECT_EQ(entries(10), 100U);
  EXPECT_EQ(codec->encoded_bytes(100'000), codec->encoded_bytes_at(0, 100'000));
  const Floats values = normal_values(100'000, 1);
  EXPECT_EQ(encoded(*codec, {.job = 1, .generation = 3, .first = 0}, values).size(),
            codec->encoded_bytes_at(3, 100'000));
}

TEST(SparseHeader, EveryFieldIsChecked) {
  const CodecPointer codec = codec_of("topk/ratio=0.1");
  const Bytes good = encoded(*codec, kSlice, normal_values(50, 1));
  ASSERT_EQ(good.size(), kSparseHeaderBytes + 5 * kSparseEntryBytes);
  const auto refuses = [&](std::size_t at, std::uint32_t value, std::size_t bytes) {
    Bytes bad = good;
    std::memcpy(bad.data() + at, &value, bytes);
    Floats out(50);
    const auto result = codec->decode(kSlice, bad, out);
    return !result.has_value() && result.error().kind == ErrorKind::kViolation;
  };
  EXPECT_TRUE(refuses(0, 'X', 1));          // magic
  EXPECT_TRUE(refuses(4, 2, 1));            // version
  EXPECT_TRUE(refuses(5, 2, 1));            // another codec
  EXPECT_TRUE(refuses(6, 1, 1));            // NaN with entries
  EXPECT_TRUE(refuses(6, 2, 1));            // a flag that does not exist
  EXPECT_TRUE(refuses(7, 1, 1));            // reserved
  EXPECT_TRUE(refuses(8, 51, 4));           // elements
  EXPECT_TRUE(refuses(12, 4, 4));           // entries
  EXPECT_TRUE(refuses(12, 0xFFFFFFFF, 4));  // entries that would overflow
  EXPECT_TRUE(refuses(16 + 4 * 4, 50, 4));  // an index out of bounds
  EXPECT_TRUE(refuses(16 + 4, 0, 4));       // an index out of order
  EXPECT_TRUE(refuses(36, 0x7F800000, 4));  // an infinite value
  EXPECT_TRUE(refuses(36, 0x7FC00000, 4));  // NaN
  Bytes twice = good;
  std::memcpy(twice.data() + 16, twice.data() + 20, 4);
  Floats out(50);
  EXPECT_FALSE(codec->decode(kSlice, twice, out).has_value()) << "an index twice";
  for (std::size_t size = 0; size < good.size(); ++size)
    EXPECT_FALSE(codec->decode(kSlice, std::span(good).first(size), out).has_value());
}

}  // namespace
}  // namespace deft::compress
