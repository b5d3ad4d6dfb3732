// The reduction against a plain scalar oracle, for each instruction set that runs here.
#include "core/reduce/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/reduce/kernels.h"

namespace deft::reduce {
namespace {

using model::DType;
using model::ReduceOp;
using Bytes = std::vector<std::byte>;

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax};
constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16,
                             DType::kInt32,   DType::kInt64,   DType::kUInt8,   DType::kInt8};

// 16-bit formats by their definition, with nothing in common with the code under test: a table of all finite values, and
// the nearest of them (the even one of two) for the way back.
class Format16 {
 public:
  Format16(int exponent_bits, int mantissa_bits) : exponent_bits_(exponent_bits), mantissa_bits_(mantissa_bits) {}

  [[nodiscard]] double decode(std::uint16_t bits) const {
    const int exponent = (bits >> mantissa_bits_) & ((1 << exponent_bits_) - 1);
    const int mantissa = bits & ((1 << mantissa_bits_) - 1);
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (exponent == (1 << exponent_bits_) - 1) {
      return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
    }
    const int bias = (1 << (exponent_bits_ - 1)) - 1;
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits_);
    return sign * std::ldexp(mantissa + (1 << mantissa_bits_), exponent - bias - mantissa_bits_);
  }

  [[nodiscard]] std::uint16_t encode(double value) const {
    const std::uint16_t infinity = static_cast<std::uint16_t>(((1 << exponent_bits_) - 1) << mantissa_bits_);
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    if (std::isnan(value)) return static_cast<std::uint16_t>(infinity | 1);
    std::uint16_t below = 0;  // the largest number not above |value|; magnitudes are ordered as their bits are
    std::uint16_t above = infinity;
    while (above - below > 1) {
      const auto middle = static_cast<std::uint16_t>((below + above) / 2);
      (decode(middle) <= std::fabs(value) ? below : above) = middle;
    }
    // Half way to infinity is where the next number would be if there were one more exponent.
    const double next =
        above == infinity ? 2 * decode(below) - decode(static_cast<std::uint16_t>(below - 1)) : decode(above);
    const double low = std::fabs(value) - decode(below);
    const double high = next - std::fabs(value);
    const bool up = high < low || (high == low && (below & 1) != 0);
    return static_cast<std::uint16_t>(sign | (up ? above : below));
  }

 private:
  int exponent_bits_;
  int mantissa_bits_;
};
const Format16 kHalf(5, 10);
const Format16 kBrain(8, 7);

// Adds (or compares) as the interface promises: float32 for the 16-bit types, wrapping for integers, NaN wins.
template <typename T>
T combine(T a, T b, ReduceOp op) {
  if (std::isnan(static_cast<double>(a))) return a;
  if (std::isnan(static_cast<double>(b))) return b;
  if (op == ReduceOp::kMin) return a < b ? a : b;
  if (op == ReduceOp::kMax) return a > b ? a : b;
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}

