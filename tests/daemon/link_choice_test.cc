// The links of a node, and their real drivers: who pays for the descriptors that these take of the daemon.
#include "daemon/node/link_choice.h"

#include <gtest/gtest.h>

#include "tests/daemon/fake_node.h"

namespace deft::daemon {
namespace {

constexpr std::uint32_t kNodes = 64;

struct EmptyStore final : link::Store {  // so no link opens
  Result<void> set(const std::string&, std::span<const std::byte>) override { return gone(); }
  Result<std::vector<std::vector<std::byte>>> get(std::span<const std::string>, TimeUs) override { return gone(); }
  [[nodiscard]] bool ended() const override { return true; }
  static tl::unexpected<Error> gone() { return fail(ErrorKind::kLost, "the job has ended"); }
};

struct LinkDrivers : testing::Test, FakeNode {
  static std::shared_ptr<UserQuotas> quotas(std::uint64_t descriptors) {
    QuotaAmounts amounts = quota_limits(Config());
    amounts[static_cast<std::size_t>(Quota::kDescriptors)] = descriptors;
    return std::make_shared<UserQuotas>(amounts);
  }
  std::unique_ptr<LinkDriver> make(const std::shared_ptr<UserQuotas>& quotas, link::LinkSpec spec) {
    wire::Joined joined;
    for (std::uint32_t rank = 0; rank < kNodes; ++rank) joined.nodes.push_back({"host", {rank}, {}});
    const auto many = View::make(7, kNodes, std::move(joined), {spec}).value();
    DriverRequest request;
    request.spec = std::move(spec);
    request.on_open = [this](Result<void> result) { opened = std::move(result); };
    return driver_factory("", quotas)({reactor, members, many, std::make_shared<EmptyStore>()})(std::move(request));
  }
  void wait_until_opened() {
    const TimeUs give_up_us = MonotonicClock::now() + 60'000'000;
    while (!opened && MonotonicClock::now() < give_up_us) reactor.run_once();
    ASSERT_TRUE(opened);
  }
  static std::uint64_t taken(const UserQuotas& quotas) {
    const auto users = quotas.status();
    return users.empty() ? 0 : users[0]["descriptors"].get<std::uint64_t>();
  }

  Reactor reactor;
  std::optional<Result<void>> opened;
};

TEST_F(LinkDrivers, AUserPaysForTheDescriptorsOfALinkWhileItsDriverLives) {
  const auto limits = quotas(1000);
  auto driver = make(limits, {"gloo", "eth0", "10.0.0.1"});
  EXPECT_GE(taken(*limits), 2u * (kNodes - 1)) << "two sockets to each other node";
  const std::uint64_t of_nodes = taken(*limits);
  wait_until_opened();
  driver.reset();
  EXPECT_EQ(taken(*limits), 0u);
  driver = make(limits, {"ps", "10.0.0.7:1+10.0.0.8:1", ""});
  EXPECT_GT(taken(*limits), 0u);
  EXPECT_LT(taken(*limits), of_nodes) << "two servers";
}

TEST_F(LinkDrivers, ALinkForWhichItsUserCannotPayDoesNotOpen) {
  const auto limits = quotas(100);
  const auto driver = make(limits, {"gloo", "eth0", "10.0.0.1"});
  wait_until_opened();
  ASSERT_FALSE(*opened);
  EXPECT_EQ(opened->error().kind, ErrorKind::kExhausted);
  EXPECT_NE(opened->error().what.find("user 7 has 0 descriptors of the daemon and may have 100"), std::string::npos)
      << opened->error().what;
  EXPECT_NE(opened->error().fix.find("descriptors in the option user_limits"), std::string::npos);
  EXPECT_EQ(taken(*limits), 0u);
}

struct OneNode : testing::TestWithParam<std::uint32_t> {  // of so many workers
  static LinkChoice choose(const std::string& links) {
    JobSettings settings = fake_settings();
    settings.links = links;
    return choose_links(Membership({"job", 7, GetParam(), GetParam(), "", ""}, settings), "hosta", false);
  }
};

TEST_P(OneNode, NeedsNoneOfTheNicsThatOtherMachinesHave) {
  for (const char* links : {"auto", "gloo:nosuch", "gloo:^lo", "ps:10.0.0.9:29610"}) {
    const LinkChoice choice = choose(links);
    EXPECT_FALSE(choice.refusal) << choice.refusal->message();
    ASSERT_EQ(choice.specs.size(), 1u) << links;
    EXPECT_EQ(choice.specs[0].backend, "local") << links;
  }
}

TEST_P(OneNode, IsToldOfAListThatNoMachineCouldUse) {
  for (const auto& [links, says] : {std::pair("gluu:eth0", "there is no link backend 'gluu'"),
                                    {"", "has no backend"},
                                    {"ps:host", "is no address"}}) {
    const LinkChoice choice = choose(links);
    ASSERT_TRUE(choice.refusal) << links;
    EXPECT_NE(choice.refusal->message().find(says), std::string::npos) << choice.refusal->message();
    EXPECT_NE(choice.refusal->where.find("on hosta"), std::string::npos) << choice.refusal->where;
  }
}

INSTANTIATE_TEST_SUITE_P(Workers, OneNode, testing::Values(1u, 2u));

}  // namespace
}  // namespace deft::daemon
