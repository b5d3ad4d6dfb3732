#include "daemon/channel/residuals.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <new>

namespace deft::daemon {
namespace {

bool overlap(const link::Range& a, const link::Range& b) {
  return a.first < b.first + b.count && b.first < a.first + a.count;
}

// Large pages, if the kernel has them: each encoding goes through all residuals. It may refuse.
void want_large_pages(float* memory, std::size_t bytes) {
  constexpr std::uintptr_t kLargePage = std::uintptr_t{2} << 20;
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t begin = (at + kLargePage - 1) / kLargePage * kLargePage;
  const std::uintptr_t end = (at + bytes) / kLargePage * kLargePage;
  if (begin < end) ::madvise(reinterpret_cast<std::byte*>(memory) + (begin - at), end - begin, MADV_HUGEPAGE);
}

// Pages of calloc cost nothing until they are written.
float* zeroed(std::size_t elements) {
  auto* const memory = static_cast<float*>(std::calloc(std::max<std::size_t>(elements, 1), sizeof(float)));
  if (memory == nullptr) throw std::bad_alloc();
  want_large_pages(memory, elements * sizeof(float));
  return memory;
}

}  // namespace

Residuals::Residuals(std::size_t elements) : values_(zeroed(elements)) {}

Residuals::Use Residuals::use(std::size_t first, std::size_t count) {
  const link::Range wanted{first, count};
  std::unique_lock lock(mutex_);
  freed_.wait(lock, [&] {
    return std::ranges::none_of(used_, [&](const link::Range& range) { return overlap(range, wanted); });
  });
  mark(first, first + count);
  return {*this, used_.insert(used_.end(), wanted)};
}

bool Residuals::may_hold(std::size_t first, std::size_t count) {
  const std::lock_guard lock(mutex_);
  const auto behind = held_.lower_bound(first + count);
  return behind != held_.begin() && std::prev(behind)->second > first;
}

void Residuals::mark(std::size_t begin, std::size_t end) {
  auto at = held_.upper_bound(begin);
  if (at != held_.begin() && std::prev(at)->second >= begin) --at, begin = at->first;
  while (at != held_.end() && at->first <= end) {
    end = std::max(end, at->second);
    at = held_.erase(at);
  }
  held_.emplace(begin, end);
}

void Residuals::unmark(std::size_t begin, std::size_t end) {
  auto at = held_.upper_bound(begin);
  if (at != held_.begin() && std::prev(at)->second > begin) --at;
  while (at != held_.end() && at->first < end) {
    const auto [first, last] = *at;
    at = held_.erase(at);
    if (first < begin) held_.emplace(first, begin);
    if (last > end) held_.emplace(end, last);
  }
}

Residuals::Use::~Use() {
  {
    const std::lock_guard lock(owner_.mutex_);
    owner_.used_.erase(range_);
  }
  owner_.freed_.notify_all();
}

void Residuals::Use::settled() {
  const std::lock_guard lock(owner_.mutex_);
  owner_.unmark(range_->first, range_->first + range_->count);
}

std::span<float> Residuals::Use::values() const { return {owner_.values_.get() + range_->first, range_->count}; }

void take_back(std::span<float> residuals, std::span<const float> sums, std::span<const float> sent,
               std::span<const float> brought) {
  for (std::size_t i = 0; i < residuals.size(); ++i)
    if (!std::isfinite(sums[i]) && std::isfinite(sent[i]))
      residuals[i] = taken_back(residuals[i], sent[i], brought[i], std::max(std::abs(sent[i]), std::abs(brought[i])));
}

}  // namespace deft::daemon
