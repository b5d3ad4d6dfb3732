// A node's links: launches in the leader's order and as soon as their data is here; and going on without a link that is lost.
#include "daemon/node/link_set.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "daemon/node/link_recovery.h"
#include "tests/daemon/fake_links.h"
#include "tests/daemon/fake_node.h"

namespace deft::daemon {
namespace {

// Launches whose data is here when the test says so.
struct FakeSource final : LaunchSource {
  [[nodiscard]] bool can_start(const SubCommTask& launch) const override { return launch.number < ready_below; }
  [[nodiscard]] Transfer transfer_of(const SubCommTask& launch) const override {
    Transfer transfer;
    transfer.count = launch.bytes;
    transfer.buffers.resize(2);
    return transfer;
  }
  [[nodiscard]] InProcessDriver::Records records_of(const SubCommTask& /*launch*/) const override {
    return InProcessDriver::Records(2, {shm::StartRecord{}, shm::StartCollectiveRecord{}});
  }
  [[nodiscard]] bool is_merged(const SubCommTask& launch) const override { return launch.bytes > 100; }
  Result<void> finish(const SubCommTask& launch, const TransferDone& /*done*/) override {
    finished.push_back(launch.number);
    if (launch.number == fails_at) return fail(ErrorKind::kInternal, "bytes were reduced twice");
    return {};
  }
  std::uint64_t ready_below = ~std::uint64_t{0}, fails_at = ~std::uint64_t{0};
  std::vector<std::uint64_t> finished;
};

struct FakeEvents final : LinkEvents {
  void links_open() override { ++open; }
  void link_failed(std::size_t link, const Error& error) override { failures.emplace_back(link, error); }
  void progress_due() override { ++due; }
  void transferred(std::size_t link, const SubCommTask&, const TransferDone& done) override {
    done_launches.emplace_back(link, done.token);
  }
  void failed(const Error& error) override { errors.push_back(error); }
  [[nodiscard]] bool wants_segments() const override { return traced; }
  bool traced = false;
  int open = 0, due = 0;
  std::vector<std::pair<std::size_t, Error>> failures;
  std::vector<Error> errors;
  std::vector<std::pair<std::size_t, std::uint64_t>> done_launches;
};

struct Links : testing::Test, FakeNode {
  FakeSource gradients, collectives;
  FakeEvents events;
  FakeDrivers drivers;
  LinkSet links{members,
                view,
                gradients,
                collectives,
                [this](DriverRequest request) { return std::make_unique<FakeDriver>(drivers, std::move(request)); },
                events};
  LinkRecovery recovery{links, leader, "job", "hosta"};

