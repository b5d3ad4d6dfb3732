// The codecs, kernel sets and data that the tests of core/compress run over.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/compress/codec.h"
#include "core/compress/kernels.h"
#include "core/compress/registry.h"

namespace deft::compress {

using Floats = std::vector<float>;
using Bytes = std::vector<std::byte>;
using CodecPointer = std::unique_ptr<const Codec>;

// A codec as tests use it, and what it promises for 4,096 normally distributed values.
struct CodecCase {
  std::string text;
  double most_left_out = 1;  // |x - decode(encode(x))|^2 / |x|^2
};

inline std::vector<CodecCase> codec_cases() {
  return {{"bf16", 4e-6},
          {"fp16", 6e-8},
          {"int8", 1e-4},
          {"int4", 0.03},
          {"int2", 0.21},
          {"efsignsgd", 0.38},
          {"onebit", 0.38},
          {"signsgd"},
          {"signum"},
          {"randk/ratio=0.1", 0.95},
          {"randk/ratio=0.02,unbiased=1,seed=9"},
          {"topk/ratio=0.02", 0.88},
          {"topk/ratio=0.3", 0.3},
          {"dgc/ratio=0.01", 0.94},
          {"terngrad"},
          {"qsgd/levels=127"}};
}

// For the names of parameterised tests.
inline std::string test_name(const std::string& text) {
  std::string name;
  for (const char c : text) name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

inline CodecPointer codec_of(const std::string& text, const CodecKernels& kernels = best_kernels()) {
  auto made = make_codec(text, kernels);
  if (!made) throw std::runtime_error(made.error().message());
  return *std::move(made);
}

struct KernelSet {
  const char* name;
  const CodecKernels* kernels;
};
inline std::vector<KernelSet> kernel_sets() {
  std::vector<KernelSet> sets{{"portable", &portable_kernels()}};
  if (avx2_kernels() != nullptr) sets.push_back({"avx2", avx2_kernels()});
  if (avx512_kernels() != nullptr) sets.push_back({"avx512", avx512_kernels()});
  return sets;
}

enum class Data { kNormal, kHeavyTail, kSparse, kZeros, kDenormal, kHuge, kMixed, kEqual };
constexpr Data kFiniteData[] = {Data::kNormal,   Data::kHeavyTail, Data::kSparse, Data::kZeros,
                                Data::kDenormal, Data::kHuge,      Data::kMixed,  Data::kEqual};

inline Floats make_values(Data data, std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-149, 127);
  Floats values(count);
  for (float& value : values) {
    const float x = normal(random);
    switch (data) {
      case Data::kNormal: value = x * 0.01F; break;
      case Data::kHeavyTail: value = x * x * x * x * x; break;
      case Data::kSparse: value = random() % 50 == 0 ? x : 0; break;
      case Data::kZeros: value = random() % 2 == 0 ? 0.0F : -0.0F; break;
      case Data::kDenormal: value = x * 1e-40F; break;
      case Data::kHuge:
        value = std::copysign(std::numeric_limits<float>::max() * (0.5F + 0.5F * (random() % 2)), x);
        break;
      case Data::kMixed: value = std::copysign(std::ldexp(1.0F, exponent(random)), x); break;
      case Data::kEqual: value = random() % 2 == 0 ? 0.25F : -0.25F; break;
    }
  }
  return values;
}

inline Floats normal_values(std::size_t count, std::uint64_t seed) { return make_values(Data::kNormal, count, seed); }

inline double squared(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return sum;
}

// An encoding by itself: exactly the bytes that were used.
inline Bytes encoded(const Codec& codec, const Slice& slice, std::span<const float> values) {
  Bytes code(codec.encoded_bytes_at(slice.generation, values.size()));
  code.resize(codec.encode(slice, values, code).value());
  return code;
}
inline Bytes encoded_with_feedback(const Codec& codec, const Slice& slice, std::span<const float> values,
                                   std::span<float> residual) {
  Bytes code(codec.encoded_bytes_at(slice.generation, values.size()));
  code.resize(codec.encode_with_feedback(slice, values, residual, code).value());
  return code;
}
inline Floats decoded(const Codec& codec, const Slice& slice, std::span<const std::byte> code, std::size_t count) {
  Floats values(count, 7.0F);
  if (auto ok = codec.decode(slice, code, values); !ok) throw std::runtime_error(ok.error().message());
  return values;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace deft::compress
