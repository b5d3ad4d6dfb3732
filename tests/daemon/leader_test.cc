// The leader's decisions, driven by messages alone: who is missing, who disagrees, who is lost.
#include "daemon/leader/leader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace deft::daemon {
namespace {

JobSettings settings(TimeUs timeout_us = 60'000'000, const std::string& more = "") {
  auto s = job_settings(Config(), "bucket_bytes=1MB\nstall_timeout=600s\n" + more).value();
  s.timeout_us = timeout_us;  // also shorter than users may choose
  return s;
}

struct World : LeaderHost {
  explicit World(std::uint32_t size, JobSettings s = settings())
      : leader(clock, *this, {"job", 7, size}, std::move(s)) {}

  void send(std::span<const Peer> nodes, const wire::ToNode& message) override {
    for (const Peer& to : nodes) sent.emplace_back(to, message);
  }

  void join(const Peer& from, std::vector<std::uint32_t> ranks, std::uint32_t world,
            std::map<std::string, std::string> with = {}, const std::string& version = "1") {
    wire::Join join{.host = "host" + from, .deft_version = version, .world = world, .ranks = std::move(ranks)};
    join.links = {{"gloo:eth0", ""}};
    join.settings = std::move(with);
    leader.receive(from, std::move(join));
  }

  std::string failure_for(const Peer& to) const {
    for (const auto& [peer, message] : sent)
      if (const auto* const failure = std::get_if<wire::Failure>(&message); failure != nullptr && peer == to)
        return failure->error.what;
    return "";
  }

  template <typename Message>
  std::vector<Message> all() const {
    std::vector<Message> found;
    for (const auto& [peer, message] : sent)
      if (const auto* const one = std::get_if<Message>(&message)) found.push_back(*one);
    return found;
  }

  void run_for(TimeUs us) {
    for (const TimeUs until = clock.now_us() + us; clock.now_us() < until;) {
      const auto delay_us = leader.tick();
      clock.advance(std::min(delay_us.value_or(us), until - clock.now_us()));
    }
    leader.tick();
  }

  ManualClock clock;
  std::vector<std::pair<Peer, wire::ToNode>> sent;
  Leader leader;
};

TEST(Leader, NumbersTheNodesByTheirSmallestRankWhenAllHaveCome) {
  World world(4);
  world.join("b", {2, 3}, 4);
  EXPECT_TRUE(world.sent.empty());
  world.join("", {0, 1}, 4);
  ASSERT_EQ(world.sent.size(), 2u);
  for (const auto& [peer, message] : world.sent) {
    const auto* const joined = std::get_if<wire::Joined>(&message);
    ASSERT_NE(joined, nullptr);
    EXPECT_EQ(joined->node, peer.empty() ? 0u : 1u);
    EXPECT_EQ(joined->nodes[1].host, "hostb");
  }
}

wire::Join join_of(std::uint32_t user, const std::string& token) {
  wire::Join join{.host = "far", .deft_version = "1", .token = token, .world = 2, .user = user, .ranks = {1}};
  join.links = {{"gloo:eth0", ""}};
  return join;
}

TEST(Leader, TurnsAwayTheWorkersOfAnotherUserAndWaitsForItsOwn) {
  World world(2);
  world.join("", {0}, 2);
  world.leader.receive("stranger", join_of(1001, ""));
  EXPECT_NE(world.failure_for("stranger").find("belongs to the user with the id 0, and the workers on far to 1001"),
            std::string::npos)
      << world.failure_for("stranger");
  EXPECT_EQ(world.failure_for(""), "") << "anybody may say this: the job goes on";
  EXPECT_TRUE(world.leader.gathering());
  world.leader.receive("friend", join_of(0, ""));
  EXPECT_FALSE(world.leader.gathering());
}

TEST(Leader, LogsFewOfTheNodesThatItTurnsAway) {
  World world(2);
  world.join("", {0}, 2);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 1000; ++i) world.leader.receive("stranger", join_of(1001, ""));
  world.clock.advance(1'000'000);
  world.leader.receive("stranger", join_of(1001, ""));
  const std::string log = testing::internal::GetCapturedStderr();
  std::size_t lines = 0;
  for (std::size_t at = 0; (at = log.find("is turned away", at)) != std::string::npos; ++at) ++lines;
  EXPECT_EQ(lines, RateLimit::kASecond + 1);
  EXPECT_NE(log.find("(990 lines like this were left out)"), std::string::npos);
  world.run_for(60'000'000);
  EXPECT_NE(world.failure_for("").find("a daemon was refused meanwhile: the job 'job' at this leader is another one"),
            std::string::npos)
      << world.failure_for("");
}