  void open() {
    links.open();
    for (auto* const driver : drivers.drivers) driver->opened();
  }
  void order(std::size_t link, std::uint64_t number, std::uint64_t bytes = 64) {
    ASSERT_TRUE(links.take_number(number));
    SubCommTask launch;
    launch.number = number;
    launch.bytes = bytes;
    links.push(link, std::move(launch));
  }
  // Launches 0 and 2 on link 0, launch 1 on link 1; the first is done.
  void run_three() {
    open();
    order(0, 0);
    order(1, 1);
    order(0, 2);
    links.pump();
    drivers.drivers[0]->done(0);
  }
};

TEST_F(Links, TransfersTellOfSegmentsWhileAJobIsTraced) {
  open();
  order(0, 0);
  links.pump();
  events.traced = true;
  order(0, 1);
  links.pump();
  const auto& transfers = drivers.drivers[0]->transfers;
  ASSERT_EQ(transfers.size(), 2U);
  EXPECT_FALSE(transfers[0].tells_segments);
  EXPECT_TRUE(transfers[1].tells_segments);
  // Another node may have told of the first time, and what came then was not sent the second time.
  SubCommTask again;
  again.number = 2, again.bytes = 64, again.runs_again = true;
  ASSERT_TRUE(links.take_number(2));
  links.push(0, std::move(again));
  links.pump();
  ASSERT_EQ(transfers.size(), 3U);
  EXPECT_FALSE(transfers[2].tells_segments);
}

TEST_F(Links, WorkersThatRunALinkAreAskedForSegmentsWhileAJobIsTraced) {
  open();
  for (std::uint64_t number : {0U, 1U}) {
    events.traced = number == 1;
    order(0, number);
    links.pump();
    for (const auto& of_worker : drivers.drivers[0]->records.back()) {
      ASSERT_EQ(of_worker.size(), 2U);
      for (const auto& start : of_worker)
        EXPECT_EQ(std::visit([](const auto& record) { return record.tells_segments; }, start), number);
    }
  }
}

TEST_F(Links, AreOpenWhenTheLastOneIs) {
  links.open();
  drivers.drivers[1]->opened();
  EXPECT_EQ(events.open, 0);
  drivers.drivers[0]->opened();
  EXPECT_EQ(events.open, 1);
}

TEST_F(Links, OneThatCannotOpenIsReported) {
  links.open();
  drivers.drivers[1]->opened(fail(ErrorKind::kTimeout, "nobody came"));
  ASSERT_EQ(events.failures.size(), 1u);
  EXPECT_EQ(events.failures[0].first, 1u);
}

TEST_F(Links, ADriverThatCannotBeMadeFailsTheJobAndNothingElse) {
  LinkSet broken(
      members, view, gradients, collectives,
      [](DriverRequest) -> std::unique_ptr<LinkDriver> { throw std::runtime_error("no thread is left"); }, events);
  broken.open();
  ASSERT_EQ(events.errors.size(), 2u);
  EXPECT_EQ(events.errors[0].kind, ErrorKind::kExhausted);
  EXPECT_NE(events.errors[0].what.find("no thread is left"), std::string::npos);
  broken.pump();
  broken.abort("over");
  EXPECT_TRUE(broken.finished());
}

TEST_F(Links, ALaunchWaitsForItsDataAndThoseBehindItWaitForIt) {
  open();
  gradients.ready_below = 0;
  order(0, 0);
  order(0, 1);
  order(1, 2);
  links.pump();
  EXPECT_TRUE(drivers.drivers[0]->started.empty());
  gradients.ready_below = 2;
  links.pump();
  EXPECT_EQ(drivers.drivers[0]->started, (std::vector<std::uint64_t>{0, 1}));
  EXPECT_TRUE(drivers.drivers[1]->started.empty());
}

// The leader has finished the reduce-scatter, and this node has not.
TEST_F(Links, AnAllGatherWaitsForItsReduceScatterOnAnotherLink) {
  struct Halves final : LaunchSource {
    [[nodiscard]] bool can_start(const SubCommTask& launch) const override {
      return launch.half == model::AllReduceHalf::kReduceScatter || scattered;
    }
    [[nodiscard]] Transfer transfer_of(const SubCommTask&) const override { return {}; }
    [[nodiscard]] InProcessDriver::Records records_of(const SubCommTask&) const override { return {}; }
    [[nodiscard]] bool is_merged(const SubCommTask&) const override { return false; }
    Result<void> finish(const SubCommTask& launch, const TransferDone&) override {
      scattered |= launch.half == model::AllReduceHalf::kReduceScatter;
      return {};
    }
    bool scattered = false;
  } halves;
  LinkSet of_halves(
      members, view, halves, collectives,
      [this](DriverRequest request) { return std::make_unique<FakeDriver>(drivers, std::move(request)); }, events);
  of_halves.open();
  for (auto* const driver : drivers.drivers) driver->opened();
  for (const auto half : {model::AllReduceHalf::kReduceScatter, model::AllReduceHalf::kAllGather}) {
    const std::uint64_t number = of_halves.next_number();
    ASSERT_TRUE(of_halves.take_number(number));
    SubCommTask launch;
    launch.number = number;
    launch.half = half;
    of_halves.push(number, std::move(launch));
  }
  of_halves.pump();
  EXPECT_TRUE(drivers.drivers[1]->started.empty());
  drivers.drivers[0]->done(0);
  EXPECT_EQ(drivers.drivers[1]->started, (std::vector<std::uint64_t>{1}));
}

TEST_F(Links, AGapInTheCountIsAnError) {
  EXPECT_FALSE(links.take_number(1));
  EXPECT_TRUE(links.take_number(0));
  EXPECT_FALSE(links.take_number(0));
  EXPECT_EQ(links.next_number(), 1u);
}

TEST_F(Links, SomeLaunchesAreGivenToADriverAheadAndNotAll) {
  open();
  for (std::uint64_t number = 0; number < 9; ++number) order(0, number);
  links.pump();
  EXPECT_EQ(drivers.drivers[0]->started.size(), LinkSet::kStartedAhead);
  drivers.drivers[0]->done(0);
  EXPECT_EQ(drivers.drivers[0]->started.size(), LinkSet::kStartedAhead + 1) << "the next starts as one ends";
}

TEST_F(Links, ADoneLaunchIsFinishedOnceAtItsSource) {
  open();
  order(0, 0, 200);
  ASSERT_TRUE(links.take_number(1));
  SubCommTask collective;
  collective.number = 1;
  collective.is_collective = true;
  links.push(0, collective);
  links.pump();
  drivers.drivers[0]->done(1);
  drivers.drivers[0]->done(0);
  drivers.drivers[0]->done(0);
  EXPECT_EQ(gradients.finished, (std::vector<std::uint64_t>{0}));
  EXPECT_EQ(collectives.finished, (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(events.done_launches, (std::vector<std::pair<std::size_t, std::uint64_t>>{{0, 1}, {0, 0}}));
  EXPECT_TRUE(links.queues()[0].waiting.empty() && links.queues()[0].running.empty());
  const auto status = links.status();
  EXPECT_EQ(status[0]["parts"], 2);
  EXPECT_EQ(status[0]["merged_parts"], 1);
  EXPECT_EQ(status[0]["bytes"], 128);
}

TEST_F(Links, WhatTheKernelCountsOfConnectionsIsAddedUp) {
  open();
  EXPECT_FALSE(links.status()[0].contains("connections")) << "nothing is known yet";
  order(0, 0);
  order(0, 1);
  links.pump();
  TransferDone done;
  done.traffic = {{.peer = 1, .sent_bytes = 1000, .busy_us = 50, .resent = 2, .rtt_us = 90},
                  {.peer = 2, .sent_bytes = 10, .busy_us = 5, .resent = 0, .rtt_us = 40}};
  for (const std::uint64_t number : {0U, 1U}) {
    done.token = number;
    drivers.drivers[0]->report(done);
  }
  const auto connections = links.status()[0]["connections"];
  EXPECT_EQ(connections["sent_bytes"], 2020);
  EXPECT_EQ(connections["resent_packets"], 4);
  EXPECT_EQ(connections["unacknowledged_us"], 110);
  EXPECT_EQ(connections["least_rtt_us"], 40);
}

TEST_F(Links, TheKernelCountsPacketsToServersAndTheLinkTheirResults) {
  open();
  order(0, 0);
  links.pump();
  TransferDone done;
  done.traffic = {{.peer = 0, .is_server = true, .sent_bytes = 1000, .busy_us = 50, .resent = 2, .rtt_us = 90},
                  {.peer = 1, .is_server = true, .sent_bytes = 10, .busy_us = 5, .resent = 1, .rtt_us = 40}};
  drivers.drivers[0]->report(done);
  EXPECT_EQ(links.status()[0]["connections"], (nlohmann::json{{"resent_packets", 3}, {"least_rtt_us", 40}}));
}

TEST_F(Links, TheErrorOfCodecsIsThatOfTheNewestEncodings) {
  open();
  for (std::uint64_t number = 0; number < 40; ++number) order(0, number);
  std::vector<double> seen;
  for (std::uint64_t number = 0; number < 40; ++number) {
    links.pump();
    TransferDone done;
    done.token = number;
    if (number % 2 == 1) done.codec_loss = {.left_out = number < 3 ? 9.0 : 1.0, .given = 10};
    drivers.drivers[0]->report(done);
    if (number < 2) seen.push_back(links.status()[0].value("codec_error", -1.0));
  }
  EXPECT_EQ(seen, (std::vector<double>{-1, 0.9})) << "nothing was measured before the second";
  EXPECT_NEAR(links.status()[0]["codec_error"], 0.1, 0.03);
}

TEST_F(Links, ASourceThatCannotFinishFailsTheJob) {
  open();
  gradients.fails_at = 0;
  order(0, 0);
  links.pump();
  drivers.drivers[0]->done(0);
  ASSERT_EQ(events.errors.size(), 1u);
}

TEST_F(Links, AnswersOfWorkersGoToLinksThatTheyRunOnly) {
  open();
  EXPECT_FALSE(links.driver_of_workers(0)) << "the daemon runs it";
  EXPECT_FALSE(links.driver_of_workers(2));
  drivers.in_daemon = false;
  const auto driver = links.driver_of_workers(0);
  ASSERT_TRUE(driver);
  EXPECT_EQ(*driver, drivers.drivers[0]);
}

TEST_F(Links, WhatADriverHasNotUnderWayHasNotStarted) {
  open();
  order(0, 0);
  order(0, 1);
  links.pump();
  const LinkQueue& link = links.queues()[0];
  EXPECT_EQ(link.started_below(2), 2u);
  for (const std::uint64_t under_way : {0U, 1U}) {
    drivers.drivers[0]->under_way = under_way;
    EXPECT_EQ(link.started_below(2), under_way);
  }
  drivers.drivers[0]->done(0);
  drivers.drivers[0]->under_way = 0;
  EXPECT_EQ(link.started_below(2), 1u) << "the first has ended";
}

TEST_F(Links, TheLeaderIsToldWhenMuchIsFinished) {
  open();
  order(0, 0);
  order(0, 1);
  links.pump();
  drivers.drivers[0]->done(0, LinkSet::kTellEveryBytes - 1);
  EXPECT_EQ(events.due, 0);
  drivers.drivers[0]->done(1, 1);
  EXPECT_EQ(events.due, 1);
  recovery.report_progress();
  const auto told = leader.all<wire::NodeProgress>();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].links[0].finished_below, 2u);
  EXPECT_EQ(links.queues()[0].untold_bytes, 0u);
}

TEST_F(Links, WhatAReplacementGotBeforeItIsOpenHasNotStarted) {
  run_three();
  recovery.stop({0, 0, {ErrorKind::kLost, "cut", "", {}}});
  EXPECT_FALSE(recovery.poll());
  ASSERT_TRUE(recovery.replace({0, 1, 1, 0}));
  ASSERT_EQ(drivers.drivers[0]->started, (std::vector<std::uint64_t>{0, 2}));
  recovery.report_progress();
  drivers.drivers[0]->opened();
  recovery.report_progress();
  const auto told = leader.all<wire::NodeProgress>();
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0].links[0].finished_below, 0u);
  EXPECT_EQ(told[0].links[0].started_below, 0u);
  EXPECT_EQ(told[1].links[0].started_below, 3u);
}

