// Codecs that draw random numbers: terngrad and qsgd, whose mean is what they encode, and randk, which chooses values.
#pragma once

#include <cmath>

#include "core/base/mix64.h"
#include "core/compress/integers.h"

namespace deft::compress {
namespace {

// Number i of a block. Two rounds of a 32-bit mixing function, each with another key. `salt` tells nodes apart: what they
// encode has another scale on each, so the errors of their roundings do not add up.
struct BlockRandom {
  std::uint32_t first, second;

  explicit BlockRandom(const BlockKey& key, std::uint32_t salt = 0) {
    const std::uint64_t mixed = mix64(key.seed ^ mix64(key.block + 0x9E3779B97F4A7C15U * (std::uint64_t{salt} + 1)));
    first = static_cast<std::uint32_t>(mixed);
    second = static_cast<std::uint32_t>(mixed >> 32);
  }
  [[nodiscard]] std::uint32_t at(std::size_t i) const {
    std::uint32_t x = static_cast<std::uint32_t>(i) * 0x9E3779B9U + first;
    x = (x ^ (x >> 16)) * 0x7FEB352DU;
    x = (x ^ (x >> 15)) * 0x846CA68BU;
    x = (x ^ (x >> 16)) + second;
    x = (x ^ (x >> 16)) * 0x21F0AAADU;
    x = (x ^ (x >> 15)) * 0x735A2D97U;
    return x ^ (x >> 15);
  }
  // From 0 to 1, without 1.
  [[nodiscard]] float share(std::size_t i) const {
    return static_cast<float>(static_cast<std::int32_t>(at(i) >> 8)) * 0x1p-24F;
  }
};

// Each value becomes 0 or the largest magnitude of the block, with its sign: the latter with probability magnitude / largest
// (Wen et al., 2017). The codes are those of int2.
struct TernGradFormat {
  static constexpr std::size_t kValueBytes = 0;
  static constexpr std::size_t kCodes = Int2Format::kCodes;
  static constexpr std::size_t bytes(std::uint32_t level) { return Int2Format::bytes(level); }

  static bool encode(const BlockKey& key, const float* __restrict values, std::size_t /*count*/,
                     std::byte* __restrict out) {
    const std::uint32_t most = largest_bits(values);
    if (most >= kInfinity) return mark_nan(out, bytes(0));
    const float scale = usable_scale(float_of(most));
    store(out, scale);
    const BlockRandom random(key, bits_of(scale));
    std::uint32_t code[kBlock];
    for (std::size_t i = 0; i < kBlock; ++i) code[i] = Int2Format::code_of(values[i], random.share(i) * scale);
    std::byte* __restrict codes = out + sizeof scale;
    const std::uint32_t mask = scale > 0 ? 0xFFU : 0U;
    for (std::size_t i = 0; i < kCodes; ++i) {
      const std::uint32_t low = code[i] | (code[i + kCodes] << 2);
      const std::uint32_t high = code[i + 2 * kCodes] | (code[i + 3 * kCodes] << 2);
      codes[i] = static_cast<std::byte>((low | (high << 4)) & mask);
    }
    return true;
  }

  template <bool kAdd>
  static bool decode(const BlockKey& key, const std::byte* __restrict in, float* __restrict out) {
    return Int2Format::decode<kAdd>(key, in, out);
  }
};

// Each magnitude becomes one of the two nearest of `level` steps up to the block's norm, at random (Alistarh et al., 2017).
// A byte a value.
struct QsgdFormat {
  static constexpr std::size_t kValueBytes = 0;
  using Codes = IntegerFormat<8, 127>;
  static constexpr std::size_t bytes(std::uint32_t level) { return Codes::bytes(level); }