template <typename T>
T element(const Bytes& bytes, std::size_t offset, std::size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + offset + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
bool same(T a, T b) {
  if (std::isnan(static_cast<double>(a))) return std::isnan(static_cast<double>(b));
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

struct Inputs {
  std::vector<Bytes> buffers;
  std::size_t offset = 0;  // makes the elements unaligned
};

template <typename T>
void check_plain(const Inputs& in, const Bytes& out, std::size_t count, ReduceOp op) {
  for (std::size_t i = 0; i < count; ++i) {
    T sum = element<T>(in.buffers[0], in.offset, i);
    for (std::size_t n = 1; n < in.buffers.size(); ++n) sum = combine(sum, element<T>(in.buffers[n], in.offset, i), op);
    ASSERT_TRUE(same(sum, element<T>(out, in.offset, i))) << "element " << i << " of " << count;
  }
}

void check_16(const Format16& format, const Inputs& in, const Bytes& out, std::size_t count, ReduceOp op) {
  for (std::size_t i = 0; i < count; ++i) {
    auto sum = static_cast<float>(format.decode(element<std::uint16_t>(in.buffers[0], in.offset, i)));
    for (std::size_t n = 1; n < in.buffers.size(); ++n) {
      sum = combine(sum, static_cast<float>(format.decode(element<std::uint16_t>(in.buffers[n], in.offset, i))), op);
    }
    const auto got = element<std::uint16_t>(out, in.offset, i);
    if (std::isnan(sum)) {
      ASSERT_TRUE(std::isnan(format.decode(got))) << "element " << i;
    } else {
      ASSERT_EQ(got, format.encode(sum)) << "element " << i << " of " << count << ", sum " << sum;
    }
  }
}

void check(const Inputs& in, const Bytes& out, std::size_t count, DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::kFloat32: return check_plain<float>(in, out, count, op);
    case DType::kFloat64: return check_plain<double>(in, out, count, op);
    case DType::kInt32: return check_plain<std::int32_t>(in, out, count, op);
    case DType::kInt64: return check_plain<std::int64_t>(in, out, count, op);
    case DType::kUInt8: return check_plain<std::uint8_t>(in, out, count, op);
    case DType::kInt8: return check_plain<std::int8_t>(in, out, count, op);
    case DType::kFloat16: return check_16(kHalf, in, out, count, op);
    case DType::kBFloat16: return check_16(kBrain, in, out, count, op);
  }
}

// Any bits at all: normal numbers, denormals, infinities and NaNs of every type.
Inputs random_inputs(std::size_t inputs, std::size_t bytes, std::size_t offset, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Inputs in;
  in.offset = offset;
  for (std::size_t n = 0; n < inputs; ++n) {
    Bytes buffer(offset + bytes);
    for (std::byte& byte : buffer) byte = static_cast<std::byte>(random());
    in.buffers.push_back(std::move(buffer));
  }
  return in;
}

std::vector<const std::byte*> pointers(const Inputs& in) {
  std::vector<const std::byte*> all;
  for (const Bytes& buffer : in.buffers) all.push_back(buffer.data() + in.offset);
  return all;
}

class Kernels : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    table_ = GetParam() == std::string_view("portable") ? &portable_kernels() : avx2_kernels();
    if (table_ == nullptr) GTEST_SKIP() << "this processor has no AVX2";
  }
  void reduce_and_check(const Inputs& in, std::size_t count, DType dtype, ReduceOp op) const {
    Bytes out = in.buffers[0];
    const auto inputs = pointers(in);
    table_->at(dtype, op)(out.data() + in.offset, inputs.data(), inputs.size(), count);
    check(in, out, count, dtype, op);
  }
  const ReduceKernels* table_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Sets, Kernels, ::testing::Values("portable", "avx2"),
                         [](const auto& set) { return std::string(set.param); });

TEST_P(Kernels, AgreeWithTheOracleForEveryLengthTypeOperationAndAlignment) {
  for (const DType dtype : kDTypes) {
    for (const ReduceOp op : kOps) {
      for (std::size_t count = 0; count <= 130; ++count) {
        const std::size_t inputs = 2 + count % 4;
        reduce_and_check(random_inputs(inputs, count * model::dtype_bytes(dtype), count % 7, count), count, dtype, op);
        if (HasFatalFailure()) FAIL() << to_string(dtype) << " " << static_cast<int>(op);
      }
    }
  }
}

TEST_P(Kernels, AgreeWithTheOracleForManyInputsAndSeveralBlocks) {
  for (const DType dtype : kDTypes) {
    for (const std::size_t inputs : {5, 8, 9, 13}) {
      reduce_and_check(random_inputs(inputs, 5003 * model::dtype_bytes(dtype), 1, inputs), 5003, dtype, ReduceOp::kSum);
      if (HasFatalFailure()) FAIL() << to_string(dtype) << " " << inputs << " inputs";
    }
  }
}

// Sums of pairs that land on, just below and just above every rounding boundary.
TEST_P(Kernels, RoundEvery16BitNumberToNearestEven) {
  for (const auto& [dtype, format] : {std::pair(DType::kFloat16, &kHalf), std::pair(DType::kBFloat16, &kBrain)}) {
    for (const int shift : {0, 1, 2, 8, 11, 12}) {
      Inputs in;
      in.buffers.assign(2, Bytes(65536 * 2));
      for (std::uint32_t bits = 0; bits < 65536; ++bits) {
        const auto first = static_cast<std::uint16_t>(bits);
        const std::uint16_t second = format->encode(std::ldexp(format->decode(first), -shift));
        std::memcpy(in.buffers[0].data() + 2 * bits, &first, 2);
        std::memcpy(in.buffers[1].data() + 2 * bits, &second, 2);
      }
      reduce_and_check(in, 65536, dtype, ReduceOp::kSum);
      if (HasFatalFailure()) FAIL() << to_string(dtype) << " shifted by " << shift;
    }
  }
}

