// Nodes that all-reduce encoded gradients, in one process: over all nodes, what was applied and the residuals make the sum of all
// gradients, whatever happens to codecs and cuts in between; and all nodes apply the same bits.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>

#include "tests/compress/codec_cases.h"

namespace deft::compress {
namespace {

class Cluster {
 public:
  Cluster(std::size_t nodes, std::size_t elements)
      : residuals_(nodes, Floats(elements)), given_(elements), applied_(elements), size_(elements) {}

  // One generation: `cuts` are the segments' ends, in elements; segment i belongs to node i modulo their number.
  void all_reduce(const Codec& codec, std::uint64_t generation, const std::vector<Floats>& gradients,
                  const std::vector<std::size_t>& cuts) {
    for (const Floats& gradient : gradients)
      for (std::size_t i = 0; i < gradient.size(); ++i) given_[i] += gradient[i];
    std::size_t first = 0, owner = 0;
    for (const std::size_t end : cuts) {
      const Slice slice{.job = 1, .generation = generation, .first = first};
      std::vector<Bytes> codes;
      for (std::size_t n = 0; n < gradients.size(); ++n)
        codes.push_back(encoded_with_feedback(codec, slice, std::span(gradients[n]).subspan(first, end - first),
                                              std::span(residuals_[n]).subspan(first, end - first)));
      const Floats sum = codec.traits().law == Law::kSparse ? gathered(codec, slice, codes, end - first)
                                                            : owned(codec, slice, codes, end - first, owner);
      for (std::size_t i = 0; i < sum.size(); ++i) applied_[first + i] += sum[i];
      first = end;
      owner = (owner + 1) % gradients.size();
    }
  }

  // The largest difference between what was given and what became of it.
  [[nodiscard]] double lost() const {
    double most = 0;
    for (std::size_t i = 0; i < size_; ++i) {
      double there = applied_[i];
      for (const Floats& residual : residuals_) there += residual[i];
      most = std::max(most, std::abs(there - given_[i]));
    }
    return most;
  }
  [[nodiscard]] double kept() const {
    double sum = 0;
    for (const Floats& residual : residuals_) sum += squared(residual);
    return sum;
  }

 private:
  static Floats gathered(const Codec& codec, const Slice& slice, const std::vector<Bytes>& codes, std::size_t count) {
    Floats sum(count);
    for (const Bytes& code : codes) RC_ASSERT(codec.decode_add(slice, code, sum).has_value());
    return sum;
  }

  Floats owned(const Codec& codec, const Slice& slice, std::vector<Bytes>& codes, std::size_t count,
               std::size_t owner) {
    const std::vector<std::span<const std::byte>> inputs(codes.begin(), codes.end());
    Floats left(count);
    std::size_t garbage = 0;
    RC_ASSERT(codec.combine(slice, inputs, codes[owner], left, garbage).has_value());
    for (std::size_t i = 0; i < count; ++i) residuals_[owner][slice.first + i] += left[i];
    return decoded(codec, slice, codes[owner], count);
  }

  std::vector<Floats> residuals_;
  std::vector<double> given_, applied_;
  std::size_t size_;
};

std::vector<CodecCase> codecs_with_feedback() {
  auto cases = codec_cases();
  std::erase_if(cases, [](const CodecCase& one) { return !codec_of(one.text)->traits().uses_feedback; });
  return cases;
}

TEST(Ledger, HoldsThroughSwitchesOfCodecsAndCuts) {
  std::vector<CodecPointer> codecs;
  for (const CodecCase& one : codecs_with_feedback()) codecs.push_back(codec_of(one.text));
  EXPECT_TRUE(rc::check("ledger", [&] {
    const auto nodes = *rc::gen::inRange<std::size_t>(1, 6);
    const auto elements = *rc::gen::inRange<std::size_t>(1, 1500);
    std::mt19937 random(*rc::gen::arbitrary<std::uint32_t>());
    Cluster cluster(nodes, elements);
    for (std::uint64_t generation = 0; generation < 8; ++generation) {
      std::vector<Floats> gradients;
      for (std::size_t n = 0; n < nodes; ++n) gradients.push_back(normal_values(elements, random()));
      std::vector<std::size_t> cuts;
      for (std::size_t end = 256 * (1 + random() % 3); end < elements; end += 256 * (1 + random() % 3))
        cuts.push_back(end);
      cuts.push_back(elements);
      cluster.all_reduce(*codecs[random() % codecs.size()], generation, gradients, cuts);
    }
    RC_ASSERT(cluster.lost() < 1e-6);  // gradients are about 0.01 each
  }));
}

class LedgerTest : public ::testing::TestWithParam<CodecCase> {};
INSTANTIATE_TEST_SUITE_P(All, LedgerTest, ::testing::ValuesIn(codecs_with_feedback()),
                         [](const auto& test) { return test_name(test.param.text); });

TEST_P(LedgerTest, TheResidualsOfFourNodesStayBounded) {
  constexpr std::size_t kElements = 600;
  const CodecPointer codec = codec_of(GetParam().text);
  Cluster cluster(4, kElements);
  std::vector<std::vector<Floats>> pool(50, std::vector<Floats>(4));
  double gradient = 0, after_half = 0;
  for (std::size_t i = 0; i < pool.size(); ++i)
    for (std::size_t n = 0; n < 4; ++n) {
      pool[i][n] = normal_values(kElements, i * 4 + n);
      gradient += squared(pool[i][n]) / static_cast<double>(pool.size());
    }
  constexpr std::uint64_t kGenerations = 3000;
  for (std::uint64_t generation = 0; generation < kGenerations; ++generation) {
    cluster.all_reduce(*codec, generation, pool[generation % pool.size()], {256, kElements});
    if (generation == kGenerations / 2) after_half = cluster.kept();
  }
  EXPECT_LT(cluster.lost(), 1e-4);
  EXPECT_LT(cluster.kept(), 2 * after_half + 1e-12) << "it still grows";
  EXPECT_LT(cluster.kept(), 200 * gradient);
}

}  // namespace
}  // namespace deft::compress
