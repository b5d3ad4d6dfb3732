// The element types and reductions that Deft carries. Their numbers are the same on every wire and in deft.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace deft::model {

enum class DType : std::uint8_t {
  kFloat32 = 1,
  kFloat64 = 2,
  kFloat16 = 3,
  kBFloat16 = 4,
  kInt32 = 5,
  kInt64 = 6,
  kUInt8 = 7,
  kInt8 = 8,
};

enum class ReduceOp : std::uint8_t { kSum = 1, kMin = 2, kMax = 3 };

// The bytes of one element; 0 for a number that names no type. Values from a wire are checked with this.
constexpr std::size_t dtype_bytes(DType type) {
  switch (type) {
    case DType::kFloat32:
    case DType::kInt32: return 4;
    case DType::kFloat64:
    case DType::kInt64: return 8;
    case DType::kFloat16:
    case DType::kBFloat16: return 2;
    case DType::kUInt8:
    case DType::kInt8: return 1;
  }
  return 0;
}

constexpr bool is_half(DType type) { return type == DType::kFloat16 || type == DType::kBFloat16; }

// The types whose gradients codecs encode (core/compress): halves are widened to float32 first.
constexpr bool is_codable(DType type) { return type == DType::kFloat32 || is_half(type); }

// The name of the type, for instance "float32"; "unknown" for a number that names none.
constexpr std::string_view to_string(DType type) {
  switch (type) {
    case DType::kFloat32: return "float32";
    case DType::kFloat64: return "float64";
    case DType::kFloat16: return "float16";
    case DType::kBFloat16: return "bfloat16";
    case DType::kInt32: return "int32";
    case DType::kInt64: return "int64";
    case DType::kUInt8: return "uint8";
    case DType::kInt8: return "int8";
  }
  return "unknown";
}

// False for a number from a wire that names no reduction.
constexpr bool is_known(ReduceOp op) { return op >= ReduceOp::kSum && op <= ReduceOp::kMax; }

}  // namespace deft::model