TEST(Reduce, GivesTheSameBitsForEveryInstructionSetButForThePayloadOfNaNs) {
  if (avx2_kernels() == nullptr) GTEST_SKIP() << "this processor has one set only";
  for (const DType dtype : kDTypes) {
    for (const ReduceOp op : kOps) {
      const Inputs in = random_inputs(3, 4099 * model::dtype_bytes(dtype), 3, 5);
      const auto inputs = pointers(in);
      Bytes plain = in.buffers[0];
      portable_kernels().at(dtype, op)(plain.data() + 3, inputs.data(), 3, 4099);
      check(in, plain, 4099, dtype, op);
      Bytes wide = in.buffers[0];
      avx2_kernels()->at(dtype, op)(wide.data() + 3, inputs.data(), 3, 4099);
      check(in, wide, 4099, dtype, op);
      if (model::dtype_bytes(dtype) == 1 || dtype == DType::kInt32 || dtype == DType::kInt64) {
        EXPECT_TRUE(plain == wide) << to_string(dtype);
      }
    }
  }
}

TEST(Reduce, MayWriteIntoAnyOfItsInputs) {
  for (const std::size_t inputs : {2, 3, 4, 5, 9}) {
    for (std::size_t target = 0; target < inputs; ++target) {
      const Inputs in = random_inputs(inputs, 20'000, 0, inputs);
      Inputs working = in;
      const auto sources = pointers(working);
      reduce(working.buffers[target].data(), sources, 5000, DType::kInt32, ReduceOp::kSum);
      check(in, working.buffers[target], 5000, DType::kInt32, ReduceOp::kSum);
      for (std::size_t n = 0; n < inputs; ++n) {
        EXPECT_TRUE(n == target || working.buffers[n] == in.buffers[n]);
      }
    }
  }
}

TEST(Reduce, OfOneInputIsACopyAndOfNoneIsNothing) {
  const Inputs in = random_inputs(1, 999, 0, 1);
  Bytes out(999);
  reduce(out.data(), pointers(in), 999, DType::kUInt8, ReduceOp::kMax);
  EXPECT_TRUE(out == in.buffers[0]);
  reduce(out.data(), {}, 999, DType::kUInt8, ReduceOp::kSum);
  EXPECT_TRUE(out == in.buffers[0]);
}

TEST(Reduce, WritesNothingBeyondItsElements) {
  for (std::size_t count = 0; count < 70; ++count) {
    for (const DType dtype : kDTypes) {
      const std::size_t bytes = count * model::dtype_bytes(dtype);
      const Inputs in = random_inputs(2, bytes, 0, count);
      Bytes out(bytes + 64, std::byte{0x5A});
      reduce(out.data(), pointers(in), count, dtype, ReduceOp::kSum);
      for (std::size_t i = bytes; i < out.size(); ++i) ASSERT_EQ(out[i], std::byte{0x5A});
    }
  }
}

TEST(Reduce, AccumulatesHalvesInFloat32AndRoundsOnce) {
  // 2048 + 1 is no half: rounded at every step the ones would all be lost.
  std::vector<std::uint16_t> big(20, kHalf.encode(2048));
  const std::vector<std::uint16_t> one(20, kHalf.encode(1));
  std::vector<const std::byte*> inputs(9, reinterpret_cast<const std::byte*>(one.data()));
  inputs[0] = reinterpret_cast<const std::byte*>(big.data());
  reduce(reinterpret_cast<std::byte*>(big.data()), inputs, big.size(), DType::kFloat16, ReduceOp::kSum);
  for (const std::uint16_t bits : big) EXPECT_EQ(kHalf.decode(bits), 2056);
}

}  // namespace
}  // namespace deft::reduce
