#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/link/address.h"
#include "core/link/backends.h"
#include "core/link/encryption_rule.h"
#include "core/link/nics.h"
#include "core/model/link_names.h"

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
  for (const LinkSpec& spec : *specs) {
    all.push_back(spec.backend == "gloo" ? spec.interface + " " + spec.address : spec.name());
  }
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

TEST(Resolve, AutoTakesNoNicThatIsOnEveryNodeWithTheSameAddressAndLeadsNowhere) {
  const std::vector<Nic> server = {
      {"eth0", "10.0.0.1", true, true, false},
      {"br-ex", "10.0.1.1", true, true, false},
      {"br-0a1b2c3d4e5f", "172.18.0.1", true, true, false},  // a network of docker compose
      {"br-0a1b2c3d4e5", "10.0.2.1", true, true, false},
      {"lxdbr0", "10.9.0.1", true, true, false},
      {"enxbe3af2b6059f", "169.254.3.1", true, true, false},  // the management controller
  };
  EXPECT_THAT(names("auto", false, server), ElementsAre("eth0 10.0.0.1", "br-ex 10.0.1.1", "br-0a1b2c3d4e5 10.0.2.1"));
  EXPECT_THAT(names("auto", true, std::span(server).last(2)), ElementsAre("enxbe3af2b6059f 169.254.3.1"));
  EXPECT_THAT(names("gloo:br-0,enx", false, server),
              ElementsAre("br-0a1b2c3d4e5f 172.18.0.1", "br-0a1b2c3d4e5 10.0.2.1", "enxbe3af2b6059f 169.254.3.1"));
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
  EXPECT_THAT(error("gloo:x0"), ::testing::Not(HasSubstr("did you mean"))) << "all of lo is other letters";
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
  EXPECT_THAT(error("glue:eth0"), HasSubstr("there is no link backend 'glue'; there are: gloo, ps"));
  for (const char* grammar : {"", ",", "gloo:", "gloo:eth0,", "gloo:=", "gloo:^", "gloo:^=", "gloo:eth0,^eth1",
                              "gloo:auto,eth0", "ps:10.0.0.9:29610,eth0"}) {
    EXPECT_THAT(error(grammar), HasSubstr("gloo:eth0,gloo:eth1 or auto")) << grammar;
  }
}

TEST(Resolve, AutoOfABackendIsAllUsableNics) {
  for (const char* grammar : {"gloo:auto", "gloo", " gloo : auto "})
    EXPECT_EQ(names(grammar), names("auto")) << grammar;
  EXPECT_THAT(names("gloo:auto", true, std::span(kNode.data(), 1)), ElementsAre("lo 127.0.0.1"));
}

// A build without a backend knows it all the same, so that its errors can say that it is not in this build.
TEST(Resolve, EveryBuildKnowsAllBackends) {
  std::vector<std::string_view> known;
  for (const Backend& backend : backends()) known.push_back(backend.name);
  EXPECT_THAT(known, ElementsAre("gloo", "ps", "mpi", "nccl", "tcp"));
}

TEST(Resolve, ABackendThatIsNotInThisBuildIsSaidWithThoseThatAre) {
  for (const Backend& backend : backends()) {
    const std::string message = error(std::string(backend.name) + ":eth0");
    EXPECT_TRUE(!backend.built || backend.place != Place::kNics || message.empty()) << message;
    if (!backend.built) {
      EXPECT_THAT(message, HasSubstr("the link backend '" + std::string(backend.name) + "' is not in this build"));
      EXPECT_THAT(message, HasSubstr("use another one: gloo, ps"));
    }
  }
}

TEST(Resolve, AnMpiLinkHasANicOrChoosesByItself) {
  if (!find_backend("mpi")->built) GTEST_SKIP() << find_backend("mpi")->summary;
  EXPECT_THAT(names("mpi"), ElementsAre("mpi"));
  EXPECT_THAT(names("gloo:eth0,mpi"), ElementsAre("eth0 10.0.0.1", "mpi"));
  EXPECT_THAT(names("gloo:=eth0,mpi:=eth1"), ElementsAre("eth0 10.0.0.1", "mpi:eth1"));
  EXPECT_THAT(names("mpi:=eth0,=eth1"), ElementsAre("mpi:eth0", "mpi:eth1"));
  EXPECT_THAT(names("mpi:^eth,docker"), ElementsAre("mpi:ib0"));
  EXPECT_THAT(error("mpi:eth7"), HasSubstr("no network interface 'eth7'"));
  EXPECT_THAT(error("mpi,eth0"), HasSubstr("the link 'eth0' has no backend"));
}

TEST(Resolve, TheFormerNameOfTcpIsAnErrorThatNamesTcp) {
  for (const std::string grammar : {"workertcp:eth0", "workertcp", "gloo:eth0,workertcp"})
    EXPECT_THAT(error(grammar), HasSubstr("'workertcp' is called 'tcp' now")) << grammar;
}

