// Two daemons of one job, which hear each other without a network: what a node says and what its leader does about it, from JOIN to the last
// LEAVE. Time is the test's own.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "tests/daemon/fake_daemon.h"

namespace deft::daemon {
namespace {

using Stage = FakeDaemon::Stage;
constexpr TimeUs kSecond = 1'000'000;

// Ranks 0 to 3. Those from 4 on, in a larger world, do not come.
struct TwoDaemons : testing::Test {
  void set_world(std::uint32_t world) {
    for (FakeWorker* const worker : {&leads.first, &leads.second, &follows.first, &follows.second})
      worker->attached.world = world;
  }
  // What one has sent, the other receives.
  void exchange() {
    while (!leads.control.sent.empty() || !follows.control.sent.empty()) {
      for (const auto& [to, bytes] : std::exchange(follows.control.sent, {})) leads.deliver("follower", bytes);
      for (const auto& [to, bytes] : std::exchange(leads.control.sent, {})) follows.deliver("leader", bytes);
    }
  }
  void advance(TimeUs us) {
    constexpr TimeUs kTurnUs = 50'000;
    for (; us > 0; us -= kTurnUs) {
      for (FakeDaemon* const daemon : {&leads, &follows}) daemon->advance(kTurnUs);
      exchange();
    }
  }

