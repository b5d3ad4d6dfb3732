// bf16 and fp16: each value by itself, rounded to the nearest even one.
#pragma once

#include "core/compress/lanes.h"
#include "core/reduce/half.h"

namespace deft::compress {
namespace {

struct BFloat16Format {
  static constexpr std::size_t kValueBytes = 2;
  static constexpr std::size_t bytes(std::uint32_t /*level*/) { return 2 * kBlock; }

  // A finite value stays finite: a value that is too large for the format becomes its largest number.
  static bool encode(const BlockKey& /*key*/, const float* __restrict values, std::size_t /*count*/,
                     std::byte* __restrict out) {
    for (std::size_t i = 0; i < kBlock; ++i) {
      const std::uint32_t bits = bits_of(values[i]);
      const std::uint32_t magnitude = bits & kMagnitude;
      std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
      rounded = magnitude >= 0x7F7F8000U ? ((bits >> 16) & 0x8000U) | 0x7F7FU : rounded;
      rounded = magnitude >= kInfinity ? bits >> 16 : rounded;
      rounded = magnitude > kInfinity ? rounded | 0x40U : rounded;
      store(out + 2 * i, static_cast<std::uint16_t>(rounded));
    }
    return true;
  }

  template <bool kAdd>
  static bool decode(const BlockKey& /*key*/, const std::byte* __restrict in, float* __restrict out) {
    for (std::size_t i = 0; i < kBlock; ++i)
      put<kAdd>(out[i], float_of(std::uint32_t{load<std::uint16_t>(in + 2 * i)} << 16));
    return true;
  }
};

struct Float16Format {
  static constexpr std::size_t kValueBytes = 2;
  static constexpr std::size_t bytes(std::uint32_t /*level*/) { return 2 * kBlock; }

  static float saturated(float value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t magnitude = bits & kMagnitude;
    const bool too_large = magnitude > 0x477FE000U && magnitude < kInfinity;
    return too_large ? float_of((bits & ~kMagnitude) | 0x477FE000U) : value;
  }

  static bool encode(const BlockKey& /*key*/, const float* __restrict values, std::size_t /*count*/,
                     std::byte* __restrict out) {
#ifdef __F16C__
    for (std::size_t i = 0; i < kBlock; i += 8) {
      float lanes[8];
      for (std::size_t lane = 0; lane < 8; ++lane) lanes[lane] = saturated(values[i + lane]);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 2 * i),
                       _mm256_cvtps_ph(_mm256_loadu_ps(lanes), _MM_FROUND_TO_NEAREST_INT));
    }
#else
    for (std::size_t i = 0; i < kBlock; ++i) store(out + 2 * i, reduce::float_to_float16(saturated(values[i])));
#endif
    return true;
  }

  template <bool kAdd>
  static bool decode(const BlockKey& /*key*/, const std::byte* __restrict in, float* __restrict out) {
#ifdef __F16C__
    for (std::size_t i = 0; i < kBlock; i += 8) {
      __m256 lanes = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + 2 * i)));
      if constexpr (kAdd) lanes = _mm256_add_ps(_mm256_loadu_ps(out + i), lanes);
      _mm256_storeu_ps(out + i, lanes);
    }
#else
    for (std::size_t i = 0; i < kBlock; ++i)
      put<kAdd>(out[i], reduce::float16_to_float(load<std::uint16_t>(in + 2 * i)));
#endif
    return true;
  }
};

}  // namespace
}  // namespace deft::compress
