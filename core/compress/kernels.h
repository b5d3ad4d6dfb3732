// The kernels of each instruction set, and how a set is picked. Internal to core/compress and to its tests, which compare
// the sets with one another.
//
// All sets are compiled from the same loops (loops.h) and give the same bits: a sum always runs over 16 lanes in the same
// order, no multiplication is fused with an addition, and a value is rounded to nearest even.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deft::compress {

constexpr std::size_t kBlock = 256;  // values of a block

// What a slice's blocks draw their random numbers from, and what a codec's parameters are.
struct BlockKey {
  std::uint64_t seed = 0;   // of job and generation
  std::uint64_t block = 0;  // number of the first block in the arena
  std::uint32_t level = 0;  // qsgd: levels; randk: values of a block
};

// The codecs that are arrays of blocks, in the order of the tables.
enum class BlockFormat : std::uint8_t {
  kBFloat16,
  kFloat16,
  kInt8,
  kInt4,
  kInt2,
  kSign,
  kOneBit,
  kVote,
  kTernGrad,
  kQsgd,
  kRandk,
  kWholeRandk,
  kCount
};

// What one format's kernels do with `count` values. `residual`, `momentum` and `left_out` may be null.
struct BlockKernels {
  void (*encode)(const BlockKey& key, const float* values, float* residual, std::size_t count,
                 std::byte* out) = nullptr;
  bool (*decode)(const BlockKey& key, const std::byte* in, std::size_t count, float* out) = nullptr;  // false: garbage
  bool (*decode_add)(const BlockKey& key, const std::byte* in, std::size_t count,
                     float* sum) = nullptr;  // false: garbage
  // Gives the index of the input that is garbage, or the number of inputs.
  std::size_t (*combine)(const BlockKey& key, const std::byte* const* inputs, std::size_t input_count,
                         std::size_t count, std::byte* out, float* left_out) = nullptr;
  // Null but for votes: adds `values` to the momentum and encodes that.
  void (*encode_momentum)(const BlockKey& key, const float* values, float* momentum, float beta, std::size_t count,
                          std::byte* out) = nullptr;
};

// Orders the values that may be sent: the larger magnitude first, then the smaller index.
constexpr std::uint64_t large_key(std::uint32_t magnitude_bits, std::uint32_t index) {
  return (std::uint64_t{magnitude_bits} << 32) | ~index;
}
constexpr std::uint32_t index_of(std::uint64_t key) { return ~static_cast<std::uint32_t>(key); }
constexpr std::uint32_t magnitude_bits_of(std::uint64_t key) { return static_cast<std::uint32_t>(key >> 32); }

// What looks for large values. All values and sums are finite, but for largest's.
struct SelectKernels {
  // The bits of the largest magnitude: those of infinity or more if a value is not finite.
  std::uint32_t (*largest)(const float* values, std::size_t count) = nullptr;
  // residual += values
  void (*add)(const float* values, float* residual, std::size_t count) = nullptr;
  // momentum = beta * momentum + values; residual += momentum
  void (*add_momentum)(const float* values, float* momentum, float beta, float* residual, std::size_t count) = nullptr;
  // Writes the keys of all magnitudes above `bits` to `found`, which has room for `count`; `first` is the index of the first
  // value. Gives their number.
  std::size_t (*find)(const float* values, std::size_t count, std::uint32_t first, std::uint32_t bits,
                      std::uint64_t* found) = nullptr;
};

// Sums of squares, as core/compress/measures.h has them.
struct MeasureKernels {
  double (*squares)(const float* values, std::size_t count) = nullptr;
  double (*squares_of_sums)(const float* values, const float* added, std::size_t count) = nullptr;
};

struct CodecKernels {
  SelectKernels select;
  MeasureKernels measure;
  BlockKernels blocks[static_cast<std::size_t>(BlockFormat::kCount)] = {};

  [[nodiscard]] const BlockKernels& at(BlockFormat format) const { return blocks[static_cast<std::size_t>(format)]; }
};

const CodecKernels& portable_kernels();  // what the build's baseline allows
const CodecKernels* avx2_kernels();      // null if this processor (or build) has no AVX2 and F16C
const CodecKernels* avx512_kernels();    // null if this processor (or build) has no AVX-512 (F, BW, DQ, VL)
const CodecKernels& best_kernels();      // the fastest that runs here

}  // namespace deft::compress
