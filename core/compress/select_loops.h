// The loops that look for large values. Included by loops.h alone, once a kernel set.
#pragma once

#include "core/compress/lanes.h"

namespace deft::compress {
namespace {

// Bit i: the magnitude of values[i] is above `bits`, for 16 values.
inline std::uint32_t above(const float* values, std::uint32_t bits) {
#if defined(__AVX2__)  // and not AVX-512's masks: GCC 12 spills 16 bits of a mask and reads 32 of them back
  const __m256i mask = _mm256_set1_epi32(0x7FFFFFFF), limit = _mm256_set1_epi32(static_cast<int>(bits));
  const auto half = [&](const float* from) {
    const __m256i magnitudes = _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)), mask);
    return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(magnitudes, limit))));
  };
  return half(values) | (half(values + 8) << 8);
#else
  std::uint32_t result = 0;
  for (std::size_t i = 0; i < 16; ++i)
    result |= static_cast<std::uint32_t>((bits_of(values[i]) & kMagnitude) > bits) << i;
  return result;
#endif
}

std::size_t find_large(const float* values, std::size_t count, std::uint32_t first, std::uint32_t bits,
                       std::uint64_t* found) {
  std::size_t number = 0;
  const auto note = [&](std::size_t i) {
    found[number++] = large_key(bits_of(values[i]) & kMagnitude, first + static_cast<std::uint32_t>(i));
  };
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16)
    for (std::uint32_t rest = above(values + i, bits); rest != 0; rest &= rest - 1)
      note(i + static_cast<std::size_t>(std::countr_zero(rest)));
  for (; i < count; ++i)
    if ((bits_of(values[i]) & kMagnitude) > bits) note(i);
  return number;
}

std::uint32_t largest_of(const float* values, std::size_t count) {
  std::uint32_t largest = 0;
  std::size_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    const std::uint32_t here = largest_bits(values + i);
    largest = here > largest ? here : largest;
  }
  for (; i < count; ++i) {
    const std::uint32_t here = bits_of(values[i]) & kMagnitude;
    largest = here > largest ? here : largest;
  }
  return largest;
}

// A sum of finite values that overflows becomes the largest float: what has been kept never becomes infinite.
inline float bounded(float sum) {
  const std::uint32_t magnitude = bits_of(sum) & kMagnitude;
  return magnitude < kInfinity ? sum : float_of((bits_of(sum) & ~kMagnitude) | (kInfinity - 1));
}

void add_values(const float* __restrict values, float* __restrict residual, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) residual[i] = bounded(residual[i] + values[i]);
}

void add_momentum(const float* __restrict values, float* __restrict momentum, float beta, float* __restrict residual,
                  std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    momentum[i] = bounded(beta * momentum[i] + values[i]);
    residual[i] = bounded(residual[i] + momentum[i]);
  }
}

}  // namespace
}  // namespace deft::compress
