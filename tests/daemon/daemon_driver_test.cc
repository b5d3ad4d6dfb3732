// The driver of a link that the test plays: what it starts, what it waits for, and what it says of it.
#include "daemon/channel/daemon_driver.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <latch>
#include <thread>

namespace deft::daemon {
namespace {

using std::chrono::milliseconds;

// Writes down its calls. A finish lasts until the test lets it; it fails from the one that is told on.
class ScriptedLink final : public link::Link {
 public:
  struct Script {
    std::mutex mutex;
    std::condition_variable changed;
    std::string calls;
    int allowed = 0;  // finishes
    int fails_at = 1000;
    bool aborted = false;
    bool woken = false;
    int wakes = 0;
    std::deque<std::size_t> places;  // of those that end, where the link does not keep the order

    void allow(int count) {
      const std::lock_guard lock(mutex);
      allowed += count;
      changed.notify_all();
    }
    void await_calls(const std::string& expected) {
      std::unique_lock lock(mutex);
      changed.wait_for(lock, std::chrono::seconds(5), [&] { return calls.size() >= expected.size(); });
      EXPECT_EQ(calls, expected);
    }
  };

  ScriptedLink(Script& script, std::size_t depth, Script* express = nullptr) : script_(script), depth_(depth) {
    if (express != nullptr) express_ = std::make_unique<ScriptedLink>(*express, depth);
  }
  [[nodiscard]] Link* express() override { return express_.get(); }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::size_t depth() const override { return depth_; }
  Result<void> all_reduce(std::byte*, std::size_t, model::DType, model::ReduceOp) override { return {}; }
  Result<void> start_all_reduce(std::byte*, std::size_t count, model::DType, model::ReduceOp, std::uint32_t) override {
    say("+" + std::to_string(count));
    return {};
  }
  Result<void> finish_all_reduce() override {
    std::unique_lock lock(script_.mutex);
    script_.changed.wait(lock, [this] { return script_.aborted || script_.allowed > 0; });
    if (script_.aborted) return fail(ErrorKind::kLost, "aborted");
    --script_.allowed;
    script_.calls += "-";
    script_.changed.notify_all();
    if (--script_.fails_at < 0) return fail(ErrorKind::kLost, "the wire was cut");
    return {};
  }
  Result<std::optional<std::size_t>> finish_next() override {
    if (script_.places.empty()) return Link::finish_next();
    {
      std::unique_lock lock(script_.mutex);
      script_.changed.wait(lock, [this] { return script_.aborted || script_.allowed > 0 || script_.woken; });
      script_.woken = false;
      if (!script_.aborted && script_.allowed == 0) return std::nullopt;
    }
    if (auto ok = finish_all_reduce(); !ok) return tl::unexpected(ok.error());
    const std::size_t place = script_.places.front();
    script_.places.pop_front();
    return place;
  }
  void wake() override {
    const std::lock_guard lock(script_.mutex);
    script_.woken = true;
    ++script_.wakes;
    script_.changed.notify_all();
  }
  Result<void> broadcast(std::byte*, std::size_t, std::uint32_t) override {
    say("b");
    return {};
  }
  Result<void> all_gather(std::byte*, std::span<const std::size_t>) override { return {}; }
  void abort(std::string_view) override {
    {
      const std::lock_guard lock(script_.mutex);
      script_.aborted = true;
      script_.changed.notify_all();
    }
    if (express_) express_->abort({});
  }

 private:
  void say(const std::string& call) {
    const std::lock_guard lock(script_.mutex);
    script_.calls += call;
    script_.changed.notify_all();
  }
  Script& script_;
  const std::size_t depth_;
  const std::string name_ = "scripted";
  std::unique_ptr<ScriptedLink> express_;
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
          return std::make_unique<ScriptedLink>(script_, depth, has_express_ ? &express_ : nullptr);
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
    reactor_.after(5'000'000, [this] { reactor_.stop(); });
    if (done_.size() < transfers) reactor_.run();
    ASSERT_EQ(done_.size(), transfers);
  }

  // Of the driver's threads, after an abort.
  void await_end() {
    for (int i = 0; i < 500 && !driver_->finished(); ++i) std::this_thread::sleep_for(milliseconds(10));
    EXPECT_TRUE(driver_->finished());
  }

