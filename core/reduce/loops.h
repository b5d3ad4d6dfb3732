// The loops behind every kernel table. Each translation unit that includes this header is compiled for one instruction set.
// Everything is in an unnamed namespace, so no code that was built for one set can be linked into another.
//
// All inputs are read in one pass, up to kFused at a time. If there are more, a block of sums stays in the first cache. The
// additions have the order of the inputs, whatever the vector width.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/reduce/half.h"
#include "core/reduce/kernels.h"

namespace deft::reduce {
namespace {

constexpr std::size_t kFused = 4;
constexpr std::size_t kBlockBytes = 8192;

// Buffers have any alignment and any declared type.
template <typename T>
struct Unaligned {
  using type __attribute__((aligned(1), may_alias)) = T;
};
template <typename T>
using UnalignedOf = typename Unaligned<T>::type;

// How elements are stored, and the type that accumulates them.
template <typename T>
struct Plain {
  using Stored = T;
  using Sum = T;
  static Sum load(Stored value) { return value; }
  static Stored store(Sum value) { return value; }
};
struct BFloat16 {
  using Stored = std::uint16_t;
  using Sum = float;
  static Sum load(Stored value) { return bfloat16_to_float(value); }
  static Stored store(Sum value) { return float_to_bfloat16(value); }
};
struct Float16 {
  using Stored = std::uint16_t;
  using Sum = float;
  static Sum load(Stored value) { return float16_to_float(value); }
  static Stored store(Sum value) { return float_to_float16(value); }
};

// Operations on scalars and on vector types alike. Integer sums wrap around. A NaN on either side is the result.
struct Add {
  template <typename V>
  static V apply(V a, V b) {
    if constexpr (std::is_integral_v<V>) {
      using Wrapping = std::make_unsigned_t<V>;
      return static_cast<V>(static_cast<Wrapping>(static_cast<Wrapping>(a) + static_cast<Wrapping>(b)));
    } else {
      return a + b;
    }
  }
};
struct Min {
  template <typename V>
  static V apply(V a, V b) {
    return ((a < b) | (a != a)) ? a : b;
  }
};
struct Max {
  template <typename V>
  static V apply(V a, V b) {
    return ((a > b) | (a != a)) ? a : b;
  }
};

template <typename T>
const UnalignedOf<T>* elements(const std::byte* bytes) {
  return reinterpret_cast<const UnalignedOf<T>*>(bytes);
}

// sums[i] = op over inputs 0 .. N-1 (after the former sums[i], when kContinue); or the same, stored to `out`.
template <typename Type, typename Op, std::size_t N, bool kContinue, bool kFinish>
void fused(typename Type::Sum* sums, std::byte* out_bytes, const std::byte* const* inputs, std::size_t first,
           std::size_t count) {
  using Stored = typename Type::Stored;
  const UnalignedOf<Stored>* in[N];
  for (std::size_t n = 0; n < N; ++n) in[n] = elements<Stored>(inputs[n]) + first;
  auto* out = kFinish ? reinterpret_cast<UnalignedOf<Stored>*>(out_bytes) + first : nullptr;
#pragma GCC ivdep  // `out` is one of the inputs or none of them: no element depends on another
  for (std::size_t i = 0; i < count; ++i) {
    typename Type::Sum sum = kContinue ? Op::apply(sums[i], Type::load(in[0][i])) : Type::load(in[0][i]);
    if constexpr (N > 1) sum = Op::apply(sum, Type::load(in[1][i]));
    if constexpr (N > 2) sum = Op::apply(sum, Type::load(in[2][i]));
    if constexpr (N > 3) sum = Op::apply(sum, Type::load(in[3][i]));
    if constexpr (kFinish) {
      out[i] = Type::store(sum);
    } else {
      sums[i] = sum;
    }
  }
}

// `n` (1 .. kFused) inputs.
template <typename Type, typename Op, bool kContinue>
void finish(typename Type::Sum* sums, std::byte* out, const std::byte* const* inputs, std::size_t n, std::size_t first,
            std::size_t count) {
  switch (n) {
    case 1: return fused<Type, Op, 1, kContinue, true>(sums, out, inputs, first, count);
    case 2: return fused<Type, Op, 2, kContinue, true>(sums, out, inputs, first, count);
    case 3: return fused<Type, Op, 3, kContinue, true>(sums, out, inputs, first, count);
    default: return fused<Type, Op, 4, kContinue, true>(sums, out, inputs, first, count);
  }
}

template <typename Type, typename Op>
void kernel(std::byte* out, const std::byte* const* inputs, std::size_t input_count, std::size_t count) {
  if (input_count <= kFused) return finish<Type, Op, false>(nullptr, out, inputs, input_count, 0, count);
  constexpr std::size_t kBlock = kBlockBytes / sizeof(typename Type::Sum);
  typename Type::Sum sums[kBlock];
  for (std::size_t first = 0; first < count; first += kBlock) {
    const std::size_t size = count - first < kBlock ? count - first : kBlock;
    fused<Type, Op, kFused, false, false>(sums, nullptr, inputs, first, size);
    std::size_t done = kFused;
    for (; input_count - done > kFused; done += kFused) {
      fused<Type, Op, kFused, true, false>(sums, nullptr, inputs + done, first, size);
    }
    finish<Type, Op, true>(sums, out, inputs + done, input_count - done, first, size);
  }
}

template <typename Type>
void fill(ReduceKernels& table, model::DType dtype) {
  auto& row = table.kernels[static_cast<std::size_t>(dtype)];
  row[static_cast<std::size_t>(model::ReduceOp::kSum)] = kernel<Type, Add>;
  row[static_cast<std::size_t>(model::ReduceOp::kMin)] = kernel<Type, Min>;
  row[static_cast<std::size_t>(model::ReduceOp::kMax)] = kernel<Type, Max>;
}

ReduceKernels make_table() {
  ReduceKernels table;
  fill<Plain<float>>(table, model::DType::kFloat32);
  fill<Plain<double>>(table, model::DType::kFloat64);
  fill<Float16>(table, model::DType::kFloat16);
  fill<BFloat16>(table, model::DType::kBFloat16);
  fill<Plain<std::int32_t>>(table, model::DType::kInt32);
  fill<Plain<std::int64_t>>(table, model::DType::kInt64);
  fill<Plain<std::uint8_t>>(table, model::DType::kUInt8);
  fill<Plain<std::int8_t>>(table, model::DType::kInt8);
  return table;
}

}  // namespace
}  // namespace deft::reduce