TEST_F(Links, TheOnlyOneThatDaemonsRunCannotBeLost) {
  open();
  EXPECT_TRUE(links.can_remove(0));
  drivers.in_daemon = false;
  EXPECT_FALSE(links.can_remove(0)) << "the workers run it";
  FakeNode alone({{"gloo", "eth0", "10.0.0.1"}});
  FakeDrivers one;
  LinkSet single(
      alone.members, alone.view, gradients, collectives,
      [&](DriverRequest request) { return std::make_unique<FakeDriver>(one, std::move(request)); }, events);
  single.open();
  EXPECT_FALSE(single.can_remove(0));
  LinkRecovery none(single, leader, "job", "hosta");
  EXPECT_FALSE(none.failed(0, {ErrorKind::kLost, "cut", "", {}}));
  EXPECT_TRUE(leader.sent.empty());
}

TEST_F(Links, AFailureIsToldToTheLeaderOnceAndOnlyIfItIsTheLinks) {
  open();
  EXPECT_FALSE(recovery.failed(0, {ErrorKind::kInternal, "a bug", "", {}}));
  EXPECT_TRUE(recovery.failed(0, {ErrorKind::kLost, "cut", "", {}}));
  EXPECT_TRUE(recovery.failed(0, {ErrorKind::kLost, "cut", "", {}}));
  const auto told = leader.all<wire::LinkFailed>();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NE(told[0].cause.message().find("on hosta"), std::string::npos) << told[0].cause.message();
}