  FakeDaemon leads{true}, follows;
};

TEST_F(TwoDaemons, TheFirstDeadlineOfAllNodesEndsTheGathering) {
  set_world(6);
  follows.bring_to(Stage::kJoining);
  advance(5 * kSecond);
  leads.bring_to(Stage::kJoining);
  advance(4 * kSecond - 50'000);
  EXPECT_EQ(leads.state(), "joining");
  EXPECT_EQ(follows.state(), "joining");
  advance(50'000);
  for (const FakeDaemon* const daemon : {&leads, &follows})
    EXPECT_TRUE(says(daemon->end(), "rank 4-5 of 6 is missing"));
}

TEST_F(TwoDaemons, AWorkerThatDiesWhileOthersAreMissingEndsTheJobOnAllNodes) {
  set_world(6);
  for (FakeDaemon* const daemon : {&leads, &follows}) daemon->bring_to(Stage::kJoining);
  advance(kSecond);
  follows.ask(follows.second, [&](JobPort& job) {
    job.worker_ended(follows.second, false, {ErrorKind::kLost, "rank 3 (pid 1003) died", "", {}});
  });
  exchange();
  EXPECT_TRUE(says(leads.end(), "rank 3 (pid 1003) died"));
}

struct TwoRunningDaemons : TwoDaemons {
  TwoRunningDaemons() {
    for (FakeDaemon* const daemon : {&leads, &follows}) daemon->bring_to(Stage::kJoining);
    exchange();  // JOIN, and JOINED
    for (FakeDaemon* const daemon : {&leads, &follows}) daemon->open_links();
    exchange();  // LINKS_OPEN, and BEGIN
    for (const FakeDaemon* const daemon : {&leads, &follows}) EXPECT_EQ(daemon->state(), "running") << daemon->end();
  }
};

void leave(FakeDaemon& daemon) {
  for (FakeWorker* const worker : {&daemon.first, &daemon.second})
    daemon.ask(*worker, [&](JobPort& job) { job.worker_ended(*worker, true, {}); });
}

TEST_F(TwoRunningDaemons, KeepTheirLinksUntilTheWorkersOfBothHaveLeft) {
  leave(follows);
  advance(3 * kSecond);
  EXPECT_EQ(follows.state(), "running") << "the other node may still receive the last results";
  leave(leads);
  exchange();
  for (const FakeDaemon* const daemon : {&leads, &follows}) {
    EXPECT_EQ(daemon->state(), "ended") << "at once";
    EXPECT_EQ(daemon->jobs.history().by_reason()["well"], 1);
  }
}

// Asks for a collective and declares a group.
void begin_step(FakeDaemon& daemon, FakeWorker& worker) {
  CollectiveRequest barrier;
  barrier.name = "epoch";
  barrier.call.collective = ipc::Collective::kBarrier;
  const auto declared = std::get<wire::Declare>(samples::messages_to_leader().at(2));
  daemon.ask(worker, [&](JobPort& job) {
    job.request(worker, barrier);
    job.declare(worker, {declared.group, declared.name, declared.tensors, declared.slots, declared.op, 2});
  });
}

using Stalls = std::set<std::pair<std::uint32_t, std::string>>;  // ranks, and what they owe

Stalls stalls_of(const FakeDaemon& daemon) {
  Stalls stalls;
  const auto status = daemon.jobs.status();
  for (const auto& one : status.at(0)["stalls"])
    stalls.emplace(one["rank"].get<std::uint32_t>(), one["owes"].get<std::string>());
  return stalls;
}

TEST_F(TwoRunningDaemons, NameTheWorkerOfTheOtherNodeThatOwesWhatItsNeighbourDid) {
  begin_step(leads, leads.first), begin_step(leads, leads.second), begin_step(follows, follows.first);
  advance(4 * kSecond);  // a third of the timeout, and a heartbeat
  for (const FakeDaemon* const daemon : {&leads, &follows})
    EXPECT_EQ(stalls_of(*daemon), (Stalls{{3, "epoch"}, {3, "the gradients of group 0"}}));
}

TEST_F(TwoRunningDaemons, NameAllWorkersOfANodeThatDidNothing) {
  begin_step(follows, follows.first), begin_step(follows, follows.second);
  advance(4 * kSecond);
  const Stalls all{{0, "epoch"}, {0, "the gradients of group 0"}, {1, "epoch"}, {1, "the gradients of group 0"}};
  for (const FakeDaemon* const daemon : {&leads, &follows}) EXPECT_EQ(stalls_of(*daemon), all);
}

void release(FakeDaemon& daemon, FakeWorker& worker, std::uint32_t group = 0) {
  daemon.ask(worker, [&](JobPort& job) { job.record(worker, shm::ReleaseRecord{.group = group}); });
}

std::size_t groups_of(const FakeDaemon& daemon) { return daemon.jobs.status().at(0)["groups"].size(); }

bool heard_of_the_release(const FakeWorker& worker) {
  return std::ranges::any_of(worker.records,
                             [](const auto& record) { return record.kind() == shm::RecordKind::kReleased; });
}

struct TwoDaemonsWithAGroup : TwoRunningDaemons {
  TwoDaemonsWithAGroup() {
    for (FakeDaemon* const daemon : {&leads, &follows})
      for (FakeWorker* const worker : {&daemon->first, &daemon->second}) declare(*daemon, *worker, 0);
    exchange();
  }
  static void declare(FakeDaemon& daemon, FakeWorker& worker, std::uint32_t group) {
    const auto declared = std::get<wire::Declare>(samples::messages_to_leader().at(2));
    daemon.ask(worker, [&](JobPort& job) {
      job.declare(worker, {group, declared.name, declared.tensors, declared.slots, declared.op, 2});
    });
  }
  void hand_in(FakeDaemon& daemon, FakeWorker& worker, std::uint64_t generation = 0) {
    daemon.ask(worker, [&](JobPort& job) {
      job.record(worker, shm::ReadyRecord{.tensors = 2, .generation = generation, .last_step = generation});
    });
    exchange();
  }
  void finish_launches() {
    for (FakeDaemon* const daemon : {&leads, &follows}) daemon->finish_launches();
    exchange();
  }
  [[nodiscard]] std::vector<FakeWorker*> workers() {
    return {&leads.first, &leads.second, &follows.first, &follows.second};
  }
};

TEST_F(TwoDaemonsWithAGroup, AGroupGoesOnAllNodesWhenTheLastRankHasReleasedIt) {
  ASSERT_EQ(leads.end() + follows.end(), "");
  ASSERT_EQ(groups_of(leads) + groups_of(follows), 2u);
  release(leads, leads.first), release(leads, leads.second), release(follows, follows.second);
  advance(20 * kSecond);
  EXPECT_EQ(groups_of(leads) + groups_of(follows), 2u) << "nobody waits for the last one, and nothing goes";
  EXPECT_EQ(leads.end() + follows.end(), "");
  release(follows, follows.first);
  exchange();
  EXPECT_EQ(groups_of(leads) + groups_of(follows), 0u);
  for (const FakeWorker* const worker : workers()) EXPECT_TRUE(heard_of_the_release(*worker));
  for (FakeDaemon* const daemon : {&leads, &follows})
    for (FakeWorker* const worker : {&daemon->first, &daemon->second}) declare(*daemon, *worker, 1);
  exchange();
  EXPECT_EQ(groups_of(leads) + groups_of(follows), 2u) << "the next one has the next number";
  EXPECT_EQ(leads.end() + follows.end(), "");
}

TEST_F(TwoDaemonsWithAGroup, LaunchesUnderWayEndBeforeTheGroupGoes) {
  for (FakeDaemon* const daemon : {&leads, &follows})
    for (FakeWorker* const worker : {&daemon->first, &daemon->second}) hand_in(*daemon, *worker);
  ASSERT_FALSE(leads.drivers.drivers[0]->started.empty() && leads.drivers.drivers[1]->started.empty());
  for (FakeDaemon* const daemon : {&leads, &follows})
    for (FakeWorker* const worker : {&daemon->first, &daemon->second}) release(*daemon, *worker);
  exchange();
  EXPECT_EQ(groups_of(leads) + groups_of(follows), 2u);
  for (const FakeWorker* const worker : workers()) EXPECT_FALSE(heard_of_the_release(*worker));
  for (int round = 0; round < 8; ++round) finish_launches();
  EXPECT_EQ(groups_of(leads) + groups_of(follows), 0u);
  for (const FakeWorker* const worker : workers()) EXPECT_TRUE(heard_of_the_release(*worker));
  EXPECT_EQ(leads.end() + follows.end(), "");
}

TEST_F(TwoDaemonsWithAGroup, ARankThatReleasesWhatOthersWaitForIsNamedToAll) {
  for (FakeWorker* const worker : {&leads.first, &leads.second}) hand_in(leads, *worker);
  hand_in(follows, follows.first);
  release(follows, follows.second);
  advance(3 * kSecond);
  for (const FakeDaemon* const daemon : {&leads, &follows}) {
    EXPECT_TRUE(says(daemon->end(), "rank 3"));
    EXPECT_TRUE(says(daemon->end(), "has released 'sgd' without handing in"));
  }
}

TEST_F(TwoDaemonsWithAGroup, AWorkerThatDiesAfterItsReleaseIsTheErrorOfAll) {
  release(follows, follows.first);
  follows.ask(follows.first, [&](JobPort& job) {
    job.worker_ended(follows.first, false, {ErrorKind::kLost, "rank 2 (pid 1002) died", "", {}});
  });
  exchange();
  EXPECT_TRUE(says(leads.end(), "rank 2 (pid 1002) died"));
}

TEST_F(TwoDaemonsWithAGroup, StatisticsThatAReleaseHasOvertakenAreLeftOut) {
  for (FakeDaemon* const daemon : {&leads, &follows})
    for (FakeWorker* const worker : {&daemon->first, &daemon->second}) release(*daemon, *worker);
  exchange();
  ipc::Statistics statistics;
  statistics.step = 1;
  for (FakeWorker* const worker : {&follows.first, &follows.second})
    follows.ask(*worker, [&](JobPort& job) { job.take_statistics(*worker, statistics); });
  exchange();
  EXPECT_EQ(leads.end() + follows.end(), "");
}

}  // namespace
}  // namespace deft::daemon
