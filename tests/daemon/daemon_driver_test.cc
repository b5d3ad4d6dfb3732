// The driver of a link that the test plays: what it starts, what it waits for, and what it says of it.
#include "daemon/channel/daemon_driver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <deque>
#include <latch>
#include <new>
#include <random>
#include <system_error>
#include <thread>

#include "core/compress/registry.h"

namespace deft::daemon {
namespace {

constexpr std::chrono::seconds kLong{60};  // nothing takes as long, unless it never ends
constexpr std::size_t kOvertakes = 999;    // a request of so many elements overtakes all others

// Writes down its calls. A request lasts until the test lets it end; those from number `fails_at` on fail.
class ScriptedLink final : public link::Link {
 public:
  struct Script {
    std::mutex mutex;
    std::condition_variable changed;
    std::string calls;
    int allowed = 0;  // requests that may end
    int fails_at = 1000;
    bool aborted = false;
    bool interrupted = false;
    std::deque<std::size_t> places;  // of the requests that end next among those in flight; 0 if there is none

    void allow(int count) {
      const std::lock_guard lock(mutex);
      allowed += count;
      changed.notify_all();
    }
    void await_calls(const std::string& expected) {
      std::unique_lock lock(mutex);
      changed.wait_for(lock, kLong, [&] { return calls.size() >= expected.size(); });
      EXPECT_EQ(calls, expected);
    }
  };

  ScriptedLink(Script& script, std::size_t depth)
      : Link("scripted", link::LinkGroup{.node = 0, .nodes = 2, .prefix = {}, .store = {}}, depth, depth),
        script_(script) {}

 protected:
  Result<void> start(const link::WorkRequest& request) override {
    const std::lock_guard lock(script_.mutex);
    script_.calls += request.reduces() ? "+" + std::to_string(request.count) : "b";
    if (request.observer) request.observer->moved({.request = request.id, .peer = 1, .bytes = request.bytes()});
    in_flight_.push_back(request.id);
    script_.changed.notify_all();
    return {};
  }
  Result<std::optional<std::uint64_t>> await() override {
    std::unique_lock lock(script_.mutex);
    script_.changed.wait(lock, [this] { return script_.aborted || script_.allowed > 0 || script_.interrupted; });
    if (script_.aborted) return fail(ErrorKind::kLost, "aborted");
    if (script_.allowed == 0) {
      script_.interrupted = false;
      return std::nullopt;
    }
    --script_.allowed;
    script_.calls += "-";
    script_.changed.notify_all();
    if (--script_.fails_at < 0) return fail(ErrorKind::kLost, "the wire was cut");
    std::ptrdiff_t place = 0;
    if (!script_.places.empty()) {
      place = static_cast<std::ptrdiff_t>(script_.places.front());
      script_.places.pop_front();
    }
    const std::uint64_t id = in_flight_[static_cast<std::size_t>(place)];
    in_flight_.erase(in_flight_.begin() + place);
    return id;
  }
  void settle() override { in_flight_.clear(); }
  void stop(const Error&) override {
    const std::lock_guard lock(script_.mutex);
    script_.aborted = true;
    script_.changed.notify_all();
  }
  void interrupt_await() override {
    const std::lock_guard lock(script_.mutex);
    script_.interrupted = true;
    script_.changed.notify_all();
  }
  [[nodiscard]] bool overtakes(const link::WorkRequest& request) const override { return request.count == kOvertakes; }

 private:
  Script& script_;
  std::deque<std::uint64_t> in_flight_;
};

class DaemonDriverTest : public ::testing::Test {
 protected:
  // The driver finds all of these when its link is open, however fast it is.
  void open_with(std::size_t depth, std::uint64_t transfers) {
    open_later(depth);
    for (std::uint64_t token = 1; token <= transfers; ++token) driver_->push(transfer(token));
    pushed_.count_down();
  }
  void open(std::size_t depth) {
    pushed_.count_down();
    open_later(depth);
  }
  void open_later(std::size_t depth) {
    driver_ = std::make_unique<DaemonDriver>(
        reactor_, "scripted", 0,
        [this, depth]() -> Result<std::unique_ptr<link::Link>> {
          pushed_.wait();
          return std::make_unique<ScriptedLink>(script_, depth);
        },
        [](const SubCommTask&) { return Transfer{}; }, [](const Result<void>&) {},
        [this](TransferDone done) {
          done_.push_back(std::move(done));
          if (done_.size() == expected_) reactor_.stop();
        });
  }
  Transfer transfer(std::uint64_t token, ipc::Collective collective = ipc::Collective::kAllReduce) {
    Transfer t;
    t.token = token;
    t.collective = collective;
    t.buffers = {memory_.data()};
    t.count = token;
    return t;
  }
  void run_until_done(std::size_t transfers) {
    expected_ = transfers;
    reactor_.after(std::chrono::microseconds(kLong).count(), [this] { reactor_.stop(); });
    if (done_.size() < transfers) reactor_.run();
    ASSERT_EQ(done_.size(), transfers);
  }