TEST_F(Links, AStoppedLinkTellsWhatHadFinishedWhenItsDriverHasEnded) {
  run_three();
  drivers.ends_at_once = false;
  recovery.stop({0, 0, {ErrorKind::kLost, "cut", "", {}}});
  EXPECT_FALSE(drivers.drivers[0]->aborted.empty());
  EXPECT_TRUE(recovery.poll()) << "its driver has not ended";
  EXPECT_TRUE(leader.sent.empty());
  drivers.ends_at_once = true;
  EXPECT_FALSE(recovery.poll());
  const auto stopped = leader.all<wire::LinkStopped>();
  ASSERT_EQ(stopped.size(), 1u);
  EXPECT_EQ(stopped[0].finished_below, 2u) << "launch 2 was under way";
  recovery.poll();
  EXPECT_EQ(leader.sent.size(), 1u);
}

TEST_F(Links, AReplacementRunsWhatTheOthersNeedAgainInTheSameOrder) {
  run_three();
  recovery.stop({0, 0, {ErrorKind::kLost, "cut", "", {}}});
  recovery.poll();
  ASSERT_TRUE(recovery.replace({0, 1, 1, 0}));
  EXPECT_EQ(drivers.drivers[0]->started, (std::vector<std::uint64_t>{0, 2}));
  EXPECT_TRUE(drivers.drivers[0]->transfers[0].buffers.empty()) << "this node had its result: others' sake";
  EXPECT_FALSE(drivers.drivers[0]->transfers[1].buffers.empty());
  drivers.drivers[0]->done(0);
  drivers.drivers[0]->done(2);
  EXPECT_EQ(gradients.finished, (std::vector<std::uint64_t>{0, 2})) << "launch 0 is not finished twice";
  EXPECT_EQ(links.status()[0]["goes_over"], "gloo:eth1");
}

