// streaming_copy: it copies what memcpy copies, from any place to any place, and nothing beyond.
#include "core/base/streaming_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace deft {
namespace {

constexpr std::byte kUntouched{0xA5};

std::vector<std::byte> counted(std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 7 + i / 251);
  return data;
}

TEST(StreamingCopy, CopiesTheBlockAndNothingBeside) {
  constexpr std::size_t kMargin = 64;
  const auto data = counted(20'000 + kMargin);
  for (const std::size_t bytes : {0, 1, 15, 64, 4095, 4096, 4097, 4159, 4160, 8191, 20'000}) {
    for (const std::size_t from : {0, 1, 5, 16}) {
      for (std::size_t to = 0; to < 20; ++to) {
        std::vector<std::byte> copy(to + bytes + kMargin, kUntouched);
        streaming_copy(copy.data() + to, data.data() + from, bytes);
        const auto begin = copy.begin() + static_cast<std::ptrdiff_t>(to);
        const auto end = begin + static_cast<std::ptrdiff_t>(bytes);
        ASSERT_TRUE(std::equal(begin, end, data.begin() + static_cast<std::ptrdiff_t>(from)))
            << bytes << " bytes from " << from << " to " << to;
        const auto is_untouched = [](std::byte value) { return value == kUntouched; };
        ASSERT_TRUE(std::all_of(copy.begin(), begin, is_untouched) && std::all_of(end, copy.end(), is_untouched))
            << bytes << " bytes from " << from << " to " << to;
      }
    }
  }
}

}  // namespace
}  // namespace deft
