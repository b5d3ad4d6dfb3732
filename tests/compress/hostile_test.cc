// Bytes that no encoder wrote: they are refused, or decode to something; nothing outside is touched.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <bit>

#include "tests/compress/codec_cases.h"

namespace deft::compress {
namespace {

constexpr Slice kSlice{.job = 1, .generation = 2, .first = 0};

// Scales of these codecs are the upper halves of floats.
bool has_short_scales(std::string_view codec) { return codec == "int8" || codec == "int4" || codec == "qsgd"; }

// Writes the float of these bits where a block of the codec has its scale.
void put_scale(const Codec& codec, Bytes& code, std::size_t block, std::uint32_t bits) {
  std::byte* const at = code.data() + block * codec.traits().block_bytes;
  const auto upper = static_cast<std::uint16_t>(bits >> 16);
  has_short_scales(codec.traits().name) ? std::memcpy(at, &upper, sizeof upper) : std::memcpy(at, &bits, sizeof bits);
}

// All that decodes, over the same bytes.
void decode_all_ways(const Codec& codec, const Bytes& bytes, std::size_t count) {
  Floats values(count);
  const auto decoded = codec.decode(kSlice, bytes, values);
  const auto added = codec.decode_add(kSlice, bytes, values);
  RC_ASSERT(decoded.has_value() == added.has_value());
  if (!decoded) RC_ASSERT(decoded.error().kind == ErrorKind::kViolation);
  if (codec.traits().law == Law::kSparse) return;
  const Bytes good = encoded(codec, kSlice, normal_values(count, 1));
  const std::vector<std::span<const std::byte>> inputs{good, bytes, good};
  Bytes out(good.size());
  Floats left(count);
  std::size_t garbage = 99;
  const auto combined = codec.combine(kSlice, inputs, out, left, garbage);
  RC_ASSERT(combined.has_value() == decoded.has_value());
  if (!combined) RC_ASSERT(garbage == 1U);
}

TEST(HostileCode, AnyBytesAreSafe) {
  for (const CodecCase& one : codec_cases()) {
    const CodecPointer codec = codec_of(one.text);
    EXPECT_TRUE(rc::check(one.text, [&] {
      const auto count = *rc::gen::inRange<std::size_t>(1, 600);
      const bool right_size = *rc::gen::arbitrary<bool>();
      const auto size = right_size ? codec->encoded_bytes(count) : *rc::gen::inRange<std::size_t>(0, 1500);
      Bytes bytes(size);
      std::mt19937 random(*rc::gen::arbitrary<std::uint32_t>());
      for (auto& byte : bytes) byte = static_cast<std::byte>(random());
      decode_all_ways(*codec, bytes, count);
    }));
  }
}

TEST(HostileCode, AFlippedBitIsSafe) {
  for (const CodecCase& one : codec_cases()) {
    const CodecPointer codec = codec_of(one.text);
    EXPECT_TRUE(rc::check(one.text, [&] {
      const auto count = *rc::gen::inRange<std::size_t>(1, 600);
      Bytes bytes = encoded(*codec, kSlice, normal_values(count, count));
      const auto bit = *rc::gen::inRange<std::size_t>(0, bytes.size() * 8);
      bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
      decode_all_ways(*codec, bytes, count);
    }));
  }
}

TEST(HostileCode, ScalesThatNoEncoderWritesAreRefused) {
  for (const char* name : {"int8", "int4", "int2", "efsignsgd", "onebit", "signsgd", "signum", "terngrad", "qsgd"}) {
    const CodecPointer codec = codec_of(name);
    const Bytes good = encoded(*codec, kSlice, normal_values(300, 3));
    for (const std::size_t block : {0U, 1U})
      for (const std::uint32_t scale :
           {0x7F800000U, 0xFF800000U, 0x80000000U, 0xBF800000U, 0x7FC00001U, 0xFFC00000U, 0x7F7FFFFFU}) {
        if (scale == 0x7FC00001U && has_short_scales(name)) continue;  // its upper half is what NaN is sent as
        Bytes bad = good;
        put_scale(*codec, bad, block, scale);
        Floats out(300);
        EXPECT_FALSE(codec->decode(kSlice, bad, out).has_value()) << name << " " << std::hex << scale;
      }
  }
}

TEST(HostileCode, TheErrorNamesTheCulprit) {
  for (const char* name : {"int8", "int2", "signsgd", "randk"}) {
    const CodecPointer codec = codec_of(name);
    for (const std::size_t culprit : {0U, 1U, 3U}) {
      std::vector<Bytes> codes(4, encoded(*codec, kSlice, normal_values(600, 3)));
      put_scale(*codec, codes[culprit], 1, 0x7F800000U);
      const std::vector<std::span<const std::byte>> inputs(codes.begin(), codes.end());
      Bytes out(codes[0].size());
      std::size_t garbage = 99;
      const auto result = codec->combine(kSlice, inputs, out, {}, garbage);
      ASSERT_FALSE(result.has_value());
      EXPECT_EQ(result.error().kind, ErrorKind::kViolation);
      EXPECT_EQ(garbage, culprit);
    }
    std::vector<Bytes> codes(3, encoded(*codec, kSlice, normal_values(600, 3)));
    codes[2].pop_back();
    const std::vector<std::span<const std::byte>> inputs(codes.begin(), codes.end());
    Bytes out(codes[0].size());
    std::size_t garbage = 99;
    EXPECT_FALSE(codec->combine(kSlice, inputs, out, {}, garbage).has_value());
    EXPECT_EQ(garbage, 2U);
  }
}

TEST(HostileCode, TheUnusedCodeOfTwoBitsIsRefused) {
  for (const char* name : {"int2", "terngrad"}) {
    const CodecPointer codec = codec_of(name);
    Bytes code = encoded(*codec, kSlice, Floats(256));
    for (const unsigned shift : {0U, 2U, 4U, 6U}) {
      Bytes bad = code;
      bad[4 + 63] = static_cast<std::byte>(2U << shift);
      Floats out(256);
      EXPECT_FALSE(codec->decode(kSlice, bad, out).has_value());
    }
  }
}

TEST(CallersFaults, AreErrorsNotOverruns) {
  for (const CodecCase& one : codec_cases()) {
    const CodecPointer codec = codec_of(one.text);
    Floats values(600, 1.0F), residual(600);
    Bytes small(codec->encoded_bytes(600) - 1);
    EXPECT_FALSE(codec->encode(kSlice, values, small).has_value()) << one.text;
    Bytes room(codec->encoded_bytes(600));
    EXPECT_FALSE(codec->encode_with_feedback(kSlice, values, std::span(residual).first(599), room).has_value())
        << one.text;
    if (!codec->traits().fixed_size || codec->traits().block_elements == 1) continue;
    EXPECT_FALSE(codec->encode({.job = 1, .generation = 1, .first = 100}, values, room).has_value()) << one.text;
  }
}

}  // namespace
}  // namespace deft::compress
