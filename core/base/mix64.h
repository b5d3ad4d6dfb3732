// Spreads a number over 64 bits: every bit of the result depends on every bit of `x`. For hashes, and for random numbers that depend on
// their place alone. It is SplitMix64's last step. Pure.
#pragma once

#include <cstdint>

namespace deft {

constexpr std::uint64_t mix64(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

}  // namespace deft
