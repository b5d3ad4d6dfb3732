// Random numbers that depend on their place and not on earlier draws. So a replay and another cut draw the same numbers.
#pragma once

#include <cstdint>

#include "core/base/mix64.h"

namespace deft::compress {

// What random numbers are for: the encoding of one node's values, or the second encoding of the sum.
enum class EncodingPass : std::uint8_t { kNode = 1, kSum = 2 };

constexpr std::uint64_t seed_of(std::uint64_t job, std::uint64_t generation, std::uint64_t user_seed,
                                EncodingPass pass) {
  std::uint64_t seed = mix64(job + 0x9E3779B97F4A7C15U);
  seed = mix64(seed ^ (generation + 0x9E3779B97F4A7C15U * 2));
  return mix64(seed ^ (user_seed + 0x9E3779B97F4A7C15U * (2 + static_cast<std::uint64_t>(pass))));
}

}  // namespace deft::compress
