#include "daemon/channel/residuals.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <new>

namespace deft::daemon {
namespace {

bool overlap(const link::Range& a, const link::Range& b) {
  return a.first < b.first + b.count && b.first < a.first + a.count;
}

// Pages of calloc cost nothing until they are written.
float* zeroed(std::size_t elements) {
  auto* const memory = static_cast<float*>(std::calloc(std::max<std::size_t>(elements, 1), sizeof(float)));
  if (memory == nullptr) throw std::bad_alloc();
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
  return {*this, used_.insert(used_.end(), wanted)};
}

Residuals::Use::~Use() {
  {
    const std::lock_guard lock(owner_.mutex_);
    owner_.used_.erase(range_);
  }
  owner_.freed_.notify_all();
}

std::span<float> Residuals::Use::values() const { return {owner_.values_.get() + range_->first, range_->count}; }

void take_back(std::span<float> residuals, std::span<const float> sums, std::span<const float> sent,
               std::span<const float> brought) {
  for (std::size_t i = 0; i < residuals.size(); ++i)
    if (!std::isfinite(sums[i]) && std::isfinite(sent[i]))
      residuals[i] = taken_back(residuals[i], sent[i], brought[i], std::max(std::abs(sent[i]), std::abs(brought[i])));
}

// By the bits of the exponents, which the compiler can look at many at a time.
bool all_finite(std::span<const float> values) {
  constexpr std::uint32_t kExponent = 0x7f800000;
  std::uint32_t found = 0;
  for (const float value : values) found |= (std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent ? 1U : 0U;
  return found == 0;
}

}  // namespace deft::daemon
