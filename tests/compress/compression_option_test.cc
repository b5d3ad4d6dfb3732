#include "core/compress/compression_option.h"

#include <gtest/gtest.h>

namespace deft::compress {
namespace {

std::string of(const std::vector<std::string>& flags) {
  const auto config = Config::load(flags, {}, Audience::kAll);
  EXPECT_TRUE(config);
  return compression_of(*config);
}

TEST(CompressionOption, APolicyThatMakesPlansEncodesUnasked) {
  EXPECT_EQ(of({"--policy=knapsack"}), "auto/max=int8");
  EXPECT_EQ(of({"--policy=knapsack", "--plan=1"}), "none");
  EXPECT_EQ(of({"--policy=fifo"}), "none");
  EXPECT_EQ(of({"--policy=knapsack", "--compression=none"}), "none");
  EXPECT_EQ(of({"--policy=fifo", "--compression=bf16"}), "bf16");
}

TEST(CompressionOption, PlansChooseAmongTheDenseCodecsDownToTheLeast) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(ladder_of("auto"), (Names{"bf16", "int8"}));
  EXPECT_EQ(ladder_of("auto/max=int4"), (Names{"bf16", "int8", "int4"}));
  EXPECT_EQ(ladder_of("auto/max=topk/ratio=0.1"), (Names{"topk/ratio=0.1"}));
  EXPECT_EQ(ladder_of("auto/max=none"), Names{});
  EXPECT_FALSE(ladder_of("int8"));
  EXPECT_FALSE(ladder_of("none"));
}

}  // namespace
}  // namespace deft::compress
