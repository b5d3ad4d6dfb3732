// What all block formats share: the bits of floats, sums by lanes, scales. The formats are included by loops.h alone, once a
// kernel set.
//
// A format says how 256 values become bytes and back:
//   kValueBytes                          bytes of a value if each value stands alone, else 0
//   bytes(level)                         bytes of a block
//   encode(key, values, count, out)      values behind `count` are 0. false: a value was NaN or infinite, and `out` says so
//   decode<kAdd>(key, in, out)           false: `in` is garbage
#pragma once

#include <bit>
#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/compress/kernels.h"

namespace deft::compress {
namespace {

constexpr std::uint32_t kMagnitude = 0x7FFFFFFFU;
constexpr std::uint32_t kInfinity = 0x7F800000U;
constexpr std::uint32_t kNaN = 0x7FC00000U;  // as a scale: the block held NaN or infinity
// Scales stay a little below the largest float, so that no rounding of a decoded value reaches infinity.
constexpr std::uint32_t kLargestBits = 0x7F7FF000U;
constexpr std::size_t kLanes = 16;

inline std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
inline float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline float magnitude_of(float value) { return float_of(bits_of(value) & kMagnitude); }
inline bool is_finite(float value) { return (bits_of(value) & kMagnitude) < kInfinity; }

template <typename T>
T load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}
template <typename T>
void store(std::byte* bytes, T value) {
  std::memcpy(bytes, &value, sizeof value);
}

template <bool kAdd>
void put(float& out, float value) {
  if constexpr (kAdd) {
    out += value;
  } else {
    out = value;
  }
}

inline void fill_nan(float* out) {
  for (std::size_t i = 0; i < kBlock; ++i) out[i] = float_of(kNaN);
}

// The bits of the largest magnitude: kInfinity or more if a value is not finite.
inline std::uint32_t largest_bits(const float* __restrict values) {
  std::int32_t largest = 0;
  for (std::size_t i = 0; i < kBlock; ++i) {
    const auto bits = static_cast<std::int32_t>(bits_of(values[i]) & kMagnitude);
    largest = bits > largest ? bits : largest;
  }
  return static_cast<std::uint32_t>(largest);
}

// The sum of term(i) over a block, in the order that all kernel sets keep: 16 lanes, then those by halves.
template <typename Term>
float lane_sum(Term term) {
  float lanes[kLanes];
  for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = term(lane);
  for (std::size_t row = kLanes; row < kBlock; row += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(row + lane);
  for (std::size_t width = kLanes / 2; width > 0; width /= 2)
    for (std::size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  return lanes[0];
}

// A scale that decoders accept: not so small that it is denormal, and finite.
inline float usable_scale(float scale) {
  if (scale < FLT_MIN) return 0;
  return scale < float_of(kLargestBits) ? scale : float_of(kLargestBits);
}

// True if a scale from the wire is one that an encoder writes, for codes up to `most`.
inline bool is_scale(std::uint32_t bits, float most) {
  return bits == kNaN || bits <= bits_of(float_of(0x7F7FFF00U) / most);
}

// The block held NaN or infinity.
inline bool mark_nan(std::byte* out, std::size_t bytes) {
  std::memset(out, 0, bytes);
  store(out, kNaN);
  return false;
}

// The nearest whole number (the even one of two), for |value| < 2^22: adding 1.5 * 2^23 rounds at the last bit.
inline std::int32_t nearest(float value) {
  return static_cast<std::int32_t>(bits_of(value + 12582912.0F) - 0x4B400000U);
}

}  // namespace
}  // namespace deft::compress
