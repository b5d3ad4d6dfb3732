// Encoded transfers of float16 and bfloat16: widened to float32, encoded, and rounded at the end.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/daemon/coded_nodes.h"

namespace deft::daemon {
namespace {

constexpr auto kFloat16 = model::DType::kFloat16, kBFloat16 = model::DType::kBFloat16;

// What the arena holds of a value.
void round_to(model::DType dtype, std::vector<float>& values) {
  const compress::Codec& half = *compress::codec_of(dtype);
  std::vector<std::byte> code(half.encoded_bytes(values.size()));
  ASSERT_TRUE(half.encode({}, values, code));
  ASSERT_TRUE(half.decode({}, code, values));
}

// What a link may round off a sum that travels as it is.
double rounding_of(model::DType dtype, float sum) {
  return std::ldexp(std::abs(static_cast<double>(sum)), dtype == kFloat16 ? -11 : -8) + std::ldexp(1.0, -24);
}

// Adds up, for each element of a job, the gradients, the applied sums, and the loss that is allowed.
class Ledger {
 public:
  Ledger(model::DType dtype, std::size_t elements)
      : dtype_(dtype), brought_(elements), applied_(elements), lost_(elements) {}
  void brings(const std::vector<float>& values) {
    for (std::size_t i = 0; i < values.size(); ++i) brought_[i] += static_cast<double>(values[i]);
  }
  // `is_rounded(element)`: the link has added halves.
  template <typename IsRounded>
  void applies(const std::vector<float>& sums, const IsRounded& is_rounded) {
    for (std::size_t i = 0; i < sums.size(); ++i) {
      applied_[i] += static_cast<double>(sums[i]);
      if (is_rounded(i)) lost_[i] += rounding_of(dtype_, sums[i]);
    }
  }
  // How far the loss exceeds the allowed one, at the worst element.
  [[nodiscard]] double excess(const std::vector<double>& residuals) const {
    double most = 0;
    for (std::size_t i = 0; i < residuals.size(); ++i)
      most = std::max(most, std::abs(brought_[i] - applied_[i] - residuals[i]) - lost_[i]);
    return most;
  }

