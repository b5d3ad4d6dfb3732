// The leader's decisions about links that fail or stall, driven by messages alone.
#include <gtest/gtest.h>

#include "daemon/leader/leader.h"

namespace deft::daemon {
namespace {

constexpr TimeUs kTimeoutUs = 1'200'000;
const std::vector<Peer> kNodes{"", "b"};

JobSettings settings() {
  return job_settings(Config(), "bucket_bytes=1MB\npartition_bytes=64KB\nstall_timeout=600s\ntimeout=" +
                                    std::to_string(kTimeoutUs) + "us\n")
      .value();
}

// Two nodes with two or three links, and a group of one bucket of 1 MiB.
struct World : LeaderHost {
  explicit World(std::vector<std::string> names)
      : links(std::move(names)), leader(clock, *this, {"job", 7, 2}, settings()) {
    for (const Peer& from : kNodes) {
      wire::Join join{.host = {}, .deft_version = {}, .world = 2, .ranks = {from.empty() ? 0U : 1U}};
      for (const auto& name : links) join.links.push_back({name, ""});
      leader.receive(from, std::move(join));
    }
    for (const Peer& from : kNodes) leader.receive(from, wire::LinksOpen{});
    for (const Peer& from : kNodes)
      leader.receive(from, wire::Declare{0, "", {{"w", model::DType::kFloat32, {1 << 18}}}, 1});
    sent.clear();
  }

