// A view of a job: every rank on one node, or it is refused.
#include "daemon/node/view.h"

#include <gtest/gtest.h>

namespace deft::daemon {
namespace {

wire::Joined joined(std::vector<std::vector<std::uint32_t>> ranks, std::uint32_t node) {
  wire::Joined message;
  message.node = node;
  for (auto& of_node : ranks)
    message.nodes.push_back({"host" + std::to_string(message.nodes.size()), std::move(of_node), {}});
  return message;
}

TEST(View, KnowsTheNodeOfEachRankAndTheOrderOfRanks) {
  const auto view = View::make(9, 5, joined({{0, 3}, {1, 2, 4}}, 1), {{"gloo", "eth0", "10.0.0.1"}});
  ASSERT_TRUE(view);
  EXPECT_EQ((*view)->epoch(), 9u);
  EXPECT_EQ((*view)->world(), 5u);
  EXPECT_EQ((*view)->node_count(), 2u);
  EXPECT_EQ((*view)->node_of_rank(), (std::vector<std::uint32_t>{0, 1, 1, 0, 1}));
  EXPECT_EQ((*view)->first_position(), 2u) << "ranks 0 and 3 come before those of node 1";
  EXPECT_TRUE((*view)->is_local(4));
  EXPECT_FALSE((*view)->is_local(3));
  EXPECT_FALSE((*view)->is_local(5)) << "there is no such rank";
  EXPECT_EQ((*view)->links().front().interface, "eth0");
}

TEST(View, RefusesAnIndexThatIsNoNode) {
  const auto view = View::make(1, 2, joined({{0}, {1}}, 2), {});
  ASSERT_FALSE(view);
  EXPECT_EQ(view.error().kind, ErrorKind::kViolation);
  EXPECT_FALSE(View::make(1, 0, joined({}, 0), {}));
}

TEST(View, RefusesRanksThatAreMissingTwiceThereOrTooLarge) {
  EXPECT_FALSE(View::make(1, 3, joined({{0}, {1}}, 0), {}));
  EXPECT_FALSE(View::make(1, 2, joined({{0, 1}, {1}}, 0), {}));
  EXPECT_FALSE(View::make(1, 2, joined({{0, 1}, {2}}, 0), {}));
  EXPECT_TRUE(View::make(1, 3, joined({{0, 1}, {2}}, 0), {}));
}

}  // namespace
}  // namespace deft::daemon
