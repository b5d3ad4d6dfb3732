// Sums that a parameter server makes: the bits of an owner's sum, and nothing of hostile recipes.
#include "core/compress/encoded_sum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <limits>

#include "core/compress/registry.h"
#include "tests/compress/codec_cases.h"

namespace deft::compress {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> block_codecs() {
  std::vector<std::string> texts;
  for (const CodecCase& one : codec_cases()) {
    const Traits traits = codec_of(one.text)->traits();
    if (traits.fixed_size && !traits.takes_momentum) texts.push_back(one.text);
  }
  return texts;
}

class EncodedSums : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, EncodedSums, ::testing::ValuesIn(block_codecs()),
                         [](const auto& test) { return test_name(test.param); });

// Blocks of 256 elements of random data, some of them not finite, in runs anywhere in the arena; what each node encodes.
struct Pushed {
  std::vector<Slice> slices;
  std::vector<std::size_t> elements;  // of each run
  SumRecipe recipe;
  std::vector<Bytes> codes;  // of each node
};

Pushed pushed_by(std::size_t nodes, const Codec& codec, std::mt19937& random) {
  Pushed pushed;
  pushed.recipe = {.codec = text_of(codec), .job = random(), .generation = random() % 1000, .runs = {}};
  pushed.codes.resize(nodes);
  for (std::size_t run = 0; run < 1 + random() % 4; ++run) {
    const std::size_t elements = 256 * (1 + random() % 3);
    const Slice slice{pushed.recipe.job, pushed.recipe.generation, 256 * (random() % 1'000'000)};
    pushed.slices.push_back(slice);
    pushed.elements.push_back(elements);
    pushed.recipe.runs.push_back({slice.first, static_cast<std::uint32_t>(elements / codec.traits().block_elements)});
    for (Bytes& code : pushed.codes) {
      Floats values = make_values(kFiniteData[random() % std::size(kFiniteData)], elements, random());
      if (random() % 8 == 0) values[random() % elements] = std::numeric_limits<float>::infinity();
      const Bytes part = encoded(codec, slice, values);
      code.insert(code.end(), part.begin(), part.end());
    }
  }
  return pushed;
}

TEST_P(EncodedSums, HaveTheBitsOfAnOwnersSumRunByRun) {
  const CodecPointer codec = codec_of(GetParam());
  EXPECT_TRUE(rc::check("bits", [&] {
    std::mt19937 random(*rc::gen::arbitrary<std::uint32_t>());
    const Pushed pushed = pushed_by(*rc::gen::inRange<std::size_t>(2, 6), *codec, random);
    const std::vector<std::span<const std::byte>> codes(pushed.codes.begin(), pushed.codes.end());
    const auto sum = EncodedSum::read(pushed.recipe.bytes(), codes[0].size());
    RC_ASSERT(sum.has_value());
    std::size_t garbage = 7;
    Bytes combined(codes[0].size()), again(codes[0].size());
    RC_ASSERT(sum->combine(codes, combined, garbage).has_value());
    Floats values(sum->values());
    RC_ASSERT(sum->add(codes, values, garbage).has_value());
    std::size_t byte = 0, value = 0;
    for (std::size_t run = 0; run < pushed.slices.size(); ++run) {
      const std::size_t elements = pushed.elements[run], bytes = codec->encoded_bytes(elements);
      std::vector<std::span<const std::byte>> inputs;
      for (const auto& code : codes) inputs.push_back(code.subspan(byte, bytes));
      Bytes owned(bytes), of_sum(bytes);
      Floats left(elements), left_of_sum(elements, 7.0F);
      RC_ASSERT(codec->combine(pushed.slices[run], inputs, owned, left, garbage).has_value());
      RC_ASSERT(std::equal(owned.begin(), owned.end(), combined.begin() + static_cast<std::ptrdiff_t>(byte)));
      if (codec->traits().uses_feedback) {
        const auto part = std::span(values).subspan(value, elements);
        RC_ASSERT(encode_sum(*codec, pushed.slices[run], part, of_sum, left_of_sum).has_value());
        RC_ASSERT(of_sum == owned);
        RC_ASSERT(same_bits(left_of_sum, left));
      }
      byte += bytes;
      value += elements;
    }
    if (codec->traits().uses_feedback) {
      RC_ASSERT(sum->encode(values, again).has_value());
      RC_ASSERT(again == combined);
    }
  }));
}