TEST(EncryptionRule, LinksNeedAKeyUnlessTheyExchangeTheirOwnOnOneMachine) {
  const auto cause = [](std::string_view backend, bool has_key, bool is_one_machine) {
    return clear_cause(find_backend(backend)->encryption, has_key, is_one_machine);
  };
  for (const std::string_view backend : {"gloo", "tcp", "ps"}) {
    EXPECT_EQ(cause(backend, true, false), ClearCause::kNone) << backend;
    EXPECT_EQ(cause(backend, false, false), ClearCause::kNoKey) << backend;
    EXPECT_EQ(cause(backend, false, true), backend == "ps" ? ClearCause::kNoKey : ClearCause::kNone) << backend;
  }
  for (const std::string_view backend : {"mpi", "nccl"})
    EXPECT_EQ(cause(backend, true, true), ClearCause::kBackend) << backend;
}

TEST(Resolve, LinksThatTheWorkersRunAreKnownByTheirNames) {
  EXPECT_TRUE(model::runs_in_workers("nccl"));
  EXPECT_TRUE(model::runs_in_workers("tcp:eth0"));
  EXPECT_FALSE(model::runs_in_workers("gloo:eth0"));
  EXPECT_FALSE(model::runs_in_workers("local"));
  EXPECT_THAT(names("gloo:eth0,tcp:eth1"), ElementsAre("eth0 10.0.0.1", "tcp:eth1"));
}

TEST(Resolve, NcclHasOneLinkOverAllItsNicsBecauseItReadsThemOnceAProcess) {
  if (!find_backend("nccl")->built) {
    EXPECT_THAT(error("nccl:eth0,eth1"), HasSubstr("not in this build"));
    return;
  }
  EXPECT_THAT(names("nccl:eth1,eth0"), ElementsAre("nccl:eth1+eth0"));
  EXPECT_THAT(names("nccl:eth1,gloo:eth10,nccl:eth0"), ElementsAre("nccl:eth1+eth0", "eth10 10.0.10.1"));
  const auto chosen_by_nccl = choose_links("nccl", false, kNode);
  ASSERT_TRUE(chosen_by_nccl);
  EXPECT_EQ(describe(*chosen_by_nccl), "nccl");
  EXPECT_THAT(error("nccl:eth0,nccl:eth0"), HasSubstr("the link nccl:eth0 is given twice"));
}

TEST(Resolve, ServersMakeOneLinkAndMixWithNics) {
  EXPECT_THAT(names("ps:10.0.0.9:29610"), ElementsAre("ps:10.0.0.9:29610"));
  EXPECT_THAT(names("gloo:eth0,ps:a:1+10.0.0.9:2,gloo:eth1"),
              ElementsAre("eth0 10.0.0.1", "ps:a:1+10.0.0.9:2", "eth1 10.0.1.1"));
  EXPECT_THAT(names("ps:a:1,ps:b:1"), ElementsAre("ps:a:1", "ps:b:1"));
}

TEST(Resolve, BadServersAreNamed) {
  for (const char* grammar : {"ps", "ps:", "ps:host", "ps:host:", "ps::1", "ps:host:0", "ps:host:65536", "ps:host:1x",
                              "ps:a:1+", "ps:fd00::9:1", "ps:[fd00::9]:1"}) {
    EXPECT_THAT(error(grammar), HasSubstr("is no address of a parameter server")) << grammar;
  }
  EXPECT_THAT(error("ps:a:1+b:1+a:1"), HasSubstr("the parameter server a:1 is given twice"));
  EXPECT_THAT(error("ps:a:1,ps:a:1"), HasSubstr("the link ps:a:1 is given twice"));
}

TEST(Resolve, AServerOnLoopbackNeedsAllPeersOnThisMachine) {
  for (const char* grammar : {"ps:127.0.0.1:1", "ps:a:1+localhost:2"}) {
    EXPECT_THAT(error(grammar), HasSubstr("which other machines cannot reach")) << grammar;
    EXPECT_EQ(error(grammar, true), "") << grammar;
  }
}

TEST(Resolve, ANameThatBeginsLikeLoopbackIsNone) {
  for (const char* here : {"127.0.0.1:1", "127.9.8.7:1", "localhost:1", "[::1]:1"})
    EXPECT_TRUE(is_loopback_address(here)) << here;
  for (const char* anywhere : {"127.example.org:1", "127.0.0.1.example.org:1", "127.1:1", "localhost.example.org:1",
                               "10.0.0.1:1", "0.0.0.0:1", "128.0.0.1:1", ":1", ""})
    EXPECT_FALSE(is_loopback_address(anywhere)) << anywhere;
}

TEST(Resolve, WhatMustBeTheSameOnAllNodesAreBackendsAndServers) {
  const auto specs = choose_links("gloo:eth0,ps:a:1", false, kNode);
  ASSERT_TRUE(specs);
  EXPECT_EQ((*specs)[0].common(), "gloo");
  EXPECT_EQ((*specs)[1].common(), "ps:a:1");
  EXPECT_EQ(describe(*specs), "gloo:eth0 (10.0.0.1), ps:a:1");
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
