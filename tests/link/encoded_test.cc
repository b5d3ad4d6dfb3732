// Encoded gradients through real parameter servers, against gloo: the same bits in the results and in every node's residuals,
// whatever the codec, the cut and the number of nodes; and over all nodes, what was applied and the residuals make what was
// brought.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "core/compress/registry.h"
#include "daemon/channel/coded_transfer.h"
#include "tests/link/backends.h"
#include "tests/link/server_process.h"

namespace deft::link::testing {
namespace {

using daemon::CodedTransfer;
using daemon::Codings;
using ::testing::HasSubstr;

using CodecPointer = std::shared_ptr<const compress::Codec>;

constexpr std::size_t kBlock = 256;
constexpr std::size_t kElements = 700 * kBlock;  // of an arena: several segments even as int2
constexpr std::size_t kBias = 300 * kBlock;      // a block that is never encoded
constexpr std::uint64_t kGenerations = 6;

// One transfer of a generation, the same on all nodes.
struct Part {
  Range range;         // of the arena
  CodecPointer codec;  // null: as it is, with residuals
  Range exact;         // elements of the part that are never encoded
};

std::shared_ptr<const Codings> codings_of(const Part& part, std::uint64_t generation,
                                          const std::shared_ptr<daemon::Residuals>& residuals) {
  auto codings = std::make_shared<Codings>();
  const std::size_t behind = part.exact.first + part.exact.count;
  std::vector<Range> ranges;
  if (part.exact.first > 0) ranges.push_back({0, part.exact.first});
  if (behind < part.range.count) ranges.push_back({behind, part.range.count - behind});
  if (part.exact.count > 0) codings->exact.push_back(part.exact);
  if (part.codec == nullptr)
    codings->settled = ranges;
  else if (!ranges.empty())
    codings->coded.push_back({part.codec, ranges});
  codings->slice = {.job = 11, .generation = generation, .first = part.range.first};
  codings->residuals = residuals;
  return codings;
}

// How generations are cut, and their codecs. The last one brings all residuals.
std::vector<std::vector<Part>> random_plan(const std::vector<std::string>& codecs, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<CodecPointer> made;
  for (const std::string& codec : codecs) made.push_back(compress::make_codec(codec).value());
  std::vector<std::vector<Part>> plan(kGenerations);
  for (std::uint64_t generation = 0; generation < kGenerations; ++generation) {
    std::size_t first = 0;
    while (first < kElements) {
      const std::size_t count = std::min((1 + random() % 400) * kBlock, kElements - first);
      Part part{{first, count}, made[random() % made.size()], {}};
      if (generation + 1 == kGenerations || random() % 8 == 0) part.codec = nullptr;
      if (first <= kBias && kBias < first + count) part.exact = {kBias - first, kBlock};
      plan[generation].push_back(part);
      first += count;
    }
  }
  return plan;
}

float gradient(std::uint64_t generation, std::uint32_t node, std::size_t element) {
  std::uint64_t x = generation * 1'000'003 + node * 7919 + element;
  x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9U;
  return static_cast<float>(static_cast<std::int32_t>(x >> 32)) * 1e-9F;
}

struct Outcome {
  std::vector<std::vector<float>> values, residuals;  // after each generation
};

Result<void> run_part(Link& link, std::uint32_t node, const Part& part, std::uint64_t generation,
                      const std::shared_ptr<daemon::Residuals>& residuals, std::span<float> arena) {
  daemon::BufferPool buffers;
  const auto values = arena.subspan(part.range.first, part.range.count);
  CodedTransfer transfer(codings_of(part, generation, residuals), std::as_writable_bytes(values), {node, link.nodes()},
                         buffers);
  if (auto ok = transfer.encode(); !ok) return ok;
  transfer.keep_own();
  for (WorkRequest& request : transfer.requests())
    if (auto ok = link.run(std::move(request)); !ok) return ok;
  return transfer.decode(true);
}

Outcome train(Link& link, std::uint32_t node, const std::vector<std::vector<Part>>& plan) {
  Outcome outcome;
  const auto residuals = std::make_shared<daemon::Residuals>(kElements);
  for (std::uint64_t generation = 0; generation < plan.size(); ++generation) {
    std::vector<float> arena(kElements);
    for (std::size_t i = 0; i < kElements; ++i) arena[i] = gradient(generation, node, i);
    if (generation == 2 && node == 0) arena[kBlock] = std::numeric_limits<float>::infinity();
    for (const Part& part : plan[generation]) {
      const auto ok = run_part(link, node, part, generation, residuals, arena);
      EXPECT_TRUE(ok) << ok.error().message();
      if (!ok) return outcome;
    }
    outcome.values.push_back(std::move(arena));
    const auto use = residuals->use(0, kElements);
    outcome.residuals.emplace_back(use.values().begin(), use.values().end());
  }
  return outcome;
}

std::vector<Outcome> train_over(const Backend& backend, std::uint32_t nodes,
                                const std::vector<std::vector<Part>>& plan) {
  std::vector<Outcome> outcomes(nodes);
  on_nodes(backend, nodes, [&](std::uint32_t node, Link& link) { outcomes[node] = train(link, node, plan); });
  return outcomes;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

struct Case {
  std::uint32_t nodes = 2;
  std::vector<std::string> codecs;
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.nodes << " nodes, " << one.codecs.front(); }
std::string name_of_case(const ::testing::TestParamInfo<Case>& test) { return "Case" + std::to_string(test.index); }

const std::vector<std::string> kWithFeedback = {"int8", "int4", "int2", "bf16", "fp16", "efsignsgd", "onebit", "randk"};

// Of 2 nodes each gets the codes of the other one. With 3 a keeper gets codes, with 6 it gets sums of int8 and bf16.
class EncodedThroughServers : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(, EncodedThroughServers,
                         ::testing::Values(Case{2, kWithFeedback}, Case{3, kWithFeedback}, Case{6, kWithFeedback},
                                           Case{3, {"signsgd", "qsgd", "terngrad", "int8"}},
                                           Case{2, {"signsgd", "qsgd", "terngrad", "int8"}}),
                         name_of_case);

class LedgerOfServers : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(, LedgerOfServers,
                         ::testing::Values(Case{2, kWithFeedback}, Case{3, kWithFeedback}, Case{6, kWithFeedback}),
                         name_of_case);

TEST_P(EncodedThroughServers, ResultsAndResidualsHaveTheBitsOfGloo) {
  const auto plan = random_plan(GetParam().codecs, 3 + GetParam().nodes);
  const auto over_gloo = train_over({"gloo"}, GetParam().nodes, plan);
  const auto over_ps = train_over({"ps"}, GetParam().nodes, plan);
  for (std::uint32_t node = 0; node < GetParam().nodes; ++node) {
    ASSERT_EQ(over_ps[node].values.size(), kGenerations);
    ASSERT_EQ(over_gloo[node].values.size(), kGenerations);
    for (std::size_t generation = 0; generation < kGenerations; ++generation) {
      EXPECT_TRUE(same_bits(over_ps[node].values[generation], over_ps[0].values[generation])) << node << generation;
      EXPECT_TRUE(same_bits(over_ps[node].values[generation], over_gloo[0].values[generation])) << node << generation;
      EXPECT_TRUE(same_bits(over_ps[node].residuals[generation], over_gloo[node].residuals[generation]))
          << node << generation;
    }
  }
}

TEST_P(LedgerOfServers, WhatWasAppliedAndTheResidualsMakeWhatWasBrought) {
  const auto plan = random_plan(GetParam().codecs, 70 + GetParam().nodes);
  const auto outcomes = train_over({"ps"}, GetParam().nodes, plan);
  std::vector<double> brought(kElements), applied(kElements);
  std::vector<bool> spoiled(kElements, false);  // in a block that was not finite once, its gradients were no update
  for (std::size_t generation = 0; generation < kGenerations; ++generation) {
    for (std::size_t i = 0; i < kElements; ++i) {
      ASSERT_EQ(outcomes[0].values.size(), kGenerations);
      const float sum = outcomes[0].values[generation][i];
      if (!std::isfinite(sum)) spoiled[i] = true;
      for (std::uint32_t node = 0; node < GetParam().nodes; ++node)
        brought[i] += static_cast<double>(gradient(generation, node, i));
      applied[i] += static_cast<double>(sum);
    }
    for (std::size_t i = 0; i < kElements; ++i) {
      double left = 0;
      for (const Outcome& outcome : outcomes) left += static_cast<double>(outcome.residuals[generation][i]);
      ASSERT_TRUE(std::isfinite(left)) << i;
      if (!spoiled[i]) {
        ASSERT_NEAR(applied[i] + left, brought[i], 1e-4) << i << " after generation " << generation;
      }
    }
  }
  EXPECT_TRUE(spoiled[kBlock]);
  for (const Outcome& outcome : outcomes)
    EXPECT_EQ(std::ranges::count(outcome.residuals.back(), 0.0F), static_cast<std::ptrdiff_t>(kElements))
        << "the last generation brings all residuals";
}

// The link itself is asked for what it cannot know.
TEST(EncodedRequests, ThatCannotBeAreRefused) {
  on_nodes({"ps"}, 2, [](std::uint32_t, Link& link) {
    std::vector<std::byte> data(520);
    auto request = WorkRequest::all_reduce(data.data(), data.size(), model::DType::kUInt8, model::ReduceOp::kSum);
    request.block = 260;
    request.owner_stage = [](const OwnedSegment&) {};
    const auto refused = [&](const WorkRequest& wrong) {
      const auto result = link.run(wrong);
      return !result && result.error().kind == ErrorKind::kInvalid;
    };
    EXPECT_TRUE(refused(request)) << "a server needs a recipe";
    request.encoded = {.block_values = 256, .owner_keeps_rest = true, .recipe = {}};
    EXPECT_TRUE(refused(request)) << "a recipe of nothing";
    request.encoded->recipe = [](const Range&) { return std::vector<std::byte>(8); };
    request.count = 519;
    EXPECT_TRUE(refused(request)) << "no whole blocks";
    request.count = 520;
    const auto result = link.run(request);
    ASSERT_FALSE(result);
    EXPECT_THAT(result.error().message(), HasSubstr("pushed codes: what it says about its codes is too short"));
  });
}

}  // namespace
}  // namespace deft::link::testing
