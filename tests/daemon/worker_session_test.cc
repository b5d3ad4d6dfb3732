// A worker's session from its HELLO to its death, with a socket and without a job's work. Time is the test's own and stands still.
#include "daemon/server/worker_session.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <optional>

#include "core/ipc/wire.h"
#include "core/shm/layout.h"

namespace deft::daemon {
namespace {

constexpr std::uint64_t kArenaBytes = std::uint64_t{16} << 20;

struct EndOfJob final : JobPort {  // hears of the worker's end, and of records
  void declare(WorkerPort&, Declaration) override {}
  void request(WorkerPort&, CollectiveRequest) override {}
  void record(WorkerPort&, const shm::Record&) override { records_before_the_end += ended ? 0 : 1; }
  void take_statistics(WorkerPort&, const ipc::Statistics&) override {}
  void link_failed(WorkerPort&, const Error&) override {}
  void store_set(const std::string&, std::span<const std::byte>) override {}
  void store_get(WorkerPort&, std::uint32_t, const std::string&) override {}
  void worker_ended(WorkerPort&, bool, const Error& reason) override { ended = reason; }
  void callback_failed(const Error&) override {}
  std::optional<Error> ended;
  unsigned records_before_the_end = 0;
};

// Keeps one session, as the server does.
struct Keeper final : SessionHandler {
  explicit Keeper(Reactor& reactor_of_all) : reactor(reactor_of_all) {}
  void session_attached(WorkerSession& attached) override { attached.serve(job); }
  std::string session_status(uid_t) override { return "{}"; }
  Result<void> change_settings(uid_t, const std::string&, const sched::SettingsChange&) override { return {}; }
  void trace(uid_t, const std::string&, const wire::TraceOrder&, const TraceTold& told) override {
    told(std::string());
  }
  void session_ended(WorkerSession&, const Error&) override {
    reactor.post([this] { session.reset(); });
  }
  Reactor& reactor;
  std::shared_ptr<EndOfJob> job = std::make_shared<EndOfJob>();
  std::shared_ptr<WorkerSession> session;
};

class WorkerSessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    worker_ = ipc::MessageSocket(Descriptor(ends[0]));
    keeper_.session = std::make_shared<WorkerSession>(
        reactor_, WorkerSession::Means{budget_, std::make_shared<QuotaAccount>(quotas_, 7)}, keeper_,
        ipc::MessageSocket(Descriptor(ends[1])), 1);
    ASSERT_TRUE(keeper_.session->start());
    ipc::Hello hello;
    hello.world = hello.local_size = 1;
    ASSERT_TRUE(worker_.send(ipc::encode(hello, ipc::MessageKind::kHello, {"job", "", "", "0"})));
    turn_until([this] { return keeper_.session->hello().job == "job"; });
  }
  // Turns of the event loop until `done`. No timer becomes due in them.
  void turn_until(const std::function<bool()>& done) {
    const TimeUs give_up_us = MonotonicClock::now() + 60'000'000;
    while (!done() && MonotonicClock::now() < give_up_us) reactor_.run_once();
    EXPECT_TRUE(done());
  }

  ManualClock clock_;
  Reactor reactor_{clock_};
  MemoryBudget budget_{std::uint64_t{64} << 20};
  const std::shared_ptr<UserQuotas> quotas_ = std::make_shared<UserQuotas>(quota_limits(Config()));
  Keeper keeper_{reactor_};
  ipc::MessageSocket worker_;
};

TEST_F(WorkerSessionTest, TheMemoryOfADeadWorkerIsGivenBackInTheTurnAfterItsDeathAndNoTimerIsWaitedFor) {
  unsigned made = 0;
  keeper_.session->make_rings([&](const Result<void>& rings) { made += rings ? 1 : 0; });
  keeper_.session->grant_arena(0, kArenaBytes, 1, [&](const auto& arena) { made += arena ? 1 : 0; });
  turn_until([&] { return made == 2; });
  EXPECT_GE(budget_.used_bytes(), kArenaBytes + shm::kControlSegmentBytes);
  EXPECT_FALSE(keeper_.job->ended);

  worker_.close();  // as the kernel does
  reactor_.run_once();
  ASSERT_TRUE(keeper_.job->ended) << "the job hears of it in the same turn";
  EXPECT_NE(keeper_.job->ended->message().find("rank 0 (pid "), std::string::npos);
  reactor_.run_once();
  EXPECT_EQ(keeper_.session, nullptr);
  turn_until([&] { return budget_.used_bytes() == 0; });  // the kernel takes the arena back on another thread
  const auto is_charged = [this] {
    const auto users = quotas_->status();  // a thread of theirs may live on for a while
    return !users.empty() && users[0]["memory"] != 0;
  };
  turn_until([&] { return !is_charged(); });
}

// A rank may hand in its last gradient and end, while others still need it.
TEST_F(WorkerSessionTest, WhatAWorkerHandedInBeforeItsGoodbyeReachesTheJob) {
  bool made = false;
  keeper_.session->make_rings([&](const Result<void>& rings) { made = rings.has_value(); });
  turn_until([&] { return made; });
  JobStart start;
  start.nodes = 1;
  start.node_of_rank = {0};
  start.heartbeat_us = 1'000'000;
  ASSERT_TRUE(keeper_.session->welcome(start));
  auto welcome = worker_.receive(MonotonicClock::now() + 60'000'000);
  ASSERT_TRUE(welcome);
  auto memory = shm::Segment::map(std::move(welcome->descriptors.at(0)), shm::kControlSegmentBytes).value();
  const auto rings = shm::ControlSegment::open(memory).value();
  shm::Producer submissions(rings.submission(), rings.submission_records());
  reactor_.add_poller([&, done = false](bool) mutable {  // after the pump's own look, and before the socket is read
    if (!std::exchange(done, true)) {
      submissions.push(shm::StageRecord{.stage = 1, .step = 3});
      EXPECT_TRUE(worker_.send(ipc::encode(ipc::Text{}, ipc::MessageKind::kGoodbye)));
    }
    return false;
  });
  turn_until([&] { return keeper_.job->ended.has_value(); });
  EXPECT_EQ(keeper_.job->records_before_the_end, 1u);
}

}  // namespace
}  // namespace deft::daemon
