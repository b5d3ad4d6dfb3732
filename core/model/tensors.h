// The tensors of a group (one optimizer's gradients) and their places in the arena.
//
//   auto layout = lay_out(tensors, slots);
//   arena + slot * layout->slot_bytes + layout->tensors[3].offset
//
// The arena holds `slots` equal areas, one for each generation that can be under way. A slot has one region for each dtype, in
// the order in which the dtypes first appear. In a region the tensors lie in the order of declaration, which is the order in
// which backward produces them. Worker and daemon compute the layout with this code, so it is never sent.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/model/buckets.h"
#include "core/model/dtype.h"

namespace deft::model {

inline constexpr std::uint64_t kTensorAlignBytes = 64;  // a cache line, and what SIMD likes
// A tensor of so many bytes begins and ends on whole blocks of codecs (model::kPartAlignBytes).
inline constexpr std::uint64_t kLargeTensorBytes = 16 << 10;
inline constexpr std::uint64_t kRegionAlignBytes = 4096;  // regions and slots begin on a page
inline constexpr std::uint64_t kMaxArenaBytes = std::uint64_t{1} << 42;
inline constexpr std::size_t kMaxTensors = 1 << 20;
inline constexpr std::size_t kMaxDims = 8;

struct TensorSpec {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::uint64_t> shape;    // empty: a scalar, which has one element
  std::uint32_t forward_position = 0;  // 0: forward needs this tensor first
  // How this tensor is encoded for the network: "none", or a codec as users write it. Empty: as the job's option says.
  std::string codec = {};

  [[nodiscard]] std::uint64_t elements() const;
  [[nodiscard]] std::uint64_t bytes() const { return elements() * dtype_bytes(dtype); }
  [[nodiscard]] std::string describe() const;  // "fc1.weight float32 [1024, 3136]", and ", int8" for its own codec
  bool operator==(const TensorSpec&) const = default;
};

struct TensorPlace {
  std::uint64_t offset = 0;  // bytes from the beginning of a slot
  std::uint64_t bytes = 0;   // without padding
};

// The tensors of one dtype.
struct Region {
  DType dtype = DType::kFloat32;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;  // with the padding between tensors, which is zero on all workers and is reduced, too

  [[nodiscard]] bool contains(std::uint64_t byte) const { return byte >= offset && byte < offset + bytes; }
};

struct ArenaLayout {
  std::vector<TensorPlace> tensors;  // in the order of declaration
  std::vector<Region> regions;
  std::uint64_t slot_bytes = 0;  // from the beginning of a slot to the next
  std::uint32_t slots = 1;

  [[nodiscard]] std::uint64_t total_bytes() const { return slot_bytes * slots; }
};

// Checks the declaration and lays it out. kInvalid if a name is empty or not unique, or if a size is impossible; the error
// names the tensor.
Result<ArenaLayout> lay_out(std::span<const TensorSpec> tensors, std::uint32_t slots);

inline constexpr std::size_t kMaxCodecTextBytes = 128;

// True if the job's codecs may encode the tensor: it has no codec of its own, and is float32, float16 or bfloat16, of two dimensions or
// more, and of `min_bytes` or more. Others travel as they are: they save nothing, and biases and scales of norms feel an error most.
bool is_encodable(const TensorSpec& tensor, std::uint64_t min_bytes);

// True if the tensor has a codec of its own that encodes it. It must have one of these types, and begin and end on whole blocks. Other
// tensors travel as they are.
bool has_own_codec(const TensorSpec& tensor);

// The bytes of the tensor that lie in the bucket, without padding.
std::uint64_t bytes_in(const Bucket& bucket, const TensorPlace& tensor);

// Sets the buckets' coded_bytes: the bytes of encodable tensors that lie in each. The buckets know their tensors.
void set_coded_bytes(std::vector<Bucket>& buckets, std::span<const TensorSpec> tensors, const ArenaLayout& layout,
                     std::uint64_t min_bytes);

// The first difference between two declarations, for people: "tensor 3 is a on rank 0 and b on rank 2". Empty if they are
// equal.
std::string first_difference(std::span<const TensorSpec> mine, std::string_view my_name,
                             std::span<const TensorSpec> other, std::string_view other_name);

}  // namespace deft::model
