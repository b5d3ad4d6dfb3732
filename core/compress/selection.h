// Finds the values of the largest magnitude in one pass.
//
// A sample says above which magnitude somewhat more values lie than are wanted. The pass collects the values above it, and of
// these the largest are kept. So the result is exact, whatever the sample said: a bad sample costs time alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/compress/kernels.h"

namespace deft::compress {

class Selection {
 public:
  static constexpr std::size_t kRun = 16;  // values of a cache line, which a sample takes together

  // `wanted` is at least 1 and at most `elements`, which is below 2^32. `kernels` outlives this object.
  Selection(const SelectKernels& kernels, std::size_t elements, std::size_t wanted)
      : kernels_(kernels), elements_(elements), wanted_(wanted) {}

  // Writes the values that will stand at [first, first + kRun) when `prepare` has run to `out`, and changes nothing.
  using Peek = std::function<void(std::size_t first, std::span<float, kRun> out)>;
  // Makes values [first, first + count) ready; called once for each range, in ascending order.
  using Prepare = std::function<void(std::size_t first, std::size_t count)>;

  // The indices of the `wanted` largest magnitudes of `values`, ascending: of equal ones the first. Zeros are left out, so
  // there may be fewer.
  std::vector<std::uint32_t> find(const float* values, const Peek& peek, const Prepare& prepare);

 private:
  void take_sample(const Peek& peek);
  // The magnitude that the `rank` largest of the sample are above or equal to; 0 if the sample is smaller.
  std::uint32_t sampled_bits(std::size_t rank);
  void collect(const float* values, std::uint32_t bits, const Prepare& prepare);
  // Leaves the wanted keys in their order, and gives the magnitude of the least if there were more.
  std::uint32_t keep_wanted();

  const SelectKernels& kernels_;
  const std::size_t elements_;
  const std::size_t wanted_;
  std::vector<std::uint32_t> sample_;
  std::vector<std::uint64_t> keys_;
  std::vector<std::uint64_t> ordered_;  // room for keep_wanted
  std::size_t found_ = 0;
};

}  // namespace deft::compress
