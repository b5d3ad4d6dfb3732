// A bit a value, and mean magnitudes a block: efsignsgd, onebit, and the votes of signsgd and signum.
//
// Byte i of the bits holds the signs of the values i, i + 32, ..., i + 224 from its low bit up, which needs no shuffle.
#pragma once

#include "core/base/mix64.h"
#include "core/compress/lanes.h"

namespace deft::compress {
namespace {

constexpr std::size_t kSignBytes = kBlock / 8;

// out: bit(i) of all values, 0 or 1 each.
template <typename Bit>
void pack_bits(std::byte* __restrict out, Bit bit) {
  for (std::size_t i = 0; i < kSignBytes; ++i) {
    const std::uint32_t low = bit(i) | (bit(i + 32) << 1) | (bit(i + 64) << 2) | (bit(i + 96) << 3);
    const std::uint32_t high = bit(i + 128) | (bit(i + 160) << 1) | (bit(i + 192) << 2) | (bit(i + 224) << 3);
    out[i] = static_cast<std::byte>(low | (high << 4));
  }
}

// The sum of the magnitudes by 256, which stays finite if the values are: of all, or of one sign.
inline float sum_of_magnitudes(const float* __restrict values) {
  return lane_sum([&](std::size_t i) { return magnitude_of(values[i]) * 0x1p-8F; });
}
inline float mean_of_magnitudes(float sum, std::size_t count) {
  return usable_scale(sum / (static_cast<float>(count) * 0x1p-8F));
}

template <bool kAdd>
void put_signs(const std::byte* __restrict bits, float positive, float negative, float* __restrict out) {
  const std::uint32_t if_set = bits_of(positive) ^ (bits_of(negative) | ~kMagnitude);
  for (std::size_t part = 0; part < 8; ++part)
    for (std::size_t i = 0; i < kSignBytes; ++i) {
      const std::uint32_t set = (static_cast<std::uint32_t>(bits[i]) >> part) & 1U;
      put<kAdd>(out[part * kSignBytes + i], float_of(bits_of(positive) ^ ((0U - set) & if_set)));
    }
}

// efsignsgd: the sign of each value and the mean magnitude. Error feedback keeps the rest (Karimireddy et al., 2019).
struct SignFormat {
  static constexpr std::size_t kValueBytes = 0;
  static constexpr std::size_t bytes(std::uint32_t /*level*/) { return sizeof(float) + kSignBytes; }

  static bool encode(const BlockKey& /*key*/, const float* __restrict values, std::size_t count,
                     std::byte* __restrict out) {
    const float sum = sum_of_magnitudes(values);
    if (!is_finite(sum)) return mark_nan(out, bytes(0));
    store(out, mean_of_magnitudes(sum, count));
    pack_bits(out + sizeof sum, [&](std::size_t i) { return bits_of(values[i]) >> 31; });
    return true;
  }

  template <bool kAdd>
  static bool decode(const BlockKey& /*key*/, const std::byte* __restrict in, float* __restrict out) {
    const auto bits = load<std::uint32_t>(in);
    if (!is_scale(bits, 1)) return false;
    if (bits == kNaN) return fill_nan(out), true;
    put_signs<kAdd>(in + sizeof bits, float_of(bits), float_of(bits), out);
    return true;
  }
};

// onebit: the sign of each value, and the mean of those with each sign (Seide et al., 2014).
struct OneBitFormat {
  static constexpr std::size_t kValueBytes = 0;
  static constexpr std::size_t kMeans = 2 * sizeof(float);
  static constexpr std::size_t bytes(std::uint32_t /*level*/) { return kMeans + kSignBytes; }

  static bool encode(const BlockKey& /*key*/, const float* __restrict values, std::size_t count,
                     std::byte* __restrict out) {
    const float all = sum_of_magnitudes(values);
    if (!is_finite(all)) return mark_nan(out, bytes(0));
    const float negative = lane_sum([&](std::size_t i) {
      return float_of(bits_of(values[i]) >> 31 ? bits_of(values[i]) & kMagnitude : 0U) * 0x1p-8F;
    });
    const float positive =
        lane_sum([&](std::size_t i) { return float_of(bits_of(values[i]) >> 31 ? 0U : bits_of(values[i])) * 0x1p-8F; });
    const float negatives = lane_sum(
        [&](std::size_t i) { return static_cast<float>(static_cast<std::int32_t>(bits_of(values[i]) >> 31)); });
    const float others = static_cast<float>(count) - negatives;
    store(out, others > 0 ? usable_scale(positive / (others * 0x1p-8F)) : 0.0F);
    store(out + sizeof(float), negatives > 0 ? usable_scale(negative / (negatives * 0x1p-8F)) : 0.0F);
    pack_bits(out + kMeans, [&](std::size_t i) { return bits_of(values[i]) >> 31; });
    return true;
  }

