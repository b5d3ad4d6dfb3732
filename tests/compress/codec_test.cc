// What every codec promises, for each of them.
#include "core/compress/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/compress/codec_cases.h"

namespace deft::compress {
namespace {

constexpr Slice kSlice{.job = 77, .generation = 5, .first = 512};
constexpr std::size_t kSizes[] = {1, 2, 255, 256, 257, 1000, 4096 + 17};
#ifdef DEFT_COMPRESS_STEPS
constexpr std::uint64_t kSteps = DEFT_COMPRESS_STEPS;
#else
constexpr std::uint64_t kSteps = 1'000'000;
#endif
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class CodecTest : public ::testing::TestWithParam<CodecCase> {
 protected:
  const CodecPointer codec_ = codec_of(GetParam().text);
  const Traits& traits_ = codec_->traits();

  [[nodiscard]] bool has_combine() const { return traits_.law == Law::kRequantised || traits_.law == Law::kVoted; }
  [[nodiscard]] std::vector<Bytes> encodings(std::size_t nodes, std::size_t count) const {
    std::vector<Bytes> all;
    for (std::size_t n = 0; n < nodes; ++n) all.push_back(encoded(*codec_, kSlice, normal_values(count, 100 + n)));
    return all;
  }
};
// The codecs that promise what a suite is about.
template <typename Promise>
auto codecs_with(Promise promise) {
  std::vector<CodecCase> cases = codec_cases();
  std::erase_if(cases, [&](const CodecCase& one) { return !promise(codec_of(one.text)->traits()); });
  return ::testing::ValuesIn(cases);
}
bool is_added_by_owners(const Traits& traits) { return traits.law == Law::kRequantised || traits.law == Law::kVoted; }
std::string name_of(const ::testing::TestParamInfo<CodecCase>& test) { return test_name(test.param.text); }

class ContractiveTest : public CodecTest {};
class FeedbackTest : public CodecTest {};
class BlocksTest : public CodecTest {};
class SumTest : public CodecTest {};
class RequantisedTest : public CodecTest {};
INSTANTIATE_TEST_SUITE_P(All, CodecTest, codecs_with([](const Traits&) { return true; }), name_of);
INSTANTIATE_TEST_SUITE_P(All, ContractiveTest, codecs_with([](const Traits& traits) { return traits.contractive; }),
                         name_of);
INSTANTIATE_TEST_SUITE_P(All, FeedbackTest, codecs_with([](const Traits& traits) { return traits.uses_feedback; }),
                         name_of);
INSTANTIATE_TEST_SUITE_P(All, BlocksTest, codecs_with([](const Traits& traits) { return traits.fixed_size; }), name_of);
INSTANTIATE_TEST_SUITE_P(All, SumTest, codecs_with(is_added_by_owners), name_of);
INSTANTIATE_TEST_SUITE_P(All, RequantisedTest,
                         codecs_with([](const Traits& traits) { return traits.law == Law::kRequantised; }), name_of);

std::vector<std::span<const std::byte>> spans_of(const std::vector<Bytes>& codes) {
  return {codes.begin(), codes.end()};
}

TEST_P(CodecTest, SaysWhatItIs) {
  EXPECT_EQ(GetParam().text.substr(0, traits_.name.size()), traits_.name);
  EXPECT_FALSE(traits_.contractive && traits_.unbiased);
  EXPECT_FALSE(traits_.unbiased && traits_.uses_feedback) << "its residual would grow without bound";
  EXPECT_TRUE(!traits_.uses_feedback || traits_.contractive);
  EXPECT_EQ(traits_.fixed_size, traits_.block_bytes > 0);
  EXPECT_EQ(256 % traits_.block_elements, 0U);
}

TEST_P(CodecTest, TheSizeIsAsAnnounced) {
  for (const std::size_t count : kSizes) {
    const std::size_t announced = codec_->encoded_bytes(count);
    const Bytes code = encoded(*codec_, kSlice, normal_values(count, count));
    if (traits_.fixed_size) {
      EXPECT_EQ(code.size(), announced);
      const std::size_t blocks = (count + traits_.block_elements - 1) / traits_.block_elements;
      EXPECT_EQ(announced, blocks * traits_.block_bytes);
    } else {
      EXPECT_LE(code.size(), announced);
    }
  }
  EXPECT_TRUE(codec_->encode(kSlice, {}, {}).has_value());
}

TEST_P(CodecTest, WritesOnlyWhereItMay) {
  for (const std::size_t count : kSizes) {
    const std::size_t room = codec_->encoded_bytes(count);
    Bytes code(room + 64, std::byte{0xA5});
    const std::size_t used = codec_->encode(kSlice, normal_values(count, 3), std::span(code).first(room)).value();
    EXPECT_TRUE(std::all_of(code.begin() + static_cast<std::ptrdiff_t>(room), code.end(),
                            [](std::byte b) { return b == std::byte{0xA5}; }));
    Floats out(count + 16, 42.0F);
    ASSERT_TRUE(codec_->decode(kSlice, std::span(code).first(used), std::span(out).first(count)).has_value());
    EXPECT_TRUE(
        std::all_of(out.begin() + static_cast<std::ptrdiff_t>(count), out.end(), [](float f) { return f == 42.0F; }));
  }
}

TEST_P(ContractiveTest, TheErrorIsBounded) {
  const Floats values = normal_values(4096, 11);
  const Floats back = decoded(*codec_, kSlice, encoded(*codec_, kSlice, values), values.size());
  Floats left(values.size());
  for (std::size_t i = 0; i < left.size(); ++i) left[i] = values[i] - back[i];
  EXPECT_LE(squared(left), GetParam().most_left_out * squared(values));
}

TEST_P(ContractiveTest, ContractsWhateverTheData) {
  for (const Data data : kFiniteData)
    for (const std::size_t count : kSizes) {
      const Floats values = make_values(data, count, count);
      const Floats back = decoded(*codec_, kSlice, encoded(*codec_, kSlice, values), count);
      double left = 0;
      for (std::size_t i = 0; i < count; ++i) left += std::pow(static_cast<double>(values[i]) - back[i], 2);
      EXPECT_LE(left, squared(values) * (1 + 1e-6)) << static_cast<int>(data) << " " << count;
    }
}

TEST_P(FeedbackTest, NothingIsLost) {
  for (const Data data : kFiniteData)
    for (const std::size_t count : kSizes) {
      const Floats values = make_values(data, count, count + 1);
      const Floats old = make_values(data == Data::kHuge ? Data::kNormal : data, count, count + 2);
      Floats residual = old;
      const Bytes code = encoded_with_feedback(*codec_, kSlice, values, residual);
      const Floats back = decoded(*codec_, kSlice, code, count);
      for (std::size_t i = 0; i < count; ++i) {
        const double sum = static_cast<double>(values[i]) + old[i];
        ASSERT_TRUE(std::isfinite(back[i]) && std::isfinite(residual[i])) << values[i] << " -> " << back[i];
        const double rounding = 3e-7 * (std::abs(sum) + std::abs(back[i])) + 3e-45;
        ASSERT_NEAR(static_cast<double>(back[i]) + residual[i], sum, rounding) << static_cast<int>(data) << " " << i;
      }
    }
}

TEST_P(CodecTest, EveryKernelSetGivesTheSameBits) {
  for (const KernelSet& set : kernel_sets()) {
    const CodecPointer other = codec_of(GetParam().text, *set.kernels);
    const CodecPointer portable = codec_of(GetParam().text, portable_kernels());
    for (const Data data : kFiniteData)
      for (const std::size_t count : kSizes) {
        SCOPED_TRACE(testing::Message() << set.name << ", data " << static_cast<int>(data) << ", count " << count);
        Floats values = make_values(data, count, count);
        if (count > 300) values[299] = kNaN;
        Floats left = normal_values(count, 2), other_left = left;
        const Bytes code = encoded_with_feedback(*portable, kSlice, values, left);
        ASSERT_EQ(code, encoded_with_feedback(*other, kSlice, values, other_left));
        ASSERT_TRUE(same_bits(left, other_left));
        ASSERT_EQ(encoded(*portable, kSlice, values), encoded(*other, kSlice, values));
        ASSERT_TRUE(same_bits(decoded(*portable, kSlice, code, count), decoded(*other, kSlice, code, count)));
        Floats sum = normal_values(count, 3), other_sum = sum;
        ASSERT_TRUE(portable->decode_add(kSlice, code, sum) && other->decode_add(kSlice, code, other_sum));
        ASSERT_TRUE(same_bits(sum, other_sum));
        if (!has_combine()) continue;
        const std::vector<Bytes> all = {code, encoded(*portable, kSlice, normal_values(count, 4)), code};
        Bytes out(code.size()), other_out(code.size());
        std::size_t garbage = 0;
        ASSERT_TRUE(portable->combine(kSlice, spans_of(all), out, left, garbage).has_value());
        ASSERT_TRUE(other->combine(kSlice, spans_of(all), other_out, other_left, garbage).has_value());
        ASSERT_EQ(out, other_out);
        ASSERT_TRUE(same_bits(left, other_left));
      }
  }
}

TEST_P(CodecTest, DecodeAddIsDecodeAndAdd) {
  for (const std::size_t count : kSizes) {
    const Bytes code = encoded(*codec_, kSlice, normal_values(count, 8));
    const Floats back = decoded(*codec_, kSlice, code, count);
    Floats sum = normal_values(count, 9), expected = sum;
    for (std::size_t i = 0; i < count; ++i) expected[i] += back[i];
    ASSERT_TRUE(codec_->decode_add(kSlice, code, sum).has_value());
    EXPECT_EQ(sum, expected);
  }
}

TEST_P(BlocksTest, ACutAtABlockChangesNoBit) {
  const std::size_t count = 256 * 9 + 100;
  const Floats values = make_values(Data::kHeavyTail, count, 12);
  Floats whole_left = normal_values(count, 13), left = whole_left;
  const Bytes whole = encoded_with_feedback(*codec_, kSlice, values, whole_left);
  for (const std::size_t cut_blocks : {1U, 2U, 5U, 9U}) {
    const std::size_t cut = cut_blocks * 256;
    Slice second = kSlice;
    second.first += cut;
    Bytes code = encoded_with_feedback(*codec_, kSlice, std::span(values).first(cut), std::span(left).first(cut));
    const Bytes rest =
        encoded_with_feedback(*codec_, second, std::span(values).subspan(cut), std::span(left).subspan(cut));
    const Floats first_back = decoded(*codec_, kSlice, std::span(whole).first(code.size()), cut);
    const Floats back = decoded(*codec_, kSlice, whole, count);
    EXPECT_TRUE(same_bits(first_back, std::span(back).first(cut)));
    EXPECT_TRUE(same_bits(decoded(*codec_, second, std::span(whole).subspan(code.size()), count - cut),
                          std::span(back).subspan(cut)));
    code.insert(code.end(), rest.begin(), rest.end());
    EXPECT_EQ(code, whole);
    EXPECT_TRUE(same_bits(left, whole_left));
    left = normal_values(count, 13);
  }
}

TEST_P(SumTest, ACutOfASumChangesNoBit) {
  const std::size_t count = 256 * 5 + 30, cut = 512;
  const std::vector<Bytes> all = encodings(3, count);
  const std::size_t cut_bytes = codec_->encoded_bytes(cut);
  Bytes whole(all[0].size()), parts(all[0].size());
  Floats whole_left(count), left(count);
  std::size_t garbage = 0;
  ASSERT_TRUE(codec_->combine(kSlice, spans_of(all), whole, whole_left, garbage).has_value());
  auto first = spans_of(all), second = spans_of(all);
  for (auto& input : first) input = input.first(cut_bytes);
  for (auto& input : second) input = input.subspan(cut_bytes);
  Slice behind = kSlice;
  behind.first += cut;
  ASSERT_TRUE(
      codec_->combine(behind, second, std::span(parts).subspan(cut_bytes), std::span(left).subspan(cut), garbage)
          .has_value());
  ASSERT_TRUE(codec_->combine(kSlice, first, std::span(parts).first(cut_bytes), std::span(left).first(cut), garbage)
                  .has_value());
  EXPECT_EQ(parts, whole);
  EXPECT_TRUE(same_bits(left, whole_left));
}

TEST_P(SumTest, ASumMayReplaceAnInput) {
  for (const std::size_t count : {100U, 256U, 1111U}) {
    std::vector<Bytes> all = encodings(4, count);
    Bytes apart(all[0].size());
    std::size_t garbage = 0;
    ASSERT_TRUE(codec_->combine(kSlice, spans_of(all), apart, {}, garbage).has_value());
    ASSERT_TRUE(codec_->combine(kSlice, spans_of(all), all[2], {}, garbage).has_value());
    EXPECT_EQ(all[2], apart);
  }
}

TEST_P(RequantisedTest, ASumLeavesOutWhatItDoesNotSay) {
  for (const std::size_t count : {100U, 256U, 1111U}) {
    const std::vector<Bytes> all = encodings(5, count);
    Bytes out(all[0].size());
    Floats left(count), sum = decoded(*codec_, kSlice, all[0], count);
    for (std::size_t n = 1; n < all.size(); ++n) ASSERT_TRUE(codec_->decode_add(kSlice, all[n], sum).has_value());
    std::size_t garbage = 0;
    ASSERT_TRUE(codec_->combine(kSlice, spans_of(all), out, left, garbage).has_value());
    const Floats said = decoded(*codec_, kSlice, out, count);
    for (std::size_t i = 0; i < count; ++i) EXPECT_FLOAT_EQ(left[i], sum[i] - said[i]);
    if (!traits_.unbiased) {
      EXPECT_EQ(out, encoded(*codec_, kSlice, sum));
    }
  }
}

TEST_P(CodecTest, NaNAndInfinityAreSeenAndLeaveResidualsAlone) {
  for (const float bad : {kNaN, kInfinity, -kInfinity}) {
    const std::size_t count = 700;
    Floats values = normal_values(count, 31);
    values[300] = bad;
    const Floats old = normal_values(count, 32);
    Floats residual = old;
    const Bytes code = encoded_with_feedback(*codec_, kSlice, values, residual);
    const Floats back = decoded(*codec_, kSlice, code, count);
    EXPECT_FALSE(std::isfinite(back[300]));
    const std::size_t first = traits_.fixed_size ? 300 / traits_.block_elements * traits_.block_elements : 0;
    const std::size_t end = traits_.fixed_size ? first + traits_.block_elements : count;
    for (std::size_t i = 0; i < count; ++i) {
      const bool within = i >= first && i < end;
      EXPECT_EQ(std::isfinite(back[i]), !within) << i;
      EXPECT_TRUE(!within || residual[i] == old[i]) << i;
    }
  }
}

TEST_P(SumTest, ASumThatOverflowsIsSeenByAll) {
  Floats values(256, 1.0F);
  values[9] = kInfinity;
  std::vector<Bytes> all{encoded(*codec_, kSlice, Floats(256, 1.0F)), encoded(*codec_, kSlice, values)};
  Floats left(256, 5.0F);
  std::size_t garbage = 0;
  ASSERT_TRUE(codec_->combine(kSlice, spans_of(all), all[0], left, garbage).has_value());
  EXPECT_FALSE(std::isfinite(decoded(*codec_, kSlice, all[0], 256)[9]));
  EXPECT_EQ(left[9], 0.0F);
}

TEST_P(CodecTest, ZerosStayZeros) {
  const Floats zeros = make_values(Data::kZeros, 600, 1);
  Floats residual(600);
  const Bytes code = encoded_with_feedback(*codec_, kSlice, zeros, residual);
  for (const float value : decoded(*codec_, kSlice, code, 600)) EXPECT_EQ(value, 0.0F);
  for (const float value : residual) EXPECT_EQ(value, 0.0F);
}

TEST_P(CodecTest, AReplayGivesTheSameBytes) {
  const Floats values = normal_values(1000, 55);
  EXPECT_EQ(encoded(*codec_, kSlice, values), encoded(*codec_, kSlice, values));
}

// Error feedback: the mean of what is sent becomes the mean of the gradients, and the residual does not grow.
TEST_P(FeedbackTest, TheResidualStaysBoundedOverAMillionSteps) {
  constexpr std::size_t kCount = 8;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  Floats pool(64 * kCount);
  for (float& value : pool) value = normal(random);
  Floats residual(kCount), back(kCount);
  Bytes code(codec_->encoded_bytes(kCount));
  double sent = 0, given = 0, most = 0;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    const auto values = std::span<const float>(pool).subspan(random() % 64 * kCount, kCount);
    const Slice slice{.job = 1, .generation = step, .first = 0};
    const std::size_t used = codec_->encode_with_feedback(slice, values, residual, code).value();
    ASSERT_TRUE(codec_->decode(slice, std::span(code).first(used), back).has_value());
    sent += back[0];
    given += values[0];
    most = std::max(most, squared(residual));
  }
  EXPECT_NEAR(sent + residual[0], given, 1e-6 * kSteps);
  EXPECT_LT(most, 500 * squared(pool) / 64);
}

}  // namespace
}  // namespace deft::compress
