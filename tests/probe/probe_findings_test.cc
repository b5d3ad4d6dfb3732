// What deft probe makes of rates: which links are half duplex or share a wire, and which are not to be blamed.
#include "tools/probe_findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deft::tools {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<ProbeNode> nodes_with(const std::string& network, std::vector<std::vector<int>> mtus) {
  std::vector<ProbeNode> nodes;
  for (std::uint32_t rank = 0; rank < mtus.size(); ++rank) {
    ProbeNode node;
    node.rank = rank;
    node.host = "host" + std::to_string(rank);
    node.mtus = mtus[rank];
    for (std::size_t link = 0; link < mtus[rank].size(); ++link) {
      node.links.push_back("gloo:eth" + std::to_string(link));
      node.addresses.push_back(network + std::to_string(link) + "." + std::to_string(rank + 1));
    }
    nodes.push_back(node);
  }
  return nodes;
}

// A row of nodes 0 and 1: an all-reduce at `both` bytes a us.
ProbeRow row_of(std::size_t link, double both, std::vector<double> one_way = {}) {
  ProbeRow row;
  row.link = link;
  row.nodes = {0, 1};
  row.samples = {{1 << 20, (1 << 20) / both}};
  row.fit.bytes_per_us = 3 * both;  // which is not judged
  row.one_way = std::move(one_way);
  return row;
}

ProbeRow at_once(ProbeRow row) {
  row.at_once = true;
  return row;
}

const std::vector<ProbeNode> kTwoNics = nodes_with("10.0.", {{1500, 1500}, {1500, 1500}});

TEST(ProbeFindings, LinksThatAreAsTheySeemGiveNone) {
  EXPECT_THAT(probe_findings(kTwoNics, {row_of(0, 100, {110, 108}), row_of(1, 50, {52, 55}), at_once(row_of(0, 98)),
                                        at_once(row_of(1, 49))}),
              IsEmpty());
  EXPECT_THAT(probe_findings({}, {}), IsEmpty());
}

TEST(ProbeFindings, ALinkThatCannotSendWhileItReceivesIsHalfDuplex) {
  const auto found = probe_findings(kTwoNics, {row_of(0, 55, {110, 108})});
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].subject, "duplex");
  EXPECT_THAT(found[0].text, HasSubstr("gloo:eth0 between nodes 0 and 1: 108.0 MB/s one way, but 55.0 MB/s if both"));
  EXPECT_THAT(found[0].fix, HasSubstr("ethtool"));
}

TEST(ProbeFindings, ALinkThatIsMuchSlowerBackIsNamedWithBothRates) {
  const auto found = probe_findings(kTwoNics, {row_of(1, 9, {110, 10})});
  ASSERT_EQ(found.size(), 1);
  EXPECT_THAT(found[0].text, HasSubstr("gloo:eth1 between nodes 0 and 1: 110.0 MB/s one way, and 10.0 MB/s back"));
}

TEST(ProbeFindings, LinksThatShareAWireHaveHalfOfItEach) {
  const auto found =
      probe_findings(kTwoNics, {row_of(0, 100), row_of(1, 100), at_once(row_of(0, 50)), at_once(row_of(1, 51))});
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].subject, "wires");
  EXPECT_THAT(found[0].text, HasSubstr("gloo:eth1 carries 100.0 MB/s alone, 51.0 MB/s with the others"));
  EXPECT_THAT(found[0].fix, HasSubstr("DEFT_LINKS=gloo:eth0"));
}

TEST(ProbeFindings, OfLinksThatShareAWireTheFastestStaysAndTheOthersDoToo) {
  const auto found = probe_findings(nodes_with("10.0.", {{1500, 1500, 1500}, {1500, 1500, 1500}}),
                                    {row_of(0, 100), row_of(1, 50), row_of(2, 60), at_once(row_of(0, 98)),
                                     at_once(row_of(1, 24)), at_once(row_of(2, 31))});
  ASSERT_EQ(found.size(), 1);
  EXPECT_THAT(found[0].fix, EndsWith("DEFT_LINKS=gloo:eth0,gloo:eth2"));
}

TEST(ProbeFindings, OneLinkThatIsSlowedSharesNoWire) {
  EXPECT_THAT(
      probe_findings(kTwoNics, {row_of(0, 100), row_of(1, 100), at_once(row_of(0, 50)), at_once(row_of(1, 99))}),
      IsEmpty());
}

TEST(ProbeFindings, OverLoopbackAndWhereACoreIsTheBoundNothingIsSaidOfWires) {
  const std::vector<ProbeRow> bad{row_of(0, 55, {110, 108}), row_of(1, 100), at_once(row_of(0, 20)),
                                  at_once(row_of(1, 50))};
  EXPECT_EQ(probe_findings(kTwoNics, bad).size(), 2);
  EXPECT_THAT(probe_findings(nodes_with("127.0.", {{65536, 65536}, {65536, 65536}}), bad), IsEmpty());
  EXPECT_THAT(probe_findings(kTwoNics, {row_of(0, 2000, {5000, 5000})}), IsEmpty());
}

TEST(ProbeFindings, ALinkThatFailedIsNotJudged) {
  ProbeRow failed = row_of(0, 0);
  failed.samples.clear();
  failed.error = "no route to host";
  EXPECT_THAT(probe_findings(kTwoNics, {failed, row_of(1, 100), at_once(row_of(1, 10))}), IsEmpty());
}

TEST(ProbeFindings, MtusThatDifferAreNamedWithTheSmallestAsTheCure) {
  const auto found = probe_findings(nodes_with("10.0.", {{9000, 1500}, {1500, 1500}, {9000, 0}}), {});
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].text,
            "gloo:eth0 on host0 (rank 0) has 9000; gloo:eth0 on host1 (rank 1) has 1500; gloo:eth0 on host2 (rank 2) "
            "has 9000");
  EXPECT_THAT(found[0].fix, HasSubstr("ip link set NIC mtu 1500 on all nodes"));
}

}  // namespace
}  // namespace deft::tools
