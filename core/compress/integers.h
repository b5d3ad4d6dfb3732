// int8, int4 and int2: small whole numbers, and a scale a block.
#pragma once

#include "core/compress/lanes.h"

namespace deft::compress {
namespace {

// A scale in two bytes: the upper half of a float. Rounded up, so that no value is larger than the largest code.
struct ShortScale {
  static constexpr std::size_t kBytes = sizeof(std::uint16_t);

  // At least `scale`; less only if the largest code would not be a float.
  static float of(float scale, int most) {
    const std::uint32_t limit = bits_of(float_of(kLargestBits) / static_cast<float>(most));
    const std::uint32_t up = bits_of(usable_scale(scale)) + 0xFFFFU;
    return float_of((up < limit ? up : limit) & 0xFFFF0000U);
  }
  static void write(std::byte* out, std::uint32_t bits) { store(out, static_cast<std::uint16_t>(bits >> 16)); }
  static std::uint32_t read(const std::byte* in) { return static_cast<std::uint32_t>(load<std::uint16_t>(in)) << 16; }
};

// Whole numbers from -kMost to kMost and a scale: the largest magnitude is about kMost. kBits of each: byte i of the codes holds
// the values i, i + 256 * kBits / 8, ... from its low bits up, which needs no shuffle.
template <int kBits, int kMost>
struct IntegerFormat {
  static constexpr std::size_t kValueBytes = 0;
  static constexpr std::size_t kCodes = kBlock * kBits / 8;
  static constexpr std::size_t bytes(std::uint32_t /*level*/) { return ShortScale::kBytes + kCodes; }

  static bool encode(const BlockKey& /*key*/, const float* __restrict values, std::size_t /*count*/,
                     std::byte* __restrict out) {
    const std::uint32_t most = largest_bits(values);
    if (most >= kInfinity) return mark_nan(out);
    const float step = float_of(most < kLargestBits ? most : kLargestBits) / kMost;
    const float scale = ShortScale::of(step, kMost);
    const float inverse = scale > 0 ? 1.0F / (scale > step ? scale : step) : 0.0F;
    ShortScale::write(out, bits_of(scale));
    std::byte* __restrict codes = out + ShortScale::kBytes;
    for (std::size_t i = 0; i < kCodes; ++i) {
      std::uint32_t code = static_cast<std::uint32_t>(nearest(values[i] * inverse));
      if constexpr (kBits == 4) {
        const auto upper = static_cast<std::uint32_t>(nearest(values[i + kCodes] * inverse));
        code = (code & 0xFU) | (upper << 4);
      }
      codes[i] = static_cast<std::byte>(code);
    }
    return true;
  }

  static bool mark_nan(std::byte* out) {
    std::memset(out, 0, bytes(0));
    ShortScale::write(out, kNaN);
    return false;
  }

  template <bool kAdd>
  static bool decode(const BlockKey& /*key*/, const std::byte* __restrict in, float* __restrict out) {
    const std::uint32_t bits = ShortScale::read(in);
    if (!is_scale(bits, kMost)) return false;
    if (bits == kNaN) return fill_nan(out), true;
    const float scale = float_of(bits);
    const auto* __restrict codes = reinterpret_cast<const std::int8_t*>(in + ShortScale::kBytes);
    for (std::size_t i = 0; i < kCodes; ++i) {
      if constexpr (kBits == 8) {
        put<kAdd>(out[i], static_cast<float>(codes[i]) * scale);
      } else {
        const std::uint32_t both = static_cast<std::uint8_t>(codes[i]);
        put<kAdd>(out[i], static_cast<float>(static_cast<std::int32_t>(both << 28) >> 28) * scale);
        put<kAdd>(out[i + kCodes], static_cast<float>(static_cast<std::int32_t>(both << 24) >> 28) * scale);
      }
    }
    return true;
  }
};

// Three levels: 0 for a small value, else the mean magnitude of the large values. The threshold, 0.7 of the mean magnitude, is
// near the best one for many distributions (Li et al., Ternary Weight Networks, 2016). Codes: 0, 1 and 3 for minus.
struct Int2Format {
  static constexpr std::size_t kValueBytes = 0;
  static constexpr std::size_t kCodes = kBlock / 4;
  static constexpr std::size_t bytes(std::uint32_t /*level*/) { return sizeof(float) + kCodes; }

  static std::uint32_t code_of(float value, float threshold) {
    const std::uint32_t bits = bits_of(value);
    return magnitude_of(value) > threshold ? 1U | ((bits >> 31) << 1) : 0U;
  }
  static float value_of(std::uint32_t code, float scale) {
    return float_of(((code & 1U) != 0 ? bits_of(scale) : 0U) | ((code & 2U) << 30));
  }

  static bool encode(const BlockKey& /*key*/, const float* __restrict values, std::size_t count,
                     std::byte* __restrict out) {
    // Divided by 256 first, so that no sum of finite values is infinite.
    const float sum = lane_sum([&](std::size_t i) { return magnitude_of(values[i]) * 0x1p-8F; });
    if (!is_finite(sum)) return mark_nan(out, bytes(0));
    const float threshold = 0.7F * (sum / (static_cast<float>(count) * 0x1p-8F));
    const float large = lane_sum([&](std::size_t i) {
      const float magnitude = magnitude_of(values[i]);
      return magnitude > threshold ? magnitude * 0x1p-8F : 0.0F;
    });
    const float number = lane_sum([&](std::size_t i) { return magnitude_of(values[i]) > threshold ? 0x1p-8F : 0.0F; });
    const float scale = number > 0 ? usable_scale(large / number) : 0.0F;
    const float limit = scale > 0 ? threshold : FLT_MAX;
    store(out, scale);
    std::byte* __restrict codes = out + sizeof scale;
    for (std::size_t i = 0; i < kCodes; ++i) {
      const std::uint32_t low = code_of(values[i], limit) | (code_of(values[i + kCodes], limit) << 2);
      const std::uint32_t high = code_of(values[i + 2 * kCodes], limit) | (code_of(values[i + 3 * kCodes], limit) << 2);
      codes[i] = static_cast<std::byte>(low | (high << 4));
    }
    return true;
  }

  static bool has_no_code_2(const std::byte* codes) {
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i < kCodes; i += sizeof wrong) {
      const auto word = load<std::uint64_t>(codes + i);
      wrong |= (word >> 1) & ~word;
    }
    return (wrong & 0x5555555555555555U) == 0;
  }

  template <bool kAdd>
  static bool decode(const BlockKey& /*key*/, const std::byte* __restrict in, float* __restrict out) {
    const auto bits = load<std::uint32_t>(in);
    const std::byte* __restrict codes = in + sizeof bits;
    if (!is_scale(bits, 1) || !has_no_code_2(codes)) return false;
    if (bits == kNaN) return fill_nan(out), true;
    const float scale = float_of(bits);
    for (std::size_t part = 0; part < 4; ++part)
      for (std::size_t i = 0; i < kCodes; ++i)
        put<kAdd>(out[part * kCodes + i], value_of(static_cast<std::uint32_t>(codes[i]) >> (2 * part), scale));
    return true;
  }
};

}  // namespace
}  // namespace deft::compress
