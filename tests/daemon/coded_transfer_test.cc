// Encoded transfers of several nodes, without a network: the test carries the codes between them, whole or in segments.
#include "daemon/channel/coded_transfer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <span>

#include "core/compress/registry.h"
#include "tests/daemon/coded_nodes.h"

namespace deft::daemon {
namespace {

using link::Range;

// Two matrices with a bias between them and one behind.
constexpr std::size_t kElements = 18 * kBlock + 48;
std::vector<Range> matrices() { return {{0, 12 * kBlock}, {13 * kBlock, 5 * kBlock}}; }
bool is_exact(std::size_t element) {
  return (element >= 12 * kBlock && element < 13 * kBlock) || element >= 18 * kBlock;
}

struct Case {
  std::string codec;
  model::DType dtype = model::DType::kFloat32;
};

TEST(CodedTransfer, WhateverAStepHasEachOfItsTransfersIsMeasuredNowAndThen) {
  EXPECT_TRUE(is_measured(0));
  for (std::uint64_t in_a_step = 1; in_a_step <= 64; ++in_a_step) {
    std::set<std::uint64_t> measured;
    for (std::uint64_t number = 0; number < 300 * in_a_step; ++number)
      if (is_measured(number)) measured.insert(number % in_a_step);
    EXPECT_EQ(measured.size(), in_a_step);
  }
}

class EveryCodec : public testing::TestWithParam<Case> {
 protected:
  static Nodes nodes_of(std::size_t count, std::size_t elements, std::vector<Range> ranges) {
    return {count, GetParam().codec, elements, std::move(ranges), GetParam().dtype};
  }
  // Halves get multiples of 1/16 that they hold, and the sums of three.
  static void fill(std::vector<float>& values, std::uint64_t seed) {
    daemon::fill(values, seed);
    if (!model::is_half(GetParam().dtype)) return;
    for (float& value : values) value = std::round(16 * std::clamp(value, -4.0F, 4.0F)) / 16;
  }
};

#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kGenerations = 8;  // ThreadSanitizer takes ten times as long
#else
constexpr std::uint64_t kGenerations = 40;
#endif

// Over all nodes: what was applied and what is left make what was brought, generation after generation.
TEST_P(EveryCodec, LosesNothingForGood) {
  for (const auto& [count, segment] :
       std::vector<std::pair<std::size_t, std::size_t>>{{3, 0}, {3, 1}, {3, 3}, {2, 1}}) {
    Nodes nodes = nodes_of(count, kElements, matrices());
    std::vector<double> brought(kElements, 0), applied(kElements, 0);
    for (std::uint64_t generation = 0; generation < kGenerations; ++generation) {
      for (std::size_t node = 0; node < count; ++node) {
        fill(nodes.values(node), generation * 3 + node);
        for (std::size_t i = 0; i < kElements; ++i) brought[i] += static_cast<double>(nodes.values(node)[i]);
      }
      ASSERT_NO_FATAL_FAILURE(nodes.run(generation, segment));
      for (std::size_t i = 0; i < kElements; ++i) applied[i] += static_cast<double>(nodes.values(0)[i]);
    }
    const auto left = nodes.all_residuals();
    for (std::size_t i = 0; i < kElements; ++i) {
      if (is_exact(i) || nodes.codec().traits().uses_feedback) {
        ASSERT_NEAR(applied[i] + left[i], brought[i], 2e-3)
            << i << " of " << GetParam().codec << " on " << count << " nodes, segments of " << segment;
      }
      if (is_exact(i)) {
        ASSERT_EQ(left[i], 0);
      }
    }
  }
}

TEST_P(EveryCodec, HowItIsCutChangesNoBit) {
  for (const std::size_t count : {2U, 3U}) {
    std::vector<std::vector<float>> results;
    for (const std::size_t segment : {0U, 1U, 2U, 100U}) {
      Nodes nodes = nodes_of(count, kElements, matrices());
      for (std::uint64_t generation = 0; generation < 3; ++generation) {
        for (std::size_t node = 0; node < count; ++node) fill(nodes.values(node), generation * count + node);
        ASSERT_NO_FATAL_FAILURE(nodes.run(generation, segment));
      }
      results.push_back(nodes.values(0));
    }
    for (const auto& result : results)
      EXPECT_EQ(std::memcmp(result.data(), results[0].data(), kElements * sizeof(float)), 0) << GetParam().codec;
  }
}

// A link is lost after one node has the result. All replay, and what owners left out is booked once.
TEST_P(EveryCodec, AReplayGivesTheSameBitsAndBooksNothingTwice) {
  for (const std::size_t count : {2U, 3U}) {
    Nodes once = nodes_of(count, kElements, matrices()), again = nodes_of(count, kElements, matrices());
    for (std::size_t node = 0; node < count; ++node) {
      fill(once.values(node), node);
      again.values(node) = once.values(node);
    }
    ASSERT_NO_FATAL_FAILURE(once.run(5, 2));

    std::vector<ReplayBuffer> kept(count);
    again.encode(5, &kept);
    again.exchange(2);
    ASSERT_TRUE(again.decode(0, true));  // node 0 is done; the others are not
    const std::vector<float> of_node_0 = again.values(0);
    for (std::size_t node = 0; node < count; ++node) {
      std::ranges::fill(again.values(node), -1.0F);
      again.make(node, 5);
      ASSERT_TRUE(again.coded(node).restore(kept[node]));
    }
    again.exchange(0);
    for (std::size_t node = 0; node < count; ++node) ASSERT_TRUE(again.decode(node, node != 0));
    EXPECT_EQ(of_node_0, once.values(0));
    for (std::size_t node = 0; node < count; ++node) EXPECT_EQ(again.values(node), once.values(0)) << node;
    EXPECT_EQ(again.all_residuals(), once.all_residuals());
  }
}

// One node alone has an infinity. Where the sum is finite, it was applied, so the ledger holds there. Where it is not, every node's
// residuals are as they were before, up to rounding.
TEST_P(EveryCodec, AnInfinityIsSeenOnAllNodesAndLeavesTheirResidualsAsTheyWere) {
  for (const auto& [count, replays] :
       std::vector<std::pair<std::size_t, bool>>{{2, false}, {2, true}, {3, false}, {3, true}}) {
    Nodes nodes = nodes_of(count, 4 * kBlock, {{0, 4 * kBlock}});
    for (std::size_t node = 0; node < count; ++node) fill(nodes.values(node), node);
    ASSERT_NO_FATAL_FAILURE(nodes.run(0, 1));
    std::vector<std::vector<float>> before;
    for (std::size_t node = 0; node < count; ++node) before.push_back(nodes.residuals(node));
    const auto all_before = nodes.all_residuals();
    std::vector<double> brought(4 * kBlock, 0);
    for (std::size_t node = 0; node < count; ++node) fill(nodes.values(node), 10 + node);
    nodes.values(1)[300] = std::numeric_limits<float>::infinity();
    for (std::size_t node = 0; node < count; ++node)
      for (std::size_t i = 0; i < brought.size(); ++i) brought[i] += static_cast<double>(nodes.values(node)[i]);
    std::vector<ReplayBuffer> kept(count);
    nodes.encode(1, replays ? &kept : nullptr);
    for (std::size_t node = 0; node < count && !replays; ++node) nodes.coded(node).keep_own();
    nodes.exchange(1);
    ASSERT_TRUE(nodes.decode());
    EXPECT_FALSE(std::isfinite(nodes.values(0)[300])) << GetParam().codec;
    const auto all_after = nodes.all_residuals();
    for (std::size_t i = 0; i < brought.size(); ++i) {
      for (std::size_t node = 0; node < count; ++node) {
        ASSERT_EQ(std::isfinite(nodes.values(node)[i]), std::isfinite(nodes.values(0)[i]));
        if (!std::isfinite(nodes.values(0)[i])) {
          ASSERT_NEAR(nodes.residuals(node)[i], before[node][i], 1e-5) << i;
        }
      }
      if (std::isfinite(nodes.values(0)[i]) && nodes.codec().traits().uses_feedback) {
        ASSERT_NEAR(static_cast<double>(nodes.values(0)[i]) + all_after[i], brought[i] + all_before[i], 1e-4) << i;
      }
    }
  }
}

std::vector<Case> cases() {
  std::vector<std::string> names;
  for (const std::string_view name : compress::codec_names()) {
    const auto codec = compress::make_codec(name).value();
    const compress::Traits& traits = codec->traits();
    if (!traits.takes_momentum && traits.law != compress::Law::kLowRank) names.emplace_back(name);
  }
  // So many that three nodes send float32. Two still gather.
  names.insert(names.end(), {"topk/ratio=0.4", "randk/ratio=0.8"});
  std::vector<Case> cases;
  for (const auto dtype : {model::DType::kFloat32, model::DType::kFloat16, model::DType::kBFloat16})
    for (const std::string& name : names) cases.push_back({name, dtype});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(, EveryCodec, testing::ValuesIn(cases()), [](const auto& given) {
  std::string name = given.param.codec;
  if (model::is_half(given.param.dtype)) name += "_of_" + std::string(to_string(given.param.dtype));
  std::ranges::replace_if(
      name, [](char c) { return c == '/' || c == '=' || c == '.'; }, '_');
  return name;
});

TEST(CodedTransfer, SparseEncodingsAreGatheredUntilFloat32IsLess) {
  for (const std::size_t size : {2U, 3U, 8U}) {
    Nodes nodes(size, "topk/ratio=0.3", 8 * kBlock, {{0, 8 * kBlock}});  // 0.6 of the bytes, with the places
    nodes.encode(0);
    nodes.take_requests();
    EXPECT_EQ(nodes.kind() == link::WorkRequest::Kind::kAllGather, size <= 3) << size;
    EXPECT_LE(nodes.coded(0).wire_bytes(), 8 * kBlock * sizeof(float));
  }
}

// Both nodes add the same two encodings: the sum is theirs, and nothing more is left out.
TEST(CodedTransfer, ASumOfTwoNodesIsNotRoundedAgain) {
  for (const char* name : {"int8", "int4", "int2", "efsignsgd", "qsgd", "bf16", "randk/ratio=0.5"}) {
    Nodes nodes(2, name, 6 * kBlock, {{0, 6 * kBlock}});
    std::vector<float> sums(6 * kBlock, 0.0F);
    std::vector<std::vector<float>> left;
    for (std::size_t node = 0; node < 2; ++node) {
      fill(nodes.values(node), node);
      std::vector<float> residual(sums.size());
      std::vector<std::byte> code(nodes.codec().encoded_bytes(sums.size()));
      const compress::Slice slice{7, 4, 0};
      const auto used = nodes.codec().traits().uses_feedback
                            ? nodes.codec().encode_with_feedback(slice, nodes.values(node), residual, code)
                            : nodes.codec().encode(slice, nodes.values(node), code);
      ASSERT_TRUE(used);
      ASSERT_TRUE(nodes.codec().decode_add(slice, code, sums));
      left.push_back(residual);
    }
    nodes.encode(4);
    nodes.take_requests();
    EXPECT_TRUE(nodes.kind() == link::WorkRequest::Kind::kReduceByAll) << name;
    nodes.exchange(2);
    ASSERT_TRUE(nodes.decode());
    for (std::size_t node = 0; node < 2; ++node) {
      EXPECT_EQ(nodes.values(node), sums) << name;
      EXPECT_EQ(nodes.residuals(node), left[node]) << name;
    }
  }
}

TEST(CodedTransfer, OwnersCountVotesAndAddTheCodesOfManyNodes) {
  for (const auto& [count, codec] : std::vector<std::pair<std::size_t, std::string>>{{2, "signsgd"}, {3, "int8"}}) {
    Nodes nodes(count, codec, 2 * kBlock, {{0, 2 * kBlock}});
    nodes.encode(0);
    nodes.take_requests();
    EXPECT_FALSE(nodes.kind() == link::WorkRequest::Kind::kReduceByAll) << codec;
  }
}

TEST(CodedTransfer, SendsAQuarterOfTheBytesWithInt8) {
  Nodes nodes(2, "int8", kElements, matrices());
  nodes.encode(0);
  const std::size_t exact = (kBlock + 48) * sizeof(float);
  EXPECT_EQ(nodes.coded(0).wire_bytes(), 17 * (kBlock + 2) + exact);
}

TEST(CodedTransfer, TellsWhatEncodingsLeaveOutOfWhatTheyAreGiven) {
  constexpr std::size_t kWhole = 4096;
  BufferPool buffers;
  std::vector<float> values(kWhole);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(random);
  for (const char* name : {"topk/ratio=0.1", "int4"}) {
    auto codings = std::make_shared<Codings>();
    codings->coded.push_back({compress::make_codec(name).value(), {{0, kWhole}}});
    codings->residuals = std::make_shared<Residuals>(kWhole);
    CodecLoss loss;
    ASSERT_TRUE(
        CodedTransfer(codings, std::as_writable_bytes(std::span(values)), NodeOfAll{0, 2}, buffers, &loss).encode());
    double given = 0, left_out = 0;
    for (const float value : values) given += static_cast<double>(value) * value;
    for (const float value : codings->residuals->use(0, kWhole).values())
      left_out += static_cast<double>(value) * value;
    EXPECT_NEAR(loss.given, given, 1e-12 * given) << name;  // the terms are added in another order
    EXPECT_NEAR(loss.left_out, left_out, 1e-12 * left_out) << name;
    EXPECT_GT(loss.left_out, 0) << name;
    // What was left out is given again.
    const CodecLoss first = loss;
    std::vector<float> nothing(kWhole);
    ASSERT_TRUE(
        CodedTransfer(codings, std::as_writable_bytes(std::span(nothing)), NodeOfAll{0, 2}, buffers, &loss).encode());
    EXPECT_NEAR(loss.given - first.given, first.left_out, 1e-9 * loss.given) << name;
    values[7] = std::numeric_limits<float>::infinity();
    const CodecLoss second = loss;
    ASSERT_TRUE(
        CodedTransfer(codings, std::as_writable_bytes(std::span(values)), NodeOfAll{0, 2}, buffers, &loss).encode());
    EXPECT_EQ(loss.given, second.given) << name << ": a gradient that is not finite is not counted";
    values[7] = 1;
  }
}

TEST(CodedTransfer, GarbageFromANodeIsAnErrorThatNamesIt) {
  for (const std::size_t count : {2U, 3U}) {
    Nodes nodes(count, "int8", 6 * kBlock, {{0, 6 * kBlock}});
    for (std::size_t node = 0; node < count; ++node) fill(nodes.values(node), node);
    nodes.encode(0);
    nodes.take_requests();
    const std::uint16_t scale = 0xBF80;  // of -1: no scale is negative
    std::memcpy(nodes.code_of(count - 1, 0), &scale, sizeof scale);
    nodes.exchange(1);
    const auto failed = nodes.coded(0).decode(true);
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().kind, ErrorKind::kViolation);
    EXPECT_NE(failed.error().what.find("node " + std::to_string(count - 1)), std::string::npos) << failed.error().what;
  }
}

TEST(CodedTransfer, ALengthThatANodeMadeUpIsAnErrorThatNamesIt) {
  for (const std::uint64_t length : {std::uint64_t{1} << 60, std::uint64_t{1} << 20, std::uint64_t{3}}) {
    Nodes nodes(3, "topk", 6 * kBlock, {{0, 6 * kBlock}});
    for (std::size_t node = 0; node < 3; ++node) fill(nodes.values(node), node);
    nodes.encode(0);
    nodes.exchange(1);
    std::memcpy(nodes.code_of(0, 0) + nodes.block_bytes(), &length, sizeof length);
    const auto failed = nodes.coded(0).decode(true);
    ASSERT_FALSE(failed) << length;
    EXPECT_NE(failed.error().what.find("node 1"), std::string::npos) << failed.error().what;
    const bool is_said = failed.error().what.find("bytes, of at most") != std::string::npos;
    EXPECT_EQ(is_said, length > 3) << failed.error().what;
  }
}

TEST(CodedTransfer, BetweenTwoNodesTheLinkSendsTheCodesFromWhereTheyAreKept) {
  for (const auto& [count, is_same] : std::vector<std::pair<std::size_t, bool>>{{2, true}, {3, false}}) {
    Nodes nodes(count, "int8", 6 * kBlock, {{0, 6 * kBlock}});
    for (std::size_t node = 0; node < count; ++node) fill(nodes.values(node), node);
    std::vector<ReplayBuffer> kept(count);
    nodes.encode(0, &kept);
    nodes.take_requests();
    for (std::size_t node = 0; node < count; ++node)
      EXPECT_EQ(nodes.code_of(node, 0) == kept[node].data.get(), is_same)
          << "owners of " << count << " nodes write there";
  }
}

TEST(CodedTransfer, AReplayOfAnotherTransferIsRefused) {
  Nodes small(1, "int8", kBlock, {{0, kBlock}}), large(1, "int8", 2 * kBlock, {{0, 2 * kBlock}});
  small.encode(0);
  large.encode(0);
  ReplayBuffer kept;
  small.coded(0).keep(kept);
  EXPECT_FALSE(large.coded(0).restore(kept));
}

TEST(BufferPool, GivesAgainWhatCameBack) {
  BufferPool pool;
  auto buffer = pool.take(1000);
  const std::byte* const memory = buffer.data();
  pool.give_back(std::move(buffer));
  EXPECT_EQ(pool.take(500).data(), memory);
  EXPECT_NE(pool.take(500).data(), memory);
}

// A plan may choose another codec, or none, for each generation.
TEST(CodedTransferSwitches, NothingIsLostWhenCodecsComeAndGo) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (const char* codec : {"int8", "int2", "efsignsgd", "topk/ratio=0.1"}) {
    constexpr std::size_t kAll = 1024;
    Nodes nodes(3, codec, kAll, {{256, 512}});
    std::vector<double> brought(kAll, 0), applied(kAll, 0);
    double kept = 0;
    for (std::uint64_t generation = 0; generation < kGenerations; ++generation) {
      const bool exact = random() % 3 == 0;
      nodes.go_exact(exact);
      for (std::size_t node = 0; node < nodes.size(); ++node)
        for (std::size_t i = 0; i < kAll; ++i) brought[i] += nodes.values(node)[i] = normal(random);
      nodes.run(generation, 1);
      for (std::size_t i = 0; i < kAll; ++i) applied[i] += nodes.values(0)[i];
      const auto residuals = nodes.all_residuals();
      for (std::size_t i = 0; i < kAll; ++i) {
        ASSERT_NEAR(applied[i] + residuals[i], brought[i], 2e-3) << codec << ", element " << i;
        if (exact) {
          ASSERT_EQ(residuals[i], 0) << "an exact transfer takes all along";
        }
        kept = std::max(kept, std::abs(residuals[i]));
      }
    }
    EXPECT_GT(kept, 0) << codec;
  }
}

TEST(CodedTransferSwitches, AnInfinityOfOneNodeLeavesTheOthersResidualsForTheNextExactOne) {
  Nodes nodes(2, "int2", 512, {{0, 512}});
  for (std::size_t node = 0; node < 2; ++node) fill(nodes.values(node), node);
  nodes.run(0, 1);
  const auto before = nodes.residuals(0);
  nodes.go_exact(true);
  for (std::size_t node = 0; node < 2; ++node) fill(nodes.values(node), 5 + node);
  nodes.values(1)[7] = std::numeric_limits<float>::infinity();
  nodes.encode(1);
  for (std::size_t node = 0; node < 2; ++node) nodes.coded(node).keep_own();
  nodes.exchange(1);
  ASSERT_TRUE(nodes.decode());
  EXPECT_FALSE(std::isfinite(nodes.values(0)[7]));
  EXPECT_NEAR(nodes.residuals(0)[7], before[7], 1e-6);
  EXPECT_EQ(nodes.residuals(0)[8], 0) << "that sum was applied";
}

bool is_in_place(Nodes& nodes, std::size_t node) {
  return nodes.code_of(node, 0) == std::as_writable_bytes(std::span(nodes.values(node))).data();
}

// After one exact generation nothing is left to be taken along, and nothing is copied any more.
TEST(CodedTransferSwitches, WithoutResidualsTheArenaIsTheMessage) {
  Nodes nodes(2, "int8", kElements, matrices());
  const auto run_exact = [&nodes](std::uint64_t generation) {
    nodes.go_exact(true);
    std::vector<float> sum(kElements, 0);
    for (std::size_t node = 0; node < 2; ++node) {
      fill(nodes.values(node), 10 * generation + node);
      for (std::size_t i = 0; i < kElements; ++i) sum[i] += nodes.values(node)[i];
    }
    nodes.run(generation, 1);
    return nodes.values(0) == sum;
  };
  for (std::size_t node = 0; node < 2; ++node) fill(nodes.values(node), node);
  nodes.run(0, 1);
  EXPECT_FALSE(run_exact(1)) << "residuals go along";
  EXPECT_FALSE(is_in_place(nodes, 0));
  EXPECT_TRUE(run_exact(2));
  EXPECT_TRUE(is_in_place(nodes, 0) && is_in_place(nodes, 1));
  for (const float residual : nodes.residuals(1)) ASSERT_EQ(residual, 0);  // looked at: they may hold something again
  EXPECT_TRUE(run_exact(3)) << "each node decides by itself";
  EXPECT_TRUE(is_in_place(nodes, 0) && !is_in_place(nodes, 1));
  EXPECT_TRUE(run_exact(4));
  EXPECT_TRUE(is_in_place(nodes, 0) && is_in_place(nodes, 1));
}

TEST(CodedTransferSwitches, AReplayOfWhatTheArenaBroughtGivesNothingBack) {
  Nodes nodes(2, "int8", 512, {{0, 512}});
  nodes.go_exact(true);
  for (std::size_t node = 0; node < 2; ++node) fill(nodes.values(node), node);
  nodes.values(1)[7] = std::numeric_limits<float>::infinity();
  const float other = nodes.values(0)[8] + nodes.values(1)[8];
  std::vector<ReplayBuffer> kept(2);
  nodes.encode(0, &kept);
  nodes.take_requests();
  ASSERT_TRUE(is_in_place(nodes, 0));
  for (std::size_t node = 0; node < 2; ++node) {  // the lost link leaves anything there
    std::ranges::fill(nodes.values(node), 1000.0F);
    nodes.make(node, 0);
    ASSERT_TRUE(nodes.coded(node).restore(kept[node]));
  }
  nodes.exchange(1);
  ASSERT_TRUE(nodes.decode());
  EXPECT_FALSE(std::isfinite(nodes.values(0)[7]));
  EXPECT_EQ(nodes.values(0)[8], other);
  for (const float residual : nodes.residuals(0)) ASSERT_EQ(residual, 0);
}

// Its rounding would be larger than any gradient.
TEST(CodedTransfer, AGradientThatExplodesBesideOneThatIsNoNumberLeavesNothing) {
  for (const char* codec : {"int8", "int2", "efsignsgd", "topk/ratio=0.1"}) {
    Nodes nodes(2, codec, 2 * kBlock, {{0, 2 * kBlock}});
    for (std::size_t node = 0; node < 2; ++node) fill(nodes.values(node), node);
    nodes.run(0, 1);
    const auto before = nodes.residuals(0);
    for (std::size_t node = 0; node < 2; ++node) fill(nodes.values(node), 5 + node);
    for (float& value : nodes.values(0)) value *= 1e30F;
    std::ranges::fill(nodes.values(1), std::numeric_limits<float>::quiet_NaN());
    nodes.encode(1);
    for (std::size_t node = 0; node < 2; ++node) nodes.coded(node).keep_own();
    nodes.exchange(1);
    ASSERT_TRUE(nodes.decode()) << codec;
    ASSERT_TRUE(std::isnan(nodes.values(0)[0])) << codec;
    for (const float residual : nodes.residuals(0)) EXPECT_EQ(residual, 0) << codec;
    EXPECT_NE(before, nodes.residuals(0)) << codec;
  }
}

TEST(CodedTransferSwitches, AGradientThatIsNotFiniteLeavesResidualsForTheNextOne) {
  Nodes nodes(2, "int8", 512, {{0, 512}});
  for (std::size_t node = 0; node < 2; ++node)
    for (std::size_t i = 0; i < 512; ++i) nodes.values(node)[i] = 0.1F * static_cast<float>(i);
  nodes.run(0, 1);
  const auto before = nodes.all_residuals();
  nodes.go_exact(true);
  for (std::size_t node = 0; node < 2; ++node)
    std::ranges::fill(nodes.values(node), std::numeric_limits<float>::infinity());
  nodes.run(1, 1);
  EXPECT_EQ(nodes.all_residuals(), before);
}

// Node 0 brings an infinity, so it takes nothing of its residuals along. Its finite gradient may be large where node 1 has an infinity.
TEST(CodedTransferSwitches, AnExactGradientThatIsNotFiniteTakesNoResidualAlong) {
  for (const auto dtype : {model::DType::kFloat32, model::DType::kBFloat16}) {
    Nodes nodes(2, "int2", 512, {{0, 512}}, dtype);
    for (std::size_t node = 0; node < 2; ++node) fill(nodes.values(node), node);
    nodes.run(0, 1);
    const std::vector<float> before = nodes.residuals(0);
    ASSERT_NE(before[9], 0);
    nodes.go_exact(true);
    for (std::size_t node = 0; node < 2; ++node) fill(nodes.values(node), 5 + node);
    nodes.values(0)[7] = nodes.values(1)[9] = std::numeric_limits<float>::infinity();
    nodes.values(0)[9] = 1e30F;
    nodes.encode(1);
    for (std::size_t node = 0; node < 2; ++node) nodes.coded(node).keep_own();
    nodes.exchange(1);
    ASSERT_TRUE(nodes.decode());
    EXPECT_FALSE(std::isfinite(nodes.values(0)[9]));
    EXPECT_EQ(nodes.residuals(0), before);
  }
}

}  // namespace
}  // namespace deft::daemon
