// How gradients are encoded for the wire, and added there.
//
// A codec turns a slice of the arena (float32, or halves widened to it) into fewer bytes and back. Most codecs lose something. The
// residual keeps what an encoding left out, so that the next one can bring it (error feedback).
//
//   auto codec = make_codec("int8");                                       // core/compress/registry.h
//   const Slice slice{job, generation, first_element};
//   std::vector<std::byte> code((*codec)->encoded_bytes(values.size()));
//   auto used = (*codec)->encode_with_feedback(slice, values, residual, code);
//   ... send the first *used bytes ...
//   auto ok = (*codec)->decode_add(slice, received, sum);                  // an error: the bytes are garbage
//
// Sizes. Codecs of a fixed size encode independent blocks of `block_elements` values into `block_bytes` bytes, without a
// header. So an encoding may be cut at every multiple of block_bytes, and blocks of several slices may stand behind each
// other. A short last block takes block_bytes as well. Sparse encodings begin with the header of sparse_format.h.
//
// Bits. The same slice and values give the same bytes on every processor. Randomness depends on the slice's key and on an
// element's place in the arena alone. A cut at a multiple of block_elements changes no bit.
//
// NaN and infinity. A block that holds one is encoded as such: it decodes to NaN everywhere, and its residual stays as it
// was. (bf16 and fp16 do so for each value.) A sparse encoding is NaN as a whole.
//
// Trust. Bytes that are decoded may come from another node: every length, count, index and scale is checked, and garbage is
// a kViolation. After an error the outputs hold anything.
//
// A codec never changes; all functions may be called by any number of threads. The caller owns all memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace deft::compress {

// How encodings of several nodes become their sum.
enum class Law : std::uint8_t {
  kRequantised,  // the owner of a segment decodes, adds and encodes again (combine); two nodes both decode and add
  kSparse,       // every node gathers all encodings and adds them (decode_add)
  kVoted,        // the owner counts the votes of all nodes (combine)
  kLowRank,  // all-reduces of small factors (low_rank.h), for which the caller has to know the matrix: low_rank_codec.h
};

struct Traits {
  std::string_view name;   // as users write it
  std::string parameters;  // "ratio=0.01": all of them, the defaults too; empty if there are none
  Law law = Law::kRequantised;
  bool contractive = false;     // |x - decode(encode(x))|^2 < |x|^2: what error feedback needs
  bool unbiased = false;        // the mean of decode(encode(x)) over all generations is x: error feedback would diverge
  bool uses_feedback = false;   // call encode_with_feedback
  bool fixed_size = true;       // the encoding is an array of blocks
  bool takes_momentum = false;  // call encode_with_momentum; the optimizer must not add a momentum of its own
  bool delays_values = false;   // most values wait in residuals for many generations
  std::size_t block_elements = 256;  // divides 256
  std::size_t block_bytes = 0;       // 0 if not fixed_size
};

// Which values are encoded. All nodes name a range of the arena by the same slice.
struct Slice {
  std::uint64_t job = 0;  // the key of randomness, together with the generation
  std::uint64_t generation = 0;
  std::uint64_t first = 0;  // place of the first value in the arena, in elements: a multiple of block_elements
};

class Codec {
 public:
  Codec() = default;
  virtual ~Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;

  [[nodiscard]] virtual const Traits& traits() const = 0;

  // The bytes of an encoding: exact if the size is fixed, otherwise no encoding of `generation` has more. The second form
  // bounds all generations.
  [[nodiscard]] virtual std::size_t encoded_bytes_at(std::uint64_t generation, std::size_t elements) const = 0;
  [[nodiscard]] virtual std::size_t encoded_bytes(std::size_t elements) const { return encoded_bytes_at(0, elements); }

  // Encodes `values` into `out`, which has room for encoded_bytes; gives the bytes used. An error is a fault of the caller.
  virtual Result<std::size_t> encode(const Slice& slice, std::span<const float> values,
                                     std::span<std::byte> out) const = 0;

  // Encodes values + residual. Leaves in `residual` (as many elements) what the encoding left out.
  virtual Result<std::size_t> encode_with_feedback(const Slice& slice, std::span<const float> values,
                                                   std::span<float> residual, std::span<std::byte> out) const = 0;

  // For codecs with takes_momentum: adds `values` to `momentum` (as many elements, zero at first) and encodes what that
  // says. `residual` is empty for codecs without feedback. Other codecs ignore `momentum`.
  virtual Result<std::size_t> encode_with_momentum(const Slice& slice, std::span<const float> values,
                                                   std::span<float> /*momentum*/, std::span<float> residual,
                                                   std::span<std::byte> out) const {
    return residual.empty() ? encode(slice, values, out) : encode_with_feedback(slice, values, residual, out);
  }

  // Writes what `in` stands for into all of `out`, or adds it to `sum`. kViolation if the bytes are garbage.
  virtual Result<void> decode(const Slice& slice, std::span<const std::byte> in, std::span<float> out) const = 0;
  virtual Result<void> decode_add(const Slice& slice, std::span<const std::byte> in, std::span<float> sum) const = 0;

  // The owner's work, for kRequantised and kVoted: decodes the encodings of all nodes, adds them in the order of `inputs`,
  // and encodes the sum into `out`, which may be one of the inputs. If `left_out` is not empty, sum - decode(out) goes there:
  // 0 for a block of NaN. On an error `garbage_input` is the index of the input that is garbage.
  virtual Result<void> combine(const Slice& slice, std::span<const std::span<const std::byte>> inputs,
                               std::span<std::byte> out, std::span<float> left_out,
                               std::size_t& garbage_input) const = 0;
};

}  // namespace deft::compress