TEST_P(EncodedSums, NameTheNodeWhoseCodesAreGarbage) {
  const CodecPointer codec = codec_of(GetParam());
  std::mt19937 random(5);
  Pushed pushed = pushed_by(3, *codec, random);
  Bytes& bad = pushed.codes[1];
  std::fill(bad.end() - static_cast<std::ptrdiff_t>(codec->encoded_bytes(256)), bad.end(), std::byte{0xFD});
  std::vector<std::span<const std::byte>> codes(pushed.codes.begin(), pushed.codes.end());
  const auto sum = EncodedSum::read(pushed.recipe.bytes(), bad.size());
  ASSERT_TRUE(sum);
  std::size_t garbage = 0;
  Bytes out(bad.size());
  Floats values(sum->values());
  const bool any_bytes_decode = codec->traits().block_elements == 1 || GetParam().starts_with("randk");
  EXPECT_EQ(sum->combine(codes, out, garbage).has_value(), any_bytes_decode);
  if (!any_bytes_decode) {
    EXPECT_EQ(garbage, 1U);
  }
  garbage = 0;
  EXPECT_EQ(sum->add(codes, values, garbage).has_value(), any_bytes_decode);
  if (!any_bytes_decode) {
    EXPECT_EQ(garbage, 1U);
  }
}

std::string refusal(const std::vector<std::byte>& recipe, std::size_t code_bytes) {
  const auto sum = EncodedSum::read(recipe, code_bytes);
  if (sum) return "";
  EXPECT_EQ(sum.error().kind, ErrorKind::kViolation);
  return sum.error().message();
}

TEST(EncodedSum, RefusesRecipesThatCannotBe) {
  const SumRecipe good{.codec = "int8", .job = 1, .generation = 2, .runs = {{256, 2}, {1024, 1}}};
  EXPECT_EQ(refusal(good.bytes(), 774), "");
  EXPECT_THAT(refusal(good.bytes(), 516), HasSubstr("does not fit 516 bytes of int8"));
  EXPECT_THAT(refusal({}, 774), HasSubstr("too short"));
  auto bytes = good.bytes();
  bytes.pop_back();
  EXPECT_THAT(refusal(bytes, 774), HasSubstr("another size"));
  bytes = good.bytes();
  std::fill_n(bytes.begin() + 16, 8, std::byte{0xFF});  // the numbers of runs and of the codec's bytes
  EXPECT_THAT(refusal(bytes, 774), HasSubstr("another size"));
  const auto with = [&](const auto& change) {
    SumRecipe recipe = good;
    change(recipe);
    return refusal(recipe.bytes(), 774);
  };
  EXPECT_THAT(with([](SumRecipe& r) { r.codec = "int9"; }), HasSubstr("no codec is called 'int9'"));
  EXPECT_THAT(with([](SumRecipe& r) { r.codec = "topk"; }), HasSubstr("not added by blocks"));
  EXPECT_THAT(with([](SumRecipe& r) { r.codec = "signum"; }), HasSubstr("not added by blocks"));
  EXPECT_THAT(with([](SumRecipe& r) { r.codec = std::string(200, 'x'); }), HasSubstr("another size"));
  EXPECT_THAT(with([](SumRecipe& r) { r.runs[0].first = 255; }), HasSubstr("does not fit"));
  EXPECT_THAT(with([](SumRecipe& r) { r.runs[0].first = std::uint64_t{1} << 63; }), HasSubstr("does not fit"));
  EXPECT_THAT(with([](SumRecipe& r) { r.runs[1].blocks = 0; }), HasSubstr("does not fit"));
  EXPECT_THAT(with([](SumRecipe& r) { r.runs[1].blocks = 0xFFFFFFFF; }), HasSubstr("does not fit"));
  EXPECT_THAT(with([](SumRecipe& r) { r.runs.clear(); }), HasSubstr("does not fit"));
}

// Nothing but runs that fit the codes is taken, whatever bytes are changed.
TEST(EncodedSum, ASpoiledRecipeIsRefusedOrFitsTheCodes) {
  EXPECT_TRUE(rc::check("spoiled", [] {
    const SumRecipe good{.codec = "int8", .job = 1, .generation = 2, .runs = {{256, 2}, {1024, 1}}};
    std::vector<std::byte> bytes = good.bytes();
    for (std::size_t changes = *rc::gen::inRange<std::size_t>(1, 6); changes > 0; --changes)
      bytes[*rc::gen::inRange<std::size_t>(0, bytes.size())] = static_cast<std::byte>(*rc::gen::inRange(0, 256));
    const auto sum = EncodedSum::read(bytes, 774);
    if (!sum) return;
    const Bytes code(774);
    const std::vector<std::span<const std::byte>> codes(2, code);
    Bytes out(774);
    std::size_t garbage = 0;
    RC_ASSERT(sum->values() * sum->codec().traits().block_bytes == 774 * sum->codec().traits().block_elements);
    static_cast<void>(sum->combine(codes, out, garbage));
  }));
}

TEST(EncodedSum, SaysForPeopleWhatWasPushed) {
  const SumRecipe recipe{.codec = "int4", .job = 1, .generation = 12, .runs = {{768, 2}}};
  EXPECT_EQ(SumRecipe::describe(recipe.bytes()), "int4 of generation 12 at element 768");
  EXPECT_EQ(SumRecipe::describe({}), "an unknown codec");
  EXPECT_EQ(text_of(*codec_of("randk/ratio=0.1")), "randk/ratio=0.1,unbiased=0,seed=0");
}

}  // namespace
}  // namespace deft::compress
