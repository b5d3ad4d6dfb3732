#include "daemon/channel/spare_buffers.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace deft::daemon {

// The smallest that holds the launch, unless it is far too large; else the largest that does not, which grows if it must.
SpareBuffers::BySize::iterator SpareBuffers::best_for(std::size_t bytes) {
  constexpr std::size_t kFarTooLarge = 4;
  if (bytes == 0) return by_size_.begin();
  const auto fits = by_size_.lower_bound(bytes);
  if (fits != by_size_.end() && fits->first / kFarTooLarge <= bytes) return fits;
  return fits == by_size_.begin() ? by_size_.end() : std::prev(fits);
}

std::shared_ptr<ReplayBuffer> SpareBuffers::take(std::size_t bytes) {
  const auto best = best_for(bytes);
  if (best == by_size_.end()) return std::make_shared<ReplayBuffer>();
  auto buffer = remove(best);
  buffer->clear();
  return buffer;
}

std::shared_ptr<ReplayBuffer> SpareBuffers::remove(BySize::iterator buffer) {
  auto removed = std::move(buffer->second);
  bytes_ -= buffer->first;
  by_size_.erase(buffer);
  return removed;
}

void SpareBuffers::give(std::shared_ptr<ReplayBuffer> buffer) {
  const std::size_t size = buffer->capacity;
  bytes_ += size;
  by_size_.emplace(size, std::move(buffer));
  if (by_size_.size() > kMost) remove(by_size_.begin());
}

// The limit falls slowly, because no buffer is in use between two steps, and the next step wants them again.
void SpareBuffers::trim(std::size_t used_bytes) {
  used_of_late_ = std::max(used_bytes, used_of_late_ - used_of_late_ / 16);
  while (bytes_ > std::max(kAlwaysBytes, used_of_late_)) remove(std::prev(by_size_.end()));
}

}  // namespace deft::daemon