  void fails(const Peer& from, std::uint32_t link, std::uint32_t epoch = 0) {
    leader.receive(from, wire::LinkFailed{link, epoch, {ErrorKind::kLost, "the cable was cut", "", {}}});
  }
  void stopped(const Peer& from, std::uint32_t link, std::uint64_t below, std::uint32_t epoch = 0) {
    leader.receive(from, wire::LinkStopped{link, epoch, below});
  }
  // The same on every link.
  void progress(const Peer& from, std::uint64_t finished, std::uint64_t started) {
    wire::NodeProgress progress;
    for (std::size_t i = 0; i < links.size(); ++i)
      progress.links.push_back({leader_epoch[i], i == 1 ? finished : started, started});
    leader.receive(from, std::move(progress));
  }
  void send(std::span<const Peer> nodes, const wire::ToNode& message) override {
    for (const Peer& to : nodes) sent.emplace_back(to, message);
  }
  // Tells how far the nodes are, again and again.
  void live_for(TimeUs us, std::uint64_t finished, std::uint64_t started) {
    live_for(us, finished, {started, started});
  }
  void live_for(TimeUs us, std::uint64_t finished, std::array<std::uint64_t, 2> started) {
    for (const TimeUs until = clock.now_us() + us; clock.now_us() < until; clock.advance(20'000)) {
      for (std::size_t node = 0; node < 2; ++node) progress(kNodes[node], finished, started[node]);
      leader.tick();
    }
  }

  // Only these nodes live, and nothing is under way.
  void live_for(TimeUs us, const std::vector<Peer>& nodes) {
    for (const TimeUs until = clock.now_us() + us; clock.now_us() < until; clock.advance(20'000)) {
      for (const Peer& from : nodes) leader.receive(from, wire::Heartbeat{.reply = true});
      leader.tick();
    }
  }

  template <typename Message>
  std::vector<Message> all() const {
    std::vector<Message> found;
    for (const auto& [peer, message] : sent)
      if (const auto* const one = std::get_if<Message>(&message)) found.push_back(*one);
    return found;
  }
  [[nodiscard]] auto stops() const { return all<wire::LinkStop>(); }
  [[nodiscard]] auto replaced() const { return all<wire::LinkReplaced>(); }
  [[nodiscard]] std::string failure() const {
    const auto found = all<wire::Failure>();
    return found.empty() ? "" : found.front().error.what;
  }
  [[nodiscard]] std::set<std::uint32_t> launched_on() const {
    std::set<std::uint32_t> used;
    for (const auto& order : all<wire::LaunchOrder>())
      for (const auto& launch : order.launches) used.insert(launch.link);
    return used;
  }

  std::vector<std::string> links;
  std::vector<std::uint32_t> leader_epoch = std::vector<std::uint32_t>(3);
  ManualClock clock;
  std::vector<std::pair<Peer, wire::ToNode>> sent;
  Leader leader;
};

TEST(LeaderLinks, AFailedLinkIsStoppedEverywhereAndRunAgainFromWhereTheSlowestNodeIs) {
  World world({"gloo:eth0", "gloo:eth1"});
  world.fails("b", 1);
  world.fails("", 1);  // at the same time
  ASSERT_EQ(world.stops().size(), 2u);
  EXPECT_EQ(world.stops()[0].cause.what, "the cable was cut");
  world.stopped("b", 1, 17);
  EXPECT_TRUE(world.replaced().empty()) << "one node may still touch its gradients";
  world.stopped("", 1, 12);
  ASSERT_EQ(world.replaced().size(), 2u);
  const wire::LinkReplaced replaced = world.replaced()[0];
  EXPECT_EQ(replaced.from, 12u);
  EXPECT_EQ(replaced.by, 0u);
  EXPECT_EQ(replaced.epoch, 1u);
  EXPECT_EQ(world.leader.status()["links"][1]["lost"], "the cable was cut");
  world.fails("b", 1);  // of the epoch before: late news
  EXPECT_EQ(world.stops().size(), 2u);
  EXPECT_EQ(world.failure(), "");
}

TEST(LeaderLinks, ANodeThatEndsSoonAfterALinkWasLostIsNoFailure) {
  World world({"gloo:eth0", "gloo:eth1"});
  world.fails("b", 1);
  for (const Peer& from : kNodes) world.stopped(from, 1, 0);
  world.leader_epoch[1] = 1;
  world.leader.receive("b", wire::Leave{{1}});  // the training is over there; rank 0 writes its checkpoint
  world.live_for(kTimeoutUs, 0, 0);
  EXPECT_EQ(world.failure(), "");
}

TEST(LeaderLinks, ANodeWhoseWorkersHaveLeftTakesPartInTheReplacement) {
  World world({"gloo:eth0", "gloo:eth1"});
  world.leader.receive("b", wire::Leave{{1}});  // its daemon keeps its links until all have left
  world.fails("", 1);
  EXPECT_EQ(world.stops().size(), 2u);
  for (const Peer& from : kNodes) world.stopped(from, 1, 0);
  world.leader_epoch[1] = 1;
  EXPECT_EQ(world.replaced().size(), 2u);
  world.live_for(kTimeoutUs, 5, 5);
  EXPECT_EQ(world.failure(), "");
}

TEST(LeaderLinks, ANodeWhoseDaemonHasEndedWithItsWorkersIsTheCause) {
  for (const std::vector<std::string>& links : {std::vector<std::string>{"gloo:eth0"}, {"gloo:eth0", "gloo:eth1"}}) {
    World world(links);
    world.leader.receive("b", wire::Leave{{1}});
    world.clock.advance(1000);
    world.fails("", 0);
    world.live_for(kTimeoutUs / 2, {""});
    EXPECT_NE(world.failure().find("(rank 1) has ended, while others still need it"), std::string::npos)
        << world.failure();
  }
}

TEST(LeaderLinks, ANodeWhoseWorkersHaveLeftIsNotBlamedForALinkWhileItsDaemonAnswers) {
  World world({"gloo:eth0"});
  world.leader.receive("b", wire::Leave{{1}});
  world.fails("", 0);
  world.live_for(kTimeoutUs / 2, kNodes);
  EXPECT_EQ(world.failure(), "the cable was cut");
}

TEST(LeaderLinks, WorkersThatHaveLeftAreTheCauseIfALinkOfTheWorkersBreaks) {
  World world({"nccl"});
  world.leader.receive("b", wire::Leave{{1}});
  world.leader.receive("", wire::Failure{{ErrorKind::kLost, "the ring is broken", "", {}}, true});
  world.live_for(kTimeoutUs / 2, kNodes);
  EXPECT_NE(world.failure().find("(rank 1) has ended, while others still need it"), std::string::npos)
      << world.failure();
}

TEST(LeaderLinks, NothingMoreIsLaunchedOnALostLink) {
  World world({"gloo:eth0", "gloo:eth1"});
  world.leader.scheduler()->bucket_ready(0, 0, 0);
  EXPECT_EQ(world.launched_on(), (std::set<std::uint32_t>{0, 1}));
  for (std::uint64_t number = 0; number < 16; ++number) world.leader.scheduler()->launch_finished(number, 100, false);
  world.fails("b", 1);
  world.sent.clear();
  world.leader.scheduler()->bucket_ready(0, 0, 1);
  EXPECT_EQ(world.launched_on(), (std::set<std::uint32_t>{0}));
}

TEST(LeaderLinks, TheLastLinkEndsTheJobAndSoDoesTheOneThatStoodIn) {
  for (const std::uint32_t second : {0U, 1U}) {
    World world({"gloo:eth0", "gloo:eth1"});
    world.fails("b", 1);
    for (const Peer& from : kNodes) world.stopped(from, 1, 0);
    world.leader_epoch[1] = 1;
    world.sent.clear();
    world.fails("b", second, second == 1 ? 1 : 0);
    EXPECT_TRUE(world.stops().empty());
    world.live_for(kTimeoutUs / 2, 5, 5);
    EXPECT_EQ(world.failure(), "the cable was cut");
  }
}

TEST(LeaderLinks, AThirdLinkStandsInForBoth) {
  World world({"gloo:eth0", "gloo:eth1", "gloo:eth2"});
  for (const std::uint32_t link : {0U, 1U}) world.fails("b", link);
  for (const std::uint32_t link : {0U, 1U})
    for (const Peer& from : kNodes) world.stopped(from, link, 0);
  ASSERT_EQ(world.replaced().size(), 4u);
  EXPECT_EQ(world.replaced()[3].by, 2u);
  EXPECT_EQ(world.failure(), "");
}

TEST(LeaderLinks, ALinkThatWorkersRunDoesNotStandIn) {
  World world({"gloo:eth0", "nccl"});
  world.fails("b", 0);
  EXPECT_TRUE(world.stops().empty());
  world.live_for(kTimeoutUs / 2, 5, 5);
  EXPECT_EQ(world.failure(), "the cable was cut");
}

TEST(LeaderLinks, ALinkStallsWhenAllNodesHaveStartedWhatDoesNotEnd) {
  World world({"gloo:eth0", "gloo:eth1"});
  world.live_for(kTimeoutUs / 2, 5, 5);  // nothing is under way
  EXPECT_TRUE(world.stops().empty());
  world.live_for(kTimeoutUs / 2, 5, 7);
  ASSERT_FALSE(world.stops().empty());
  EXPECT_EQ(world.stops()[0].link, 1u);
  EXPECT_NE(world.stops()[0].cause.what.find("nothing has come through link gloo:eth1 for"), std::string::npos);
}

TEST(LeaderLinks, ANodeThatIsNotThereYetIsNoStall) {
  World world({"gloo:eth0", "gloo:eth1"});
  world.live_for(kTimeoutUs, 5, {9, 5});  // a worker of the other node is still computing
  EXPECT_TRUE(world.stops().empty());
}

TEST(LeaderLinks, ALinkThatMovesIsNoStall) {
  World world({"gloo:eth0", "gloo:eth1"});
  for (std::uint64_t number = 0; number < 12; ++number) world.live_for(kTimeoutUs / 12, number, 20);
  EXPECT_TRUE(world.stops().empty());
}

TEST(LeaderLinks, ANodeThatDoesNotStopTheLinkIsTheEnd) {
  World world({"gloo:eth0", "gloo:eth1"});
  world.fails("b", 1);
  world.stopped("", 1, 0);
  world.live_for(kTimeoutUs * 3 / 4, 5, 5);
  EXPECT_EQ(world.failure(), "the cable was cut");
}

TEST(LeaderLinks, WhatAllHaveFinishedIsTold) {
  World world({"gloo:eth0", "gloo:eth1"});
  world.progress("", 9, 12);
  EXPECT_TRUE(world.sent.empty());
  world.progress("b", 4, 12);
  ASSERT_EQ(world.sent.size(), 2u);
  EXPECT_EQ(std::get<wire::JobProgress>(world.sent[0].second).links[1].finished_below, 4u);
}

}  // namespace
}  // namespace deft::daemon
