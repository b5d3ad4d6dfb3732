// Sums of encodings for somebody who has no gradients: a parameter server.
//
//   SumRecipe recipe{.codec = text_of(*codec), .job = job, .generation = generation, .runs = {{first, blocks}, ...}};
//   const auto bytes = recipe.bytes();                     // a node says it with its codes
//
//   auto sum = EncodedSum::read(bytes, code_bytes);        // the server; an error: the recipe is hostile
//   auto ok = sum->combine(codes_of_nodes, out, garbage);  // what the owner of these blocks does (Codec::combine)
//
// A recipe names the codec and the places of the blocks in the arena, because randomness depends on them. All nodes say the
// same bytes for the same blocks. Values are plain data in host order, as in every message of a link.
//
// The codes of nodes may be garbage: `garbage` is then the place of the node among them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/compress/codec.h"

namespace deft::compress {

struct SumRecipe {
  struct Run {                // blocks that lie in one piece in the arena
    std::uint64_t first = 0;  // element
    std::uint32_t blocks = 0;
  };
  static constexpr std::size_t kRunBytes = 12;

  std::string codec;  // as users write it
  std::uint64_t job = 0;
  std::uint64_t generation = 0;
  std::vector<Run> runs;  // in the order of their codes

  [[nodiscard]] std::vector<std::byte> bytes() const;
  // For people; the bytes may be hostile.
  static std::string describe(std::span<const std::byte> recipe);
};

class EncodedSum {
 public:
  // For codes of `code_bytes` bytes. kViolation if the recipe cannot be read, has another size, or its codec makes no blocks.
  static Result<EncodedSum> read(std::span<const std::byte> recipe, std::size_t code_bytes);

  using Inputs = std::span<const std::span<const std::byte>>;

  [[nodiscard]] const Codec& codec() const { return *codec_; }
  [[nodiscard]] std::size_t values() const;  // float32, in all blocks

  // The code of the sum. All inputs have the size of `out`.
  Result<void> combine(Inputs inputs, std::span<std::byte> out, std::size_t& garbage) const;
  // The sum itself, of values() values.
  Result<void> add(Inputs inputs, std::span<float> sum, std::size_t& garbage) const;
  // The code that combine() gives if the inputs add up to `sum`. Codecs with error feedback only: others round sums at random.
  Result<void> encode(std::span<const float> sum, std::span<std::byte> out) const;

 private:
  EncodedSum(std::unique_ptr<const Codec> codec, SumRecipe recipe)
      : codec_(std::move(codec)), recipe_(std::move(recipe)) {}
  // visit(slice, first value, values, first byte, bytes) for each run, until an error.
  template <typename Visit>
  Result<void> for_each_run(const Visit& visit) const;

  std::unique_ptr<const Codec> codec_;
  SumRecipe recipe_;
};

// Encodes `sum` as EncodedSum::encode does, and writes what the code leaves out to `left_out`: 0 where it is not finite.
Result<void> encode_sum(const Codec& codec, const Slice& slice, std::span<const float> sum, std::span<std::byte> out,
                        std::span<float> left_out);

}  // namespace deft::compress