TEST_F(Links, WhatAllHaveFinishedIsNotReplayed) {
  run_three();
  recovery.release({{{0, 1}, {0, 0}}});
  EXPECT_TRUE(links.queues()[0].kept.empty());
  recovery.stop({0, 0, {ErrorKind::kLost, "cut", "", {}}});
  recovery.poll();
  ASSERT_TRUE(recovery.replace({0, 1, 1, 2}));
  EXPECT_EQ(drivers.drivers[0]->started, (std::vector<std::uint64_t>{2}));
}

TEST_F(Links, StopsAndReplacementsOfAnotherEpochOrOfNoLinkAreIgnored) {
  run_three();
  recovery.stop({2, 0, {}});
  recovery.stop({0, 1, {}});
  EXPECT_TRUE(drivers.drivers[0]->aborted.empty());
  ASSERT_TRUE(recovery.replace({0, 1, 1, 0})) << "nothing was stopped";
  EXPECT_EQ(links.queues()[0].outage.epoch, 0u);
  recovery.stop({0, 0, {ErrorKind::kLost, "cut", "", {}}});
  ASSERT_TRUE(recovery.replace({0, 1, 1, 0})) << "its driver still runs here";
  recovery.poll();
  ASSERT_TRUE(recovery.replace({0, 2, 1, 0}));
  ASSERT_TRUE(recovery.replace({0, 1, 2, 0}));
  EXPECT_EQ(links.queues()[0].outage.epoch, 0u);
}

TEST_F(Links, NothingIsReportedOnceTheJobHasEnded) {
  open();
  order(0, 0);
  links.pump();
  members.advance(JobState::kEnded);
  links.abort("over");
  drivers.drivers[0]->done(0);
  EXPECT_TRUE(gradients.finished.empty());
  EXPECT_TRUE(links.finished());
}

}  // namespace
}  // namespace deft::daemon
