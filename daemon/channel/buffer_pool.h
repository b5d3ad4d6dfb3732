// Memory for encodings, kept for the next transfer: fresh memory would cost a page fault for every 4 KiB.
//
//   BufferPool pool;
//   std::vector<std::byte> buffer = pool.take(bytes);   // of at least so many bytes, with any content
//   pool.give_back(std::move(buffer));
//
// One thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace deft::daemon {

class BufferPool {
 public:
  [[nodiscard]] std::vector<std::byte> take(std::size_t bytes) {
    const auto fits = std::ranges::find_if(free_, [&](const auto& buffer) { return buffer.size() >= bytes; });
    if (fits == free_.end()) return std::vector<std::byte>(bytes);
    std::vector<std::byte> buffer = std::move(*fits);
    free_.erase(fits);
    return buffer;
  }
  void give_back(std::vector<std::byte> buffer) {
    if (!buffer.empty()) free_.push_back(std::move(buffer));
    if (free_.size() > kKept) free_.erase(std::ranges::min_element(free_, {}, &std::vector<std::byte>::size));
  }

 private:
  static constexpr std::size_t kKept = 32;  // buffers
  std::vector<std::vector<std::byte>> free_;
};

}  // namespace deft::daemon
