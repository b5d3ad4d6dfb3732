// When a job's workers learn that it runs: one after the other, as their rings are made.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/daemon/fake_daemon.h"

namespace deft::daemon {
namespace {

using ::testing::HasSubstr;

void begin(FakeDaemon& daemon) {
  daemon.bring_to(FakeDaemon::Stage::kConnecting);
  daemon.open_links();
  daemon.tell(wire::Begin{});
}

TEST(JobWelcome, AWorkerIsWelcomedWhenItsRingsAreMadeAndThenTheNextOne) {
  FakeDaemon daemon;
  daemon.first.rings_later = true;
  begin(daemon);
  EXPECT_EQ(daemon.state(), "running");
  EXPECT_TRUE(daemon.first.starts.empty());
  EXPECT_TRUE(daemon.second.starts.empty());
  daemon.first.end_rings();
  EXPECT_EQ(daemon.first.starts.size(), 1u);
  daemon.turn();
  EXPECT_EQ(daemon.second.starts.size(), 1u);
}

TEST(JobWelcome, AWorkerThatLeavesWhileItsRingsAreMadeKeepsNobodyWaiting) {
  FakeDaemon daemon;
  daemon.first.rings_later = true;
  begin(daemon);
  daemon.ask(daemon.first, [&](JobPort& job) { job.worker_ended(daemon.first, true, {}); });
  EXPECT_TRUE(daemon.second.starts.empty());
  daemon.first.late_rings.clear();  // its session is gone, and calls nobody
  daemon.turn();
  EXPECT_EQ(daemon.second.starts.size(), 1u);
  EXPECT_TRUE(daemon.first.starts.empty());
}

TEST(JobWelcome, RingsThatAreMadeAfterItsEndWelcomeNobody) {
  FakeDaemon daemon;
  daemon.first.rings_later = true;
  begin(daemon);
  daemon.tell(wire::Failure{{ErrorKind::kLost, "node 1 was lost", "", {}}, false});
  ASSERT_THAT(daemon.end(), HasSubstr("node 1 was lost"));
  auto late = daemon.first.late_rings;
  daemon.first.end_rings();
  EXPECT_TRUE(daemon.first.starts.empty());
  daemon.advance(1'000'000);
  ASSERT_EQ(daemon.state(), "ended") << "the job is put away";
  for (const auto& made : late) made({});
  EXPECT_TRUE(daemon.first.starts.empty());
}

TEST(JobWelcome, RingsThatCannotBeMadeEndTheJobAndNameTheWorker) {
  FakeDaemon daemon;
  daemon.second.rings_later = true;
  daemon.second.rings_error = Error{ErrorKind::kExhausted, "the daemon's shared memory is full", "", {}};
  begin(daemon);
  daemon.second.end_rings();
  EXPECT_THAT(daemon.end(), HasSubstr("start rank 3: the daemon's shared memory is full"));
  EXPECT_TRUE(daemon.second.starts.empty());
}

}  // namespace
}  // namespace deft::daemon