  static bool encode(const BlockKey& key, const float* __restrict values, std::size_t /*count*/,
                     std::byte* __restrict out) {
    const std::uint32_t most = largest_bits(values);
    if (most >= kInfinity) return Codes::mark_nan(out);
    const auto levels = static_cast<float>(key.level);
    const float largest = usable_scale(float_of(most));
    const float inverse = largest > 0 ? 1 / largest : 0.0F;
    const float squares = lane_sum([&](std::size_t i) { return (values[i] * inverse) * (values[i] * inverse); });
    const float step = largest / levels * std::sqrt(squares);
    const float scale = ShortScale::of(step, 127);
    ShortScale::write(out, bits_of(scale));
    const float steps = scale > 0 ? 1 / scale : 0.0F;
    const BlockRandom random(key, bits_of(step));  // of the exact step: nodes with nearly the same one draw apart
    const auto highest = static_cast<std::int32_t>(key.level);
    std::byte* __restrict codes = out + ShortScale::kBytes;
    for (std::size_t i = 0; i < kBlock; ++i) {
      const auto drawn = static_cast<std::int32_t>(magnitude_of(values[i]) * steps + random.share(i));
      const std::int32_t code = drawn < highest ? drawn : highest;
      codes[i] = static_cast<std::byte>(values[i] < 0 ? -code : code);
    }
    return true;
  }

  template <bool kAdd>
  static bool decode(const BlockKey& key, const std::byte* __restrict in, float* __restrict out) {
    return Codes::decode<kAdd>(key, in, out);
  }
};

// One value of each of `level` parts of a block, chosen at random, as a float32. All nodes choose the same values, so no index
// travels. With kWhole a decoded value is multiplied by the size of its part, which makes the mean right.
template <bool kWhole>
struct RandkFormat {
  static constexpr std::size_t kValueBytes = 0;
  static constexpr std::size_t bytes(std::uint32_t level) { return level * sizeof(float); }

  struct Choice {
    std::size_t place;
    float part;  // its size
  };
  static Choice choose(const BlockRandom& random, std::uint32_t level, std::size_t i) {
    const std::size_t begin = i * kBlock / level, end = (i + 1) * kBlock / level;
    const std::uint64_t drawn = std::uint64_t{random.at(i)} * (end - begin);
    return {begin + static_cast<std::size_t>(drawn >> 32), static_cast<float>(end - begin)};
  }

  static bool mark_all_nan(const BlockKey& key, std::byte* out) {
    for (std::size_t i = 0; i < key.level; ++i) store(out + i * sizeof(float), kNaN);
    return false;
  }

  static bool encode(const BlockKey& key, const float* __restrict values, std::size_t /*count*/,
                     std::byte* __restrict out) {
    if (largest_bits(values) >= kInfinity) return mark_all_nan(key, out);
    const BlockRandom random(key);
    for (std::size_t i = 0; i < key.level; ++i)
      store(out + i * sizeof(float), values[choose(random, key.level, i).place]);
    return true;
  }

  // One NaN stands for a block of them; infinity is garbage.
  template <bool kAdd>
  static bool decode(const BlockKey& key, const std::byte* __restrict in, float* __restrict out) {
    bool has_nan = false, has_infinity = false;
    for (std::size_t i = 0; i < key.level; ++i) {
      const std::uint32_t magnitude = load<std::uint32_t>(in + i * sizeof(float)) & kMagnitude;
      has_nan |= magnitude > kInfinity;
      has_infinity |= magnitude == kInfinity;
    }
    if (has_infinity) return false;
    if (has_nan) return fill_nan(out), true;
    if constexpr (!kAdd) std::memset(out, 0, kBlock * sizeof(float));
    const BlockRandom random(key);
    for (std::size_t i = 0; i < key.level; ++i) {
      const Choice choice = choose(random, key.level, i);
      const auto value = load<float>(in + i * sizeof(float));
      put<kAdd>(out[choice.place], kWhole ? value * choice.part : value);
    }
    return true;
  }

  // Minus 0 + x is x, also for x = minus 0. So this code has the bits of the code of the decoded sum.
  static std::size_t sum(const BlockKey& key, const std::byte* const* inputs, std::size_t input_count,
                         std::size_t offset, std::byte* __restrict out) {
    bool finite = true;
    for (std::size_t i = 0; i < key.level; ++i) {
      float sum = -0.0F;
      for (std::size_t n = 0; n < input_count; ++n) {
        const auto value = load<float>(inputs[n] + offset + i * sizeof(float));
        if ((bits_of(value) & kMagnitude) == kInfinity) return n;
        sum += value;
      }
      finite &= is_finite(sum);
      store(out + i * sizeof(float), sum);
    }
    if (!finite) static_cast<void>(mark_all_nan(key, out));
    return input_count;
  }
};

}  // namespace
}  // namespace deft::compress
