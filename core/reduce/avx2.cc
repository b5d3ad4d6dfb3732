// AVX2 and F16C: the same loops, vectorised eight floats wide. Only the 16-bit types are written by hand, because the
// compiler finds neither the instructions for float16 nor a short way to pack bfloat16. Wider vectors would not pay: these
// loops already wait for memory.
#include "core/reduce/kernels.h"

#if defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>

#include "core/reduce/loops.h"
#include "core/reduce/reduce.h"

namespace deft::reduce {
namespace {

constexpr std::size_t kLanes = 8;

struct WideFloat16 : Float16 {
  static __m256 load8(const std::byte* bytes) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  }
  static __m256i store16(__m256 low, __m256 high) {
    return _mm256_set_m128i(_mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT));
  }
};

struct WideBFloat16 : BFloat16 {
  static __m256 load8(const std::byte* bytes) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  // Rounds as float_to_bfloat16 does. The result is in the lower half of each lane.
  static __m256i round(__m256 value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i upper = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i nearest = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
    const __m256i quiet_nan = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(nearest, 16), quiet_nan, is_nan);
  }
  static __m256i store16(__m256 low, __m256 high) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(round(low), round(high)), 0xD8);
  }
};

// Two vectors at a time, over all inputs; the rest element by element.
template <typename Type, typename Op>
void kernel_16bit(std::byte* out, const std::byte* const* inputs, std::size_t input_count, std::size_t count) {
  std::size_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    __m256 low = Type::load8(inputs[0] + i * 2);
    __m256 high = Type::load8(inputs[0] + (i + kLanes) * 2);
    for (std::size_t n = 1; n < input_count; ++n) {
      low = Op::apply(low, Type::load8(inputs[n] + i * 2));
      high = Op::apply(high, Type::load8(inputs[n] + (i + kLanes) * 2));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i * 2), Type::store16(low, high));
  }
  for (; i < count; ++i) {
    float sum = Type::load(elements<std::uint16_t>(inputs[0])[i]);
    for (std::size_t n = 1; n < input_count; ++n)
      sum = Op::apply(sum, Type::load(elements<std::uint16_t>(inputs[n])[i]));
    const std::uint16_t bits = Type::store(sum);
    std::memcpy(out + i * 2, &bits, sizeof bits);
  }
}

template <typename Type>
void fill_16bit(ReduceKernels& table, model::DType dtype) {
  auto& row = table.kernels[static_cast<std::size_t>(dtype)];
  row[static_cast<std::size_t>(model::ReduceOp::kSum)] = kernel_16bit<Type, Add>;
  row[static_cast<std::size_t>(model::ReduceOp::kMin)] = kernel_16bit<Type, Min>;
  row[static_cast<std::size_t>(model::ReduceOp::kMax)] = kernel_16bit<Type, Max>;
}

ReduceKernels make_avx2_table() {
  ReduceKernels table = make_table();
  fill_16bit<WideFloat16>(table, model::DType::kFloat16);
  fill_16bit<WideBFloat16>(table, model::DType::kBFloat16);
  return table;
}

}  // namespace

const ReduceKernels* avx2_kernels() {
  if (!has_avx2_and_f16c()) return nullptr;
  static const ReduceKernels table = make_avx2_table();
  return &table;
}

}  // namespace deft::reduce

#else

namespace deft::reduce {
const ReduceKernels* avx2_kernels() { return nullptr; }
}  // namespace deft::reduce

#endif