  template <bool kAdd>
  static bool decode(const BlockKey& /*key*/, const std::byte* __restrict in, float* __restrict out) {
    const auto positive = load<std::uint32_t>(in);
    const auto negative = load<std::uint32_t>(in + sizeof(float));
    if (!is_scale(positive, 1) || !is_scale(negative, 1) || negative == kNaN) return false;
    if (positive == kNaN) return fill_nan(out), true;
    put_signs<kAdd>(in + kMeans, float_of(positive), float_of(negative), out);
    return true;
  }
};

// signsgd and signum: each node votes for a sign of each value; the majority wins (Bernstein et al., 2018), and a coin that
// all nodes share decides a tie. A value of 0 votes as the coin falls, too. The paper's step has magnitude 1; here it is the
// sum of the nodes' mean magnitudes, the scaled sign of Karimireddy et al. (2019), so that learning rates keep their meaning.
struct VoteFormat {
  static constexpr std::size_t kValueBytes = 0;
  static constexpr std::size_t bytes(std::uint32_t level) { return SignFormat::bytes(level); }

  struct Coins {
    std::byte bits[kSignBytes];
    explicit Coins(const BlockKey& key) {
      for (std::size_t i = 0; i < kSignBytes / 8; ++i)
        store(bits + 8 * i, mix64(key.seed ^ mix64(key.block * 4 + i + 0x9E3779B97F4A7C15U)));
    }
  };

  static bool encode(const BlockKey& key, const float* __restrict values, std::size_t count,
                     std::byte* __restrict out) {
    if (!SignFormat::encode(key, values, count, out)) return false;
    std::byte zeros[kSignBytes];
    pack_bits(zeros, [&](std::size_t i) { return (bits_of(values[i]) & kMagnitude) == 0 ? 1U : 0U; });
    const Coins coins(key);
    std::byte* __restrict signs = out + sizeof(float);
    for (std::size_t i = 0; i < kSignBytes; ++i) signs[i] = (signs[i] & ~zeros[i]) | (coins.bits[i] & zeros[i]);
    return true;
  }

  template <bool kAdd>
  static bool decode(const BlockKey& key, const std::byte* __restrict in, float* __restrict out) {
    return SignFormat::decode<kAdd>(key, in, out);
  }

  // Counts the votes that lie `offset` bytes in. Gives the input that is garbage, or their number.
  static std::size_t sum(const BlockKey& key, const std::byte* const* inputs, std::size_t input_count,
                         std::size_t offset, std::byte* __restrict out) {
    std::int32_t votes[kBlock] = {};
    float scale = 0;
    for (std::size_t n = 0; n < input_count; ++n) {
      const std::byte* __restrict in = inputs[n] + offset;
      const auto bits = load<std::uint32_t>(in);
      if (!is_scale(bits, 1)) return n;
      scale += float_of(bits);
      for (std::size_t part = 0; part < 8; ++part)
        for (std::size_t i = 0; i < kSignBytes; ++i)
          votes[part * kSignBytes + i] +=
              1 - 2 * static_cast<std::int32_t>((static_cast<std::uint32_t>(in[sizeof scale + i]) >> part) & 1U);
    }
    if (!is_finite(scale)) return static_cast<void>(mark_nan(out, bytes(0))), input_count;
    store(out, usable_scale(scale));
    std::byte ties[kSignBytes];
    std::byte* __restrict signs = out + sizeof scale;
    pack_bits(signs, [&](std::size_t i) { return static_cast<std::uint32_t>(votes[i]) >> 31; });
    pack_bits(ties, [&](std::size_t i) { return votes[i] == 0 ? 1U : 0U; });
    const Coins coins(key);
    for (std::size_t i = 0; i < kSignBytes; ++i) signs[i] = signs[i] | (coins.bits[i] & ties[i]);
    return input_count;
  }
};

}  // namespace
}  // namespace deft::compress