TEST(JobOwner, ATokenDecidesAndWithoutOneTheUserDoes) {
  const wire::JobOwner by_user{7, ""}, by_token{7, "secret"};
  EXPECT_TRUE(by_user.admits({7, ""}));
  EXPECT_FALSE(by_user.admits({8, ""}));
  EXPECT_FALSE(by_user.admits({7, "secret"}));
  EXPECT_TRUE(by_token.admits({8, "secret"})) << "ids of users may differ between nodes";
  for (const char* wrong : {"", "secre", "secrets", "Secret"}) EXPECT_FALSE(by_token.admits({7, wrong})) << wrong;
}

TEST(Leader, TurnsAwayWorkersWithoutTheJobsToken) {
  World world(2);
  Leader leader(world.clock, world, {"job", 8, 2, {0, "secret"}}, settings());
  leader.receive("stranger", join_of(0, "guess"));
  EXPECT_NE(world.failure_for("stranger").find("its token is not that of the workers on far"), std::string::npos);
  EXPECT_EQ(world.failure_for("stranger").find("secret"), std::string::npos);
  leader.receive("friend", join_of(5, "secret"));
  EXPECT_EQ(world.failure_for("friend"), "");
}

TEST(Leader, ListsTheMissingRanksAtTheDeadline) {
  World world(4, settings(30'000));
  world.join("", {0}, 4);
  world.join("b", {3}, 4);
  world.run_for(60'000);
  EXPECT_NE(world.failure_for("b").find("rank 1-2 of 4 is missing"), std::string::npos) << world.failure_for("b");
  EXPECT_NE(world.failure_for("").find("hostb (rank 3)"), std::string::npos);
}

TEST(Leader, TellsANodeThatHasReachedItsDeadlineWhoIsMissing) {
  World world(4);
  world.join("", {0}, 4);
  world.join("b", {3}, 4);
  world.leader.receive("b", wire::Failure{{ErrorKind::kTimeout, "the leader did not answer", "", {}}, false});
  for (const Peer& node : {Peer(""), Peer("b")})
    EXPECT_NE(world.failure_for(node).find("rank 1-2 of 4 is missing"), std::string::npos) << world.failure_for(node);
}

TEST(Leader, ANodeWhoseDeadlineCrossedTheLastNodesJoinEndsNothing) {
  World world(2);
  world.join("b", {1}, 2);
  world.join("", {0}, 2);
  ASSERT_FALSE(world.leader.gathering());
  world.leader.receive("b", wire::Failure{{ErrorKind::kTimeout, "the leader did not answer", "", {}}, false});
  EXPECT_EQ(world.failure_for("b"), "");
  world.leader.receive("b", wire::Failure{{ErrorKind::kLost, "rank 1 died", "", {}}, false});
  EXPECT_EQ(world.failure_for(""), "rank 1 died");
}

TEST(Leader, LinksHaveATimeoutToOpenHoweverLateTheLastNodeCame) {
  World world(2, settings(30'000));
  world.join("", {0}, 2);
  world.run_for(20'000);
  world.join("b", {1}, 2);
  world.leader.receive("", wire::LinksOpen{});
  const auto live_for = [&world](int ms) {
    for (; ms > 0; --ms) {
      world.leader.receive("b", wire::Heartbeat{});
      world.run_for(1'000);
    }
  };
  live_for(29);
  EXPECT_EQ(world.failure_for("b"), "");
  live_for(1);
  EXPECT_NE(world.failure_for("b").find("have not opened their links: node 1: hostb (rank 1)"), std::string::npos)
      << world.failure_for("b");
}

TEST(Leader, TellsEverySideOfAWrongWorldSize) {
  World world(4);
  world.join("", {0, 1}, 4);
  world.join("b", {2, 3}, 8);
  for (const Peer& side : {Peer(""), Peer("b")})
    EXPECT_NE(world.failure_for(side).find("hostb (rank 2-3) was started with a world size of 8"), std::string::npos);
}

TEST(Leader, TellsEverySideOfTwoWorkersOfOneRank) {
  World world(3);
  world.join("", {0, 1}, 3);
  world.join("b", {1}, 3);
  for (const Peer& side : {Peer(""), Peer("b")})
    EXPECT_NE(world.failure_for(side).find("two workers have rank 1"), std::string::npos);
}

TEST(Leader, NamesTheSettingAndTheVersionInWhichNodesDiffer) {
  World policies(2);
  policies.join("", {0}, 2, {{"policy", "fifo"}});
  policies.join("b", {1}, 2, {{"policy", "p3"}});
  EXPECT_NE(policies.failure_for("b").find("differ in 'policy': 'fifo' on host (rank 0), 'p3' on hostb"),
            std::string::npos)
      << policies.failure_for("b");
  World versions(2);
  versions.join("", {0}, 2);
  versions.join("b", {1}, 2, {}, "2");
  EXPECT_NE(versions.failure_for("").find("runs deftd 1"), std::string::npos);
}

struct Running : World {
  explicit Running(TimeUs timeout_us = 60'000'000) : Running(settings(timeout_us)) {}
  explicit Running(JobSettings s) : World(2, std::move(s)) {
    join("", {0}, 2);
    join("b", {1}, 2);
    for (const Peer& peer : {Peer(""), Peer("b")}) leader.receive(peer, wire::LinksOpen{});
    EXPECT_EQ(all<wire::Begin>().size(), 2u);
    sent.clear();
  }

  void declare(const Peer& from, const std::string& tensor, std::uint64_t extent, std::uint32_t slots = 1) {
    leader.receive(from, wire::Declare{0, "sgd", {{tensor, model::DType::kFloat32, {extent}}}, slots});
  }

  void ask(const Peer& from, std::uint32_t rank, std::uint64_t count) {
    wire::CollectiveSpec spec{.rank = rank, .collective = ipc::Collective::kAllReduce};
    spec.count = count;
    leader.receive(from, wire::CollectiveReady{"loss", {spec}});
  }
};

TEST(Leader, NamesTheTensorInWhichRanksDiffer) {
  Running world;
  world.declare("", "fc.weight", 10);
  world.declare("b", "fc.weight", 12);
  EXPECT_NE(
      world.failure_for("b").find("tensor 0 is fc.weight float32 [10] on rank 0 and fc.weight float32 [12] on rank 1"),
      std::string::npos)
      << world.failure_for("b");
}

TEST(Leader, OrdersReadyBucketsForAllNodesAlike) {
  Running world;
  world.declare("", "fc.weight", 10);
  world.declare("b", "fc.weight", 10);
  ASSERT_EQ(world.all<wire::DeclareAgreed>().size(), 2u);
  world.sent.clear();
  world.leader.scheduler()->bucket_ready(0, 0, 0);
  ASSERT_EQ(world.sent.size(), 2u);
  EXPECT_EQ(wire::encode({}, world.sent[0].second), wire::encode({}, world.sent[1].second));
  const auto order = world.all<wire::LaunchOrder>().at(0);
  EXPECT_EQ(order.first, 0u);
  EXPECT_EQ(order.launches[0].bytes, 64u);
}

TEST(Leader, StartsACollectiveWhenAllAskedAlikeAndFailsOnlyItWhenTheyDiffer) {
  Running world;
  world.ask("b", 1, 5);
  EXPECT_TRUE(world.sent.empty());
  world.ask("", 0, 5);
  EXPECT_EQ(world.all<wire::CollectiveStart>().size(), 2u);
  world.sent.clear();
  world.ask("b", 1, 5);
  world.ask("", 0, 6);
  const auto failed = world.all<wire::CollectiveFailed>();
  ASSERT_EQ(failed.size(), 2u);
  EXPECT_NE(failed[0].error.what.find("allreduce of 6 float32 (sum) on rank 0"), std::string::npos)
      << failed[0].error.what;
  EXPECT_EQ(world.failure_for("b"), "");
}

// What both nodes' workers told of their gradients judges the first plan, and `deft status` shows it.
struct Judged : Running {
  explicit Judged(bool preserver = true) : Running(with(preserver)) {
    for (const Peer& peer : {Peer(""), Peer("b")}) declare(peer, "fc.weight", 1 << 16, 4);
  }
  static JobSettings with(bool preserver) {
    return settings(60'000'000, "policy=knapsack\nmax_merged_steps=4\nmax_stale_percent=100\npreserver=" +
                                    std::string(preserver ? "0.01" : "off"));
  }
  void tell(const Peer& from, std::uint64_t step, double loss, std::uint32_t group = 0) {
    wire::GradientStatistics told{.group = group, .step = step, .ranks = 1, .local_norms = 3, .average_norms = 2};
    told.learning_rate = 0.01;
    told.loss = loss;
    leader.receive(from, told);
  }
  void train(std::uint64_t steps) {
    for (std::uint64_t step = 0; step < steps; ++step) {
      clock.advance(10);
      leader.scheduler()->stage_began(sched::Stage::kForward, step, 0);
      clock.advance(10);
      leader.scheduler()->stage_began(sched::Stage::kBackward, step, 0);
      clock.advance(10);
      leader.scheduler()->bucket_ready(0, 0, step);
    }
  }
};

TEST(Leader, JudgesItsPlanByWhatAllNodesTold) {
  Judged world;
  world.tell("stranger", 1, 5);
  std::uint64_t step = 0;
  for (const double fall : {7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0}) {
    world.tell("", ++step, 2 + fall);
    world.tell("b", step, 3 + fall);
  }
  world.tell("b", 1, 3, 9);  // of no group
  world.leader.receive("b", wire::GradientStatistics{.group = 0, .step = 17, .ranks = 99});
  world.train(10);
  ASSERT_EQ(world.all<wire::PlanOrder>().size(), 2u);
  const auto status = world.leader.status();
  const auto& judgement = status["plans"][0]["judgement"];
  EXPECT_EQ(judgement["judged"], true) << status.dump();
  EXPECT_DOUBLE_EQ(judgement["statistics"]["loss"].get<double>(), 2.5);
  EXPECT_DOUBLE_EQ(judgement["statistics"]["gradient"].get<double>(), 1);
  ASSERT_EQ(status["preserver"].size(), 1u);
  EXPECT_EQ(status["preserver"][0]["statistics_refused"], 1);
  EXPECT_EQ(status["preserver"][0]["group"], 0);
}

TEST(Leader, SaysThatAPlanWasNotJudgedWithoutALoss) {
  Judged world;
  world.tell("", 1, 2);  // and nothing from the other node
  world.train(10);
  const auto status = world.leader.status();
  ASSERT_EQ(status["plans"].size(), 1u);
  EXPECT_EQ(status["plans"][0]["judgement"]["judged"], false) << status.dump();
  Judged off(false);
  off.tell("", 1, 2);
  off.train(10);
  EXPECT_TRUE(off.leader.status()["preserver"].empty());
  EXPECT_FALSE(off.leader.status()["plans"][0].contains("judgement"));
}

// Steps take no time at all here, so updates have to be merged; but for the other node's there would be time enough.
TEST(Leader, PlansForTheSlowestNode) {
  Judged alike(false);
  alike.train(10);
  ASSERT_EQ(alike.leader.status()["plans"].size(), 1u);
  Judged world(false);
  const auto tell = [&](const Peer& from, double us) { world.leader.receive(from, wire::StepTime{us}); };
  tell("", 1000);
  tell("b", 3e6);
  tell("stranger", 9e6);
  world.train(10);
  const auto status = world.leader.status();
  ASSERT_EQ(status["plans"].size(), 1u);
  EXPECT_EQ(status["plans"][0]["cycle"], "0@1") << status["plans"].dump();
  EXPECT_NE(alike.leader.status()["plans"][0]["cycle"], "0@1");
  EXPECT_EQ(status["nodes"][0]["step_us"], 1000);
  EXPECT_EQ(status["nodes"][1]["step_us"], 3e6);
}

TEST(Leader, TakesTheTimesOfCodecsFromTheNodeThatTellsThem) {
  Judged world(false);
  world.leader.receive("b", wire::StepTime{1000, {{1, 1 << 20, 1e6, 1e6}}});
  EXPECT_EQ(world.leader.facts("b").codecs, 3U) << "none, bf16 and int8";
  world.leader.receive("b", wire::StepTime{1000, {{1, 1 << 20, 1e6, 1e6}}});
  const auto codecs = world.leader.status()["codecs"];
  ASSERT_EQ(codecs.size(), 2U) << codecs.dump();
  EXPECT_EQ(codecs[0]["node"], 1);
  EXPECT_EQ(codecs[0]["measured"], true);
}

TEST(Leader, TellsAlsoNodesWhoseWorkersHaveLeftWhoLeaves) {
  Running world;
  for (const std::uint32_t rank : {1U, 0U}) {
    const Peer from = rank == 1 ? "b" : "";
    world.sent.clear();
    world.leader.receive(from, wire::Leave{{rank}});
    for (const Peer& node : {Peer(""), Peer("b")})
      EXPECT_EQ(std::ranges::count(world.sent, node, &std::pair<Peer, wire::ToNode>::first), 1) << rank;
    EXPECT_EQ(world.all<wire::Leave>().size(), 2u);
  }
}

TEST(Leader, NamesTheNodeThatFellSilent) {
  Running world(400'000);
  world.run_for(500'000);
  EXPECT_NE(world.failure_for("").find("node 1: hostb (rank 1) was lost"), std::string::npos) << world.failure_for("");
}

TEST(Leader, ALinkErrorIsBlamedOnTheNodeThatNoLongerAnswers) {
  Running world(800'000);
  world.clock.advance(1000);
  world.leader.receive("", wire::Failure{{ErrorKind::kLost, "connection reset", "", {}}, true});
  EXPECT_EQ(world.failure_for(""), "") << "it asks first";
  world.run_for(350'000);
  EXPECT_NE(world.failure_for("").find("node 1: hostb (rank 1) was lost"), std::string::npos);
}

TEST(Leader, IgnoresStrangersAndMalformedJoins) {
  Running world;
  world.leader.receive("stranger", wire::Failure{{ErrorKind::kInternal, "ha", "", {}}, false});
  world.join("stranger", {}, 2);
  EXPECT_TRUE(world.sent.empty());
}

}  // namespace
}  // namespace deft::daemon
