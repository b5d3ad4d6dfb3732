#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/link/nics.h"

namespace deft::link {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<Nic> kNode = {
    {"lo", "127.0.0.1", true, true, true},
    {"eth0", "10.0.0.1", true, true, false},
    {"eth1", "10.0.1.1", true, true, false},
    {"eth10", "10.0.10.1", true, true, false},
    {"ib0", "fd00::7", true, true, false},
    {"docker0", "172.17.0.1", true, true, false},
    {"wlan0", "", true, true, false},
    {"eno5", "10.0.5.1", false, false, false},
    {"unplugged", "10.0.9.1", true, false, false},
};

std::vector<std::string> names(std::string_view grammar, bool loopback_allowed = false,
                               std::span<const Nic> nics = kNode) {
  const auto specs = choose_links(grammar, loopback_allowed, nics);
  if (!specs) return {"error: " + specs.error().message()};
  std::vector<std::string> all;
  for (const LinkSpec& spec : *specs) all.push_back(spec.interface + " " + spec.address);
  return all;
}

std::string error(std::string_view grammar, bool loopback_allowed = false) {
  const auto specs = choose_links(grammar, loopback_allowed, kNode);
  return specs ? "" : specs.error().message();
}

TEST(Resolve, AutoTakesEveryNicThatCanReachOthers) {
  EXPECT_THAT(names("auto"), ElementsAre("eth0 10.0.0.1", "eth1 10.0.1.1", "eth10 10.0.10.1", "ib0 fd00::7"));
  EXPECT_THAT(names("auto", true), ElementsAre("eth0 10.0.0.1", "eth1 10.0.1.1", "eth10 10.0.10.1", "ib0 fd00::7"));
}

TEST(Resolve, AutoTakesLoopbackOnlyWhereThereIsNothingElseAndAllPeersAreHere) {
  const std::span<const Nic> only_lo(kNode.data(), 1);
  EXPECT_THAT(names("auto", true, only_lo), ElementsAre("lo 127.0.0.1"));
  EXPECT_THAT(names("auto", false, only_lo), ElementsAre(HasSubstr("no network interface can reach other machines")));
  EXPECT_THAT(names("auto", true, {}), ElementsAre(HasSubstr("there are: none")));
}

TEST(Resolve, AnExactNameIsMeantBeforeAPrefix) {
  EXPECT_THAT(names("gloo:eth1"), ElementsAre("eth1 10.0.1.1"));
  EXPECT_THAT(names("gloo:=eth1"), ElementsAre("eth1 10.0.1.1"));
  EXPECT_THAT(names("gloo:eth"), ElementsAre("eth0 10.0.0.1", "eth1 10.0.1.1", "eth10 10.0.10.1"));
  EXPECT_THAT(error("gloo:=eth"), HasSubstr("no network interface 'eth'"));
}

TEST(Resolve, TheOrderOfTheListIsKept) {
  EXPECT_THAT(names(" gloo:eth1, gloo:eth0 "), ElementsAre("eth1 10.0.1.1", "eth0 10.0.0.1"));
  EXPECT_THAT(names("gloo:eth1,eth0"), ElementsAre("eth1 10.0.1.1", "eth0 10.0.0.1"));
}

TEST(Resolve, ExclusionsAreByPrefixOrExactName) {
  EXPECT_THAT(names("gloo:^eth"), ElementsAre("ib0 fd00::7"));
  EXPECT_THAT(names("gloo:^=eth1,ib"), ElementsAre("eth0 10.0.0.1", "eth10 10.0.10.1"));
  EXPECT_THAT(error("gloo:^eth,ib"), HasSubstr("no network interface can reach other machines"));
}

TEST(Resolve, ABridgeIsTakenOnlyWhenNamed) { EXPECT_THAT(names("gloo:docker0"), ElementsAre("docker0 172.17.0.1")); }

TEST(Resolve, LoopbackByNameNeedsAllPeersOnThisMachine) {
  EXPECT_THAT(names("gloo:lo", true), ElementsAre("lo 127.0.0.1"));
  EXPECT_THAT(error("gloo:lo"), HasSubstr("lo is the loopback, which cannot reach other machines"));
}

TEST(Resolve, AnUnknownNicIsNamedWithTheOnesThatExistAndAGuess) {
  EXPECT_THAT(error("gloo:eht0"), HasSubstr("no network interface 'eht0'"));
  EXPECT_THAT(error("gloo:eht0"), HasSubstr("lo, eth0, eth1, eth10, ib0, docker0, wlan0 (no address), eno5 (down)"));
  EXPECT_THAT(error("gloo:ib1"), HasSubstr("did you mean ib0?"));
  EXPECT_THAT(error("gloo:mlx5_bond"), ::testing::Not(HasSubstr("did you mean")));
}

TEST(Resolve, ANicThatIsDownOrWithoutAddressIsSaid) {
  EXPECT_THAT(error("gloo:eno5"), HasSubstr("the network interface eno5 is down"));
  EXPECT_THAT(error("gloo:wlan0"), HasSubstr("the network interface wlan0 has no address"));
}

TEST(Resolve, ANicGivenTwiceIsRefused) {
  EXPECT_THAT(error("gloo:eth0,gloo:eth0"), HasSubstr("the link gloo:eth0 is given twice"));
  EXPECT_THAT(error("gloo:eth0,gloo:eth"), HasSubstr("the link gloo:eth0 is given twice"));
}

TEST(Resolve, WrongGrammarIsSaidWithAnExample) {
  EXPECT_THAT(error("eth0"), HasSubstr("the link 'eth0' has no backend"));
  EXPECT_THAT(error("glue:eth0"), HasSubstr("'glue:eth0' names no link backend that exists"));
  EXPECT_THAT(error("nccl:eth0"), HasSubstr("backend 'nccl'"));
  for (const char* grammar : {"", ",", "gloo:", "gloo:eth0,", "gloo:=", "gloo:^", "gloo:^=", "gloo:eth0,^eth1"}) {
    EXPECT_THAT(error(grammar), HasSubstr("gloo:eth0,gloo:eth1 or auto")) << grammar;
  }
}

TEST(Resolve, FindsTheLoopbackOfThisMachine) {
  const auto specs = resolve_links("gloo:lo", true);
  ASSERT_TRUE(specs) << specs.error().message();
  EXPECT_EQ(specs->front().name(), "gloo:lo");
  EXPECT_THAT(specs->front().address, ::testing::AnyOf(HasSubstr("127.0.0.1"), HasSubstr("::1")));
  EXPECT_THAT(resolve_links("gloo:nosuch", true).error().message(), HasSubstr("DEFT_LINKS=gloo:nosuch"));
}

}  // namespace
}  // namespace deft::link
