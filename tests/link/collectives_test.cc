#include <algorithm>
#include <numeric>

#include "tests/link/backends.h"

namespace deft::link::testing {
namespace {

class Collectives : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Links, Collectives, ::testing::ValuesIn(backends_with_encryption()), name_of);

Bytes pattern(std::size_t bytes, std::uint32_t seed) {
  Bytes data(bytes);
  constexpr std::size_t kPeriod = 256;
  for (std::size_t i = 0; i < std::min(bytes, kPeriod); ++i) data[i] = static_cast<std::byte>(i * 31 + seed * 7 + 1);
  repeat(data.data(), bytes, kPeriod);
  return data;
}

TEST_P(Collectives, BroadcastGivesTheRootsBytesToAll) {
  for (const std::uint32_t nodes : {2U, 3U, 4U}) {
    on_nodes(GetParam(), nodes, [&](std::uint32_t node, Link& link) {
      for (const std::size_t bytes : {std::size_t{1}, std::size_t{1009}, std::size_t{3'000'017}}) {
        for (std::uint32_t root = 0; root < nodes; ++root) {
          Bytes data = pattern(bytes, node);
          ASSERT_OK(broadcast(link, data.data(), bytes, root));
          ASSERT_TRUE(same(data, pattern(bytes, root))) << bytes << " bytes from node " << root;
        }
      }
    });
  }
}

TEST_P(Collectives, AllGatherCollectsBlocksOfDifferentSizesAndNone) {
  for (const std::uint32_t nodes : {2U, 3U, 4U}) {
    on_nodes(GetParam(), nodes, [&](std::uint32_t node, Link& link) {
      for (const std::size_t unit : {std::size_t{0}, std::size_t{1}, std::size_t{501}, std::size_t{200'003}}) {
        std::vector<std::size_t> sizes;
        for (std::uint32_t n = 0; n < nodes; ++n) sizes.push_back(unit * n);  // node 0 has nothing
        Bytes data(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}));
        Bytes whole;
        for (std::uint32_t n = 0; n < nodes; ++n) {
          const Bytes block = pattern(sizes[n], n);
          if (n == node) std::copy(block.begin(), block.end(), data.begin() + static_cast<long>(whole.size()));
          whole.insert(whole.end(), block.begin(), block.end());
        }
        ASSERT_OK(all_gather(link, data.data(), sizes));
        ASSERT_TRUE(same(data, whole)) << "unit " << unit;
      }
    });
  }
}

TEST_P(Collectives, AllKindsMixInOneOrder) {
  on_nodes(GetParam(), 3, [&](std::uint32_t node, Link& link) {
    for (std::uint32_t i = 0; i < 60; ++i) {
      std::vector<std::int32_t> data(3 * (std::size_t{1} << (i % 14)), static_cast<std::int32_t>(node + 1));
      auto* bytes = reinterpret_cast<std::byte*>(data.data());
      ASSERT_OK(all_reduce(link, bytes, data.size(), model::DType::kInt32, model::ReduceOp::kSum));
      ASSERT_EQ(data.back(), 6);
      if (node == i % 3) data.back() = static_cast<std::int32_t>(1000 + i);
      ASSERT_OK(broadcast(link, bytes, data.size() * 4, i % 3));
      ASSERT_EQ(data.back(), static_cast<std::int32_t>(1000 + i));
      const std::vector<std::size_t> blocks(3, data.size() / 3 * 4);
      data[node * data.size() / 3] = static_cast<std::int32_t>(node);
      ASSERT_OK(all_gather(link, bytes, blocks));
      for (std::size_t n = 0; n < 3; ++n) ASSERT_EQ(data[n * data.size() / 3], static_cast<std::int32_t>(n));
    }
  });
}

TEST_P(Collectives, RefuseARootOrBlocksThatDoNotFit) {
  on_nodes(GetParam(), 2, [&](std::uint32_t, Link& link) {
    std::byte data[4] = {};
    EXPECT_EQ(broadcast(link, data, 4, 2).error().kind, ErrorKind::kInvalid);
    const std::vector<std::size_t> three = {1, 1, 1};
    EXPECT_EQ(all_gather(link, data, three).error().kind, ErrorKind::kInvalid);
  });
}

}  // namespace
}  // namespace deft::link::testing