  // The clock moves on, so that a time that is counted twice is seen. How far is measured by whoever calls this.
  static void let_time_pass() {
    const TimeUs until_us = MonotonicClock::now() + 1000;
    while (MonotonicClock::now() < until_us) std::this_thread::yield();
  }

  // Waits for the end of the driver's threads after an abort.
  void await_end() {
    const TimeUs deadline_us = MonotonicClock::now() + std::chrono::microseconds(kLong).count();
    while (!driver_->finished() && MonotonicClock::now() < deadline_us) std::this_thread::yield();
    EXPECT_TRUE(driver_->finished());
  }

  Reactor reactor_;
  ScriptedLink::Script script_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(64 << 10);
  std::vector<TransferDone> done_;
  std::size_t expected_ = 0;
  std::latch pushed_{1};
  std::unique_ptr<DaemonDriver> driver_;
};

TEST_F(DaemonDriverTest, StartsAsManyAsTheLinkTakesAndFinishesThemInOrder) {
  open_with(2, 4);
  script_.await_calls("+1+2");
  script_.allow(1);
  script_.await_calls("+1+2-+3");
  script_.allow(3);
  run_until_done(4);
  EXPECT_EQ(script_.calls, "+1+2-+3-+4--");
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(done_[i].token, i + 1);
}

TEST_F(DaemonDriverTest, ATransferTellsOfItsOwnSegmentsIfThatIsWanted) {
  open(3);
  for (const std::uint64_t token : {1U, 2U, 3U}) {
    Transfer one = transfer(token);
    one.tells_segments = token != 1;
    driver_->push(one);
  }
  script_.allow(3);
  run_until_done(3);
  EXPECT_EQ(done_[0].segments, nullptr);
  for (const std::size_t i : {1U, 2U}) {
    ASSERT_NE(done_[i].segments, nullptr);
    ASSERT_EQ(done_[i].segments->moves().size(), 1U);
    EXPECT_EQ(done_[i].segments->moves()[0].bytes, done_[i].bytes);
    EXPECT_EQ(done_[i].segments->moves()[0].request, 0U) << "the transfer's first";
  }
}

TEST(SegmentLog, LeavesOutWhatIsMoreThanItsRoom) {
  EXPECT_EQ(link::SegmentLog::most_for(std::size_t{1} << 40, 2), link::SegmentLog::kMost);
  link::SegmentLog log(5, 2);
  EXPECT_TRUE(log.moves().empty());
  for (const std::uint64_t request : {5U, 6U, 7U}) log.moved({.request = request});
  ASSERT_EQ(log.moves().size(), 2U);
  EXPECT_EQ(log.moves()[1].request, 1U);
}

TEST_F(DaemonDriverTest, OneThatIsAloneIsNotKeptWaitingForAnother) {
  open(3);
  driver_->push(transfer(1));
  script_.allow(1);
  run_until_done(1);
  EXPECT_FALSE(done_[0].overlapped);
}

TEST_F(DaemonDriverTest, OtherCollectivesHaveTheLinkAlone) {
  open_later(3);
  driver_->push(transfer(1));
  driver_->push(transfer(2, ipc::Collective::kBroadcast));
  driver_->push(transfer(3));
  pushed_.count_down();  // it finds all three, and is free to begin any of them
  script_.await_calls("+1");
  script_.allow(3);
  run_until_done(3);
  EXPECT_EQ(script_.calls, "+1-b-+3-");
}

TEST_F(DaemonDriverTest, TheTimesOfOverlappingTransfersAddUpToTheWhole) {
  const TimeUs began_us = MonotonicClock::now();
  open_with(2, 2);
  script_.await_calls("+1+2");
  const TimeUs started_us = MonotonicClock::now();
  let_time_pass();
  const TimeUs first_us = MonotonicClock::now() - started_us;
  script_.allow(1);
  run_until_done(1);
  const TimeUs reported_us = MonotonicClock::now();
  let_time_pass();
  const TimeUs second_us = MonotonicClock::now() - reported_us;
  script_.allow(1);
  run_until_done(2);
  const TimeUs all_us = MonotonicClock::now() - began_us;
  EXPECT_FALSE(done_[0].overlapped);
  EXPECT_TRUE(done_[1].overlapped);
  EXPECT_GE(*done_[0].link_us, first_us);
  EXPECT_GE(*done_[1].link_us, second_us);
  EXPECT_LE(*done_[0].link_us + *done_[1].link_us, all_us) << "the second not from its own start";
  EXPECT_LE(done_[0].busy_us + done_[1].busy_us, all_us);
}

TEST_F(DaemonDriverTest, OneThatTheLinkLetsPassIsReportedFirstAndTheTimesStillAddUp) {
  const TimeUs began = MonotonicClock::now();
  script_.places = {2, 0, 0};
  open_with(3, 3);
  script_.await_calls("+1+2+3");
  script_.allow(3);
  run_until_done(3);
  EXPECT_EQ(done_[0].token, 3U);
  EXPECT_EQ(done_[1].token, 1U);
  EXPECT_EQ(done_[2].token, 2U);
  TimeUs sum = 0;
  for (const TransferDone& done : done_) {
    EXPECT_TRUE(done.overlapped);
    sum += *done.link_us;
  }
  EXPECT_LE(sum, MonotonicClock::now() - began);
}

TEST_F(DaemonDriverTest, OneThatComesWhileAnotherIsWaitedForStartsAtOnce) {
  script_.places = {1, 0};
  open(2);
  driver_->push(transfer(1));
  script_.await_calls("+1");
  driver_->push(transfer(2));
  script_.await_calls("+1+2");
  script_.allow(2);
  run_until_done(2);
  EXPECT_EQ(done_[0].token, 2U);
}

TEST_F(DaemonDriverTest, ATransferThatOvertakesOthersIsNotMeasured) {
  const auto small = [this](std::uint64_t token) {
    Transfer t = transfer(token);
    t.count = kOvertakes;
    return t;
  };
  open(2);
  driver_->push(small(1));
  script_.await_calls("+999");
  script_.allow(1);
  run_until_done(1);
  EXPECT_TRUE(done_[0].link_us);  // it had the wire alone

  driver_->push(transfer(2));
  script_.await_calls("+999-+2");
  driver_->push(small(3));
  script_.await_calls("+999-+2+999");
  {
    const std::lock_guard lock(script_.mutex);
    script_.places = {1};
  }
  script_.allow(1);
  run_until_done(2);
  EXPECT_EQ(done_[1].token, 3U);
  EXPECT_FALSE(done_[1].link_us);
  EXPECT_EQ(done_[1].busy_us, 0);

  driver_->push(small(4));
  script_.await_calls("+999-+2+999-+999");
  script_.allow(2);  // the large one ends first
  run_until_done(4);
  for (const TransferDone& done : done_) EXPECT_EQ(done.link_us.has_value(), done.token == 1 || done.token == 2);
}

// A second request depends on the first one. The next transfer waits for it, so that all nodes submit in one order.
TEST_F(DaemonDriverTest, ASecondRequestComesBeforeThoseOfTheNextTransfer) {
  const compress::MatrixShape shape{64, 64, 1};
  auto codings = std::make_shared<Codings>();
  codings->coded.push_back({compress::make_codec("lowrank/rank=1,method=powersgd").value(),
                            {{0, shape.elements()}},
                            {{shape, std::make_shared<Factors>(), 0}}});
  codings->residuals = std::make_shared<Residuals>(shape.elements());
  Transfer coded = transfer(1);
  coded.count = shape.elements();
  coded.codings = codings;
  open_later(3);
  driver_->push(coded);
  driver_->push(transfer(2));
  pushed_.count_down();
  script_.await_calls("+64");
  script_.allow(1);
  script_.await_calls("+64-+64+2");
  script_.allow(2);
  run_until_done(2);
  EXPECT_EQ(script_.calls, "+64-+64+2--");
  EXPECT_EQ(done_[0].token, 1U);
  for (const TransferDone& done : done_) EXPECT_TRUE(done.result);
  EXPECT_EQ(done_[0].wire_bytes, 2 * 64 * sizeof(float));
  EXPECT_EQ(std::ranges::count(done_[0].spans, trace::TransferStage::kLink, &StageSpan::stage), 1);
}

// The link is stopped when the channel has decoded a transfer, and before the reactor hears of it. So the transfer runs again.
TEST_F(DaemonDriverTest, AResidualIsBookedOnceAlthoughAReplayDecodesAgain) {
  constexpr std::size_t kCount = 8192;
  auto codings = std::make_shared<Codings>();
  codings->coded.push_back({compress::make_codec("int8").value(), {{0, kCount}}, {}});
  codings->dtype = model::DType::kBFloat16;  // node 0 keeps what rounding a sum to it leaves out
  codings->residuals = std::make_shared<Residuals>(kCount);
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  auto* const values = reinterpret_cast<std::uint16_t*>(memory_.data());
  for (std::size_t i = 0; i < kCount; ++i)
    values[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16);
  const auto residuals = [&] {
    const auto use = codings->residuals->use(0, kCount);
    return std::vector<float>(use.values().begin(), use.values().end());
  };
  const auto kept = std::make_shared<ReplayBuffer>();
  const auto run = [&](std::uint64_t token) {
    Transfer coded = transfer(token);
    coded.count = kCount;
    coded.dtype = model::DType::kBFloat16;
    coded.codings = codings;
    coded.replay_buffer = kept;
    driver_->push(coded);
    script_.allow(1);
  };
  open(1);
  run(1);
  run_until_done(1);
  ASSERT_TRUE(done_[0].result) << done_[0].result.error().message();
  const std::vector<float> booked = residuals();
  const std::vector<std::byte> result(memory_.begin(), memory_.begin() + 2 * kCount);
  run(2);
  run_until_done(2);
  EXPECT_EQ(residuals(), booked);
  EXPECT_EQ(std::vector<std::byte>(memory_.begin(), memory_.begin() + 2 * kCount), result);
}

TEST_F(DaemonDriverTest, AFailureOfTheLinkEndsAllThatWait) {
  script_.fails_at = 0;
  open_with(2, 4);
  script_.allow(1);
  run_until_done(4);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(done_[i].token, i + 1);
    ASSERT_FALSE(done_[i].result);
    EXPECT_EQ(done_[i].result.error().kind, ErrorKind::kLost);
  }
}

TEST_F(DaemonDriverTest, ARefusedTransferLeavesTheOthersAsTheyWere) {
  open_later(3);
  driver_->push(transfer(2));
  Transfer refused = transfer(3);
  refused.op = static_cast<model::ReduceOp>(77);
  driver_->push(refused);
  driver_->push(transfer(4));
  pushed_.count_down();
  script_.await_calls("+2+4");
  script_.allow(2);
  run_until_done(3);
  EXPECT_EQ(done_[0].token, 3U);
  EXPECT_EQ(done_[0].result.error().kind, ErrorKind::kInvalid);
  for (const std::size_t i : {1U, 2U}) EXPECT_TRUE(done_[i].result);
}

TEST_F(DaemonDriverTest, AnErrorComesToEachThatItConcernsInOrder) {
  script_.fails_at = 1;
  open_with(2, 3);
  script_.allow(3);
  run_until_done(3);
  EXPECT_TRUE(done_[0].result);
  for (std::size_t i = 1; i < 3; ++i) {
    ASSERT_FALSE(done_[i].result);
    EXPECT_NE(done_[i].result.error().message().find("link scripted"), std::string::npos);
  }
}

TEST_F(DaemonDriverTest, AbortEndsAllUnderWayAndNothingIsPostedAfterwards) {
  open_with(2, 3);
  script_.await_calls("+1+2");
  driver_->abort("enough");
  await_end();
  while (reactor_.run_once()) {
  }
  EXPECT_TRUE(done_.empty());
  EXPECT_EQ(script_.calls, "+1+2");
}

// Memory or threads may be used up while a link opens: the job hears of it, and the daemon lives.
TEST(DaemonDriverFailure, WhatTheThreadThrowsBecomesAnErrorOfTheLink) {
  for (const bool memory : {true, false}) {
    Reactor reactor;
    Result<void> opened;
    DaemonDriver driver(
        reactor, "gloo:eth0", 0,
        [memory]() -> Result<std::unique_ptr<link::Link>> {
          if (memory) throw std::bad_alloc();
          throw std::system_error(EAGAIN, std::generic_category(), "thread");
        },
        [](const SubCommTask&) { return Transfer(); },
        [&](Result<void> result) {
          opened = std::move(result);
          reactor.stop();
        },
        [](TransferDone) {});
    reactor.run();
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().kind, ErrorKind::kExhausted);
    EXPECT_NE(opened.error().message().find("gloo:eth0"), std::string::npos);
  }
}

}  // namespace
}  // namespace deft::daemon
