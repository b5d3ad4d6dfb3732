// The encoding of few values among many: a header, the indices of the values in ascending order, and the values.
//
//   offset  bytes
//   0       4       "DfSp"
//   4       1       version, 1
//   5       1       SparseId: which codec wrote it
//   6       1       1 if a value was NaN or infinite: all values decode to NaN, and there are no entries; else 0
//   7       1       0
//   8       4       elements of the slice
//   12      4       entries: at most as many as elements
//   16      4 each  indices, below elements, each larger than the one before
//   ...     4 each  values, finite float32
// All numbers are little-endian. An encoding of no element has no byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/status.h"

namespace deft::compress {

constexpr std::size_t kSparseHeaderBytes = 16;
constexpr std::size_t kSparseEntryBytes = 8;

enum class SparseId : std::uint8_t { kTopk = 1, kDgc = 2 };

// An encoding that was checked. It points into the bytes.
struct SparseCode {
  bool is_nan = false;
  std::size_t entries = 0;
  const std::byte* indices = nullptr;
  const std::byte* values = nullptr;
};

// Writes the header and the entries: `indices` ascend, and the values are those of `values` there. Gives the bytes used; `out`
// has room for them.
std::size_t write_sparse(SparseId id, std::span<const float> values, std::span<const std::uint32_t> indices,
                         std::span<std::byte> out);
std::size_t write_sparse_nan(SparseId id, std::size_t elements, std::span<std::byte> out);

// kViolation unless `in` is an encoding of `elements` values by `id`.
Result<SparseCode> read_sparse(SparseId id, std::span<const std::byte> in, std::size_t elements);

// True if the flag of byte 6 is set. `in` need not be checked.
bool is_sparse_nan(std::span<const std::byte> in);

// Adds the entries to `sum`.
void add_sparse(const SparseCode& code, std::span<float> sum);

}  // namespace deft::compress
