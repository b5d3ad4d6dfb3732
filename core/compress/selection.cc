#include "core/compress/selection.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace deft::compress {
namespace {

constexpr std::size_t kChunk = 2048;  // values that stay in the first cache between their steps
constexpr std::size_t kLeastSample = 4096;
constexpr std::size_t kMostSample = 65536;

}  // namespace

void Selection::take_sample(const Peek& peek) {
  const std::size_t size = std::clamp(elements_ / 64, kLeastSample, kMostSample) / kRun * kRun;
  if (elements_ <= size) return;
  const std::size_t runs = size / kRun;
  float run[kRun];
  for (std::size_t i = 0; i < runs; ++i) {
    // One run in each of as many parts. Its place within moves, so that no period of the data is met twice.
    const std::size_t begin = elements_ / runs * i, part = elements_ / runs - kRun + 1;
    peek(begin + i * 0x9E3779B1U % part, run);
    for (const float value : run) sample_.push_back(std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU);
  }
}

std::uint32_t Selection::sampled_bits(std::size_t rank) {
  if (rank >= sample_.size()) return 0;
  const auto place = sample_.begin() + static_cast<std::ptrdiff_t>(rank);
  std::ranges::nth_element(sample_, place, std::ranges::greater{});
  return *place;
}

std::uint32_t Selection::keep_wanted() {
  if (found_ <= wanted_) return 0;
  ordered_.assign(keys_.begin(), keys_.begin() + static_cast<std::ptrdiff_t>(found_));
  const auto place = ordered_.begin() + static_cast<std::ptrdiff_t>(wanted_ - 1);
  std::ranges::nth_element(ordered_, place, std::ranges::greater{});
  const std::uint64_t least = *place;
  const auto end = std::remove_if(keys_.begin(), keys_.begin() + static_cast<std::ptrdiff_t>(found_),
                                  [least](std::uint64_t key) { return key < least; });
  found_ = static_cast<std::size_t>(end - keys_.begin());
  return magnitude_bits_of(least);
}

void Selection::collect(const float* values, std::uint32_t bits, const Prepare& prepare) {
  const std::size_t most = 4 * wanted_ + kChunk;
  keys_.resize(most + kChunk);
  found_ = 0;
  for (std::size_t first = 0; first < elements_; first += kChunk) {
    const std::size_t count = std::min(kChunk, elements_ - first);
    if (prepare) prepare(first, count);
    found_ += kernels_.find(values + first, count, static_cast<std::uint32_t>(first), bits, keys_.data() + found_);
    // Values that come later lose against equal ones, so only larger ones are looked for from here on.
    if (found_ > most) bits = keep_wanted();
  }
  keep_wanted();
}

std::vector<std::uint32_t> Selection::find(const float* values, const Peek& peek, const Prepare& prepare) {
  take_sample(peek);
  const double expected =
      static_cast<double>(sample_.size()) * static_cast<double>(wanted_) / static_cast<double>(elements_);
  auto rank = static_cast<std::size_t>(1.25 * expected + 3 * std::sqrt(expected) + 8);
  std::uint32_t bits = sampled_bits(rank);
  collect(values, bits, prepare);
  while (found_ < wanted_ && bits > 0) {
    rank *= 4;
    bits = sampled_bits(rank);
    collect(values, bits, nullptr);
  }
  std::vector<std::uint32_t> indices(found_);
  std::transform(keys_.begin(), keys_.begin() + static_cast<std::ptrdiff_t>(found_), indices.begin(), index_of);
  return indices;
}

}  // namespace deft::compress