 private:
  model::DType dtype_;
  std::vector<double> brought_, applied_, lost_;
};

// Replicas are equal. Only a link that adds halves loses something: it rounds.
RC_GTEST_PROP(HalfTransfer, NothingIsLostForGoodAndAllNodesHoldTheSameBits, ()) {
  const auto dtype = *rc::gen::element(kFloat16, kBFloat16);
  const auto codec = *rc::gen::element<std::string>("int8", "int4", "int2", "efsignsgd", "onebit", "topk/ratio=0.1",
                                                    "topk/ratio=0.6", "randk/ratio=0.2");
  const auto blocks = *rc::gen::inRange<std::size_t>(1, 40);
  const auto first = *rc::gen::inRange<std::size_t>(0, blocks);
  const auto count = *rc::gen::inRange<std::size_t>(1, blocks - first + 1);
  const auto segment = *rc::gen::inRange<std::size_t>(0, 5);
  const auto scale = std::ldexp(1.0F, *rc::gen::inRange(-8, 8));
  std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
  const link::Range coded{first * kBlock, count * kBlock};
  Nodes nodes(*rc::gen::inRange<std::size_t>(1, 5), codec, blocks * kBlock, {coded}, dtype);
  Ledger ledger(dtype, blocks * kBlock);
  for (std::uint64_t generation = 0; generation < 5; ++generation) {
    const bool exact = *rc::gen::weightedElement<bool>({{3, false}, {1, true}});
    nodes.go_exact(exact);
    for (std::size_t node = 0; node < nodes.size(); ++node) {
      std::normal_distribution<float> normal(0, scale);
      for (float& value : nodes.values(node)) value = normal(random);
      round_to(dtype, nodes.values(node));
      ledger.brings(nodes.values(node));
    }
    nodes.run(generation, segment);
    RC_ASSERT(!testing::Test::HasFailure());
    ledger.applies(nodes.values(0),
                   [&](std::size_t i) { return exact || i < coded.first || i >= coded.first + coded.count; });
  }
  // float32 arithmetic of residuals, which are some times as large as gradients.
  RC_ASSERT(ledger.excess(nodes.all_residuals()) < 2e-3 * static_cast<double>(scale));
}

// A job of float32 with the same gradients applies the same sums, up to the rounding of each. Later sums bring the rest that rounding left out.
TEST(HalfTransfer, SumsAreThoseOfFloat32RoundedOnce) {
  constexpr std::size_t kAll = 20 * kBlock;
  for (const auto dtype : {kFloat16, kBFloat16}) {
    Nodes half(2, "int8", kAll, {{0, kAll}}, dtype), whole(2, "int8", kAll, {{0, kAll}});
    for (std::size_t node = 0; node < 2; ++node) {
      fill(half.values(node), node);
      round_to(dtype, half.values(node));
      whole.values(node) = half.values(node);
    }
    half.run(0, 1);
    whole.run(0, 1);
    std::vector<float> rounded = whole.values(0);
    round_to(dtype, rounded);
    EXPECT_EQ(half.values(0), rounded);
    const auto left = half.all_residuals(), left_by_whole = whole.all_residuals();
    for (std::size_t i = 0; i < kAll; ++i)
      ASSERT_NEAR(left[i] - left_by_whole[i], static_cast<double>(whole.values(0)[i] - rounded[i]), 1e-6) << i;
  }
}

TEST(HalfTransfer, AFiniteSumStaysFiniteAndItsRestComesLater) {
  Nodes nodes(2, "int8", kBlock, {{0, kBlock}}, kFloat16);
  for (std::size_t node = 0; node < 2; ++node) std::ranges::fill(nodes.values(node), 60'000.0F);
  nodes.run(0, 1);
  EXPECT_EQ(nodes.values(0)[0], 65'504.0F);
  for (std::size_t node = 0; node < 2; ++node) std::ranges::fill(nodes.values(node), 0.0F);
  nodes.run(1, 1);
  EXPECT_NEAR(nodes.values(0)[0], 2 * 60'000 - 65'504, 500);
  EXPECT_NEAR(65'504 + static_cast<double>(nodes.values(0)[0]) + nodes.all_residuals()[0], 120'000, 0.1);
}

TEST(HalfTransfer, WhatIsNotEncodedTravelsAsHalves) {
  Nodes nodes(2, "int8", 6 * kBlock, {{0, 4 * kBlock}}, kBFloat16);
  nodes.encode(0);
  EXPECT_EQ(nodes.coded(0).wire_bytes(), 4 * (kBlock + 2) + 2 * kBlock * 2);
  nodes.go_exact(true);
  nodes.encode(1);
  EXPECT_EQ(nodes.coded(0).wire_bytes(), 6 * kBlock * 2);
}

// The sum of an exact transfer overflows, so nothing is applied there. What the nodes sent of their residuals comes back.
TEST(HalfTransfer, AnExactSumThatOverflowsGivesResidualsBack) {
  Nodes nodes(2, "int2", kBlock, {{0, kBlock}}, kFloat16);
  for (std::size_t node = 0; node < 2; ++node) fill(nodes.values(node), node);
  nodes.run(0, 1);
  const std::vector<float> before[2] = {nodes.residuals(0), nodes.residuals(1)};
  nodes.go_exact(true);
  for (std::size_t node = 0; node < 2; ++node) fill(nodes.values(node), 5 + node);
  for (std::size_t node = 0; node < 2; ++node) nodes.values(node)[7] = 60'000;
  nodes.encode(1);
  for (std::size_t node = 0; node < 2; ++node) nodes.coded(node).keep_own();
  nodes.exchange(1);
  ASSERT_TRUE(nodes.decode());
  EXPECT_TRUE(std::isinf(nodes.values(0)[7]));
  for (std::size_t node = 0; node < 2; ++node) {
    EXPECT_NEAR(nodes.residuals(node)[7], before[node][7], 1e-2);
    EXPECT_LT(std::abs(nodes.residuals(node)[8]), 0.01) << "the others were sent, up to what halves round off";
  }
}

}  // namespace
}  // namespace deft::daemon