  Reactor reactor_;
  ScriptedLink::Script script_, express_;
  bool has_express_ = false;
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
  script_.allow(2);
  run_until_done(3);
  EXPECT_EQ(script_.calls, "+1-b+3-");
}

TEST_F(DaemonDriverTest, TheTimesOfOverlappingTransfersAddUpToTheWhole) {
  const TimeUs began = MonotonicClock::now();
  open_with(2, 2);
  script_.await_calls("+1+2");
  std::this_thread::sleep_for(milliseconds(30));
  script_.allow(1);
  std::this_thread::sleep_for(milliseconds(10));
  script_.allow(1);
  run_until_done(2);
  const TimeUs all = MonotonicClock::now() - began;
  EXPECT_FALSE(done_[0].overlapped);
  EXPECT_TRUE(done_[1].overlapped);
  EXPECT_GE(*done_[0].link_us, 30'000);
  EXPECT_GT(*done_[1].link_us, 0);
  EXPECT_LE(*done_[0].link_us + *done_[1].link_us, all);  // the second not from its own start
  EXPECT_LE(done_[0].busy_us + done_[1].busy_us, all);
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

// A large transfer: `count` floats, more than what may pass others.
Transfer large(Transfer t, std::size_t count = 5000) {
  t.count = count;
  return t;
}

TEST_F(DaemonDriverTest, WhatIsSmallPassesWhatIsLargeOnTheExpressWay) {
  has_express_ = true;
  open(2);
  driver_->push(large(transfer(1)));
  driver_->push(large(transfer(2), 4097));
  driver_->push(large(transfer(3), 4096));  // 16 KiB
  driver_->push(transfer(4));
  driver_->push(transfer(5, ipc::Collective::kBroadcast));  // not an all-reduce: it waits for the link
  script_.await_calls("+5000+4097");
  express_.await_calls("+4096+4");
  express_.allow(2);
  run_until_done(2);
  EXPECT_EQ(done_[0].token, 3U);
  EXPECT_EQ(done_[1].token, 4U);
  script_.allow(2);
  run_until_done(5);
  EXPECT_EQ(done_[2].token, 1U);
  EXPECT_EQ(script_.calls, "+5000+4097--b");
}

TEST_F(DaemonDriverTest, OneThatComesWakesItsOwnWayAlone) {
  has_express_ = true;
  script_.places = {0};
  express_.places = {1, 0};
  open(2);
  driver_->push(large(transfer(1)));
  script_.await_calls("+5000");
  driver_->push(transfer(2));
  express_.await_calls("+2");
  const int wakes = script_.wakes;
  driver_->push(transfer(3));
  express_.await_calls("+2+3");
  EXPECT_EQ(script_.wakes, wakes);
  express_.allow(2);
  run_until_done(2);
  script_.allow(1);
  run_until_done(3);
}

TEST_F(DaemonDriverTest, OnlyWhatHadTheWireAloneIsMeasuredOnTheExpressWay) {
  has_express_ = true;
  open(2);
  driver_->push(transfer(1));
  express_.await_calls("+1");
  express_.allow(1);
  run_until_done(1);
  EXPECT_TRUE(done_[0].link_us);

  driver_->push(transfer(2));
  express_.await_calls("+1-+2");
  driver_->push(large(transfer(3)));  // begins while the small one is under way
  script_.await_calls("+5000");
  express_.allow(1);
  run_until_done(2);
  EXPECT_FALSE(done_[1].link_us);
  EXPECT_EQ(done_[1].busy_us, 0);

  driver_->push(transfer(4));
  express_.await_calls("+1-+2-+4");
  express_.allow(1);
  script_.allow(1);
  run_until_done(4);
  for (const TransferDone& done : done_) EXPECT_EQ(done.link_us.has_value(), done.token == 1 || done.token == 3);
}

TEST_F(DaemonDriverTest, AbortEndsBothWays) {
  has_express_ = true;
  open(2);
  driver_->push(large(transfer(1)));
  driver_->push(transfer(2));
  script_.await_calls("+5000");
  express_.await_calls("+2");
  driver_->abort("enough");
  await_end();
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
  reactor_.after(1000, [this] { reactor_.stop(); });
  reactor_.run();
  EXPECT_TRUE(done_.empty());
  EXPECT_EQ(script_.calls, "+1+2");
}

}  // namespace
}  // namespace deft::daemon
