// Copies memory that nobody reads soon, past the caches: what else works on these cores keeps its data there.
//
//   streaming_copy(kept.data(), gradients.data(), gradients.size_bytes());
//
// With large blocks it is also faster, because the processor does not read what it overwrites. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace deft {

// `to` and `from` do not overlap, and may lie anywhere. On processors other than x86 it is memcpy.
inline void streaming_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__SSE2__)
  constexpr std::size_t kSmallBytes = 4096;  // such a block does not displace much, and the end of streaming costs time
  constexpr std::size_t kWord = sizeof(__m128i), kStep = 4 * kWord;
  if (bytes >= kSmallBytes) {
    const std::size_t first = -reinterpret_cast<std::uintptr_t>(to) % kWord;
    std::memcpy(to, from, first);
    to += first, from += first, bytes -= first;
    for (; bytes >= kStep; bytes -= kStep, to += kStep, from += kStep) {
      __m128i words[4];
      std::memcpy(words, from, kStep);
      auto* const place = reinterpret_cast<__m128i*>(to);
      for (std::size_t i = 0; i < 4; ++i) _mm_stream_si128(place + i, words[i]);
    }
    _mm_sfence();
  }
#endif
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace deft
