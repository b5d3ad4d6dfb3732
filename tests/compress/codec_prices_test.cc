// What codecs cost between nodes, on links of several kinds.
#include "core/compress/codec_costs.h"

#include <gtest/gtest.h>

#include "core/compress/registry.h"

namespace deft::compress {
namespace {

model::CodecCost price(const std::string& codec, std::size_t nodes, const std::vector<std::string>& links) {
  const auto made = make_codec(codec).value();
  return price_between_nodes(*made, measure_cost(*made), nodes, links);
}

// The node that keeps what the servers' second encoding leaves out gets the encodings of the others (docs/compression.md).
TEST(CodecPrices, ParameterServersTakeMoreOfAnEncodingFromThreeNodesOn) {
  const std::vector<std::string> links = {"gloo:eth0", "ps:a:70+b:70"};
  const double share = 258.0 / 1024;
  const std::vector<std::pair<std::size_t, double>> expected = {
      {2, 0.252}, {3, 0.336}, {4, 0.378}, {8, 0.345}, {16, 0.299}};
  for (const auto& [nodes, of_servers] : expected) {
    const auto cost = price("int8", nodes, links);
    EXPECT_DOUBLE_EQ(cost.wire_share, share);
    EXPECT_DOUBLE_EQ(cost.share_on(0), share);
    EXPECT_NEAR(cost.share_on(1), of_servers, 1e-3) << nodes;
  }
}

// The sum is not encoded, but each of the two decodes both encodings. A vote is the owner's work on two nodes, too.
TEST(CodecPrices, OnTwoNodesNobodyEncodesASum) {
  const model::CodecCost alone{.wire_share = 0.25, .encode_us_per_byte = 1, .decode_us_per_byte = 1};
  const auto price_of = [&](const std::string& codec, std::size_t nodes) {
    return price_between_nodes(*make_codec(codec).value(), alone, nodes, {"gloo:eth0"});
  };
  for (const char* codec : {"int8", "bf16", "qsgd"}) {
    EXPECT_DOUBLE_EQ(price_of(codec, 2).encode_us_per_byte, 1) << codec;
    EXPECT_DOUBLE_EQ(price_of(codec, 2).decode_us_per_byte, 2) << codec;
    EXPECT_DOUBLE_EQ(price_of(codec, 4).encode_us_per_byte, 1.25) << codec;
  }
  EXPECT_DOUBLE_EQ(price_of("signsgd", 2).encode_us_per_byte, 1.5);
}

// The owner's work is done while the link works.
TEST(CodecPrices, StagesOfTransfersHoldAllButTheOwnersWork) {
  const auto stages = [](const std::string& codec, std::size_t nodes, double share = 0.01) {
    const model::CodecCost alone{.wire_share = share, .encode_us_per_byte = 1, .decode_us_per_byte = 10};
    return stages_us_per_byte(*make_codec(codec).value(), alone, nodes);
  };
  EXPECT_EQ(stages("int8", 2), 21);
  EXPECT_EQ(stages("int8", 4), 11);
  EXPECT_EQ(stages("signsgd", 2), 11);
  EXPECT_EQ(stages("topk", 5), 51);
  EXPECT_EQ(stages("topk", 5, 0.5), 11) << "a sum of float32";
  EXPECT_EQ(stages("lowrank", 4), 11);
  EXPECT_EQ(stages("lowrank/method=powersgd", 4), 0);
}

TEST(CodecPrices, OtherLinksTakeTheEncoding) {
  const auto cost = price("int8", 4, {"gloo:eth0", "mpi"});
  EXPECT_TRUE(cost.link_shares.empty());
  EXPECT_TRUE(price("signsgd", 4, {"gloo:eth0", "ps:a:70"}).link_shares.empty()) << "nobody keeps anything";
}

TEST(CodecPrices, SparseEncodingsAreGatheredUntilTheirSumIsLess) {
  const auto few = price("topk/ratio=0.01", 2, {"gloo:eth0"}), many = price("topk/ratio=0.01", 200, {"gloo:eth0"});
  EXPECT_LT(few.wire_share, 0.03);
  EXPECT_DOUBLE_EQ(many.wire_share, 1);
}

}  // namespace
}  // namespace deft::compress
