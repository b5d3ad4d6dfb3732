// The event loop: order, cancellation, and callbacks that change what is watched.
#include "daemon/base/reactor.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

namespace deft::daemon {
namespace {

TEST(Reactor, RunsTimersInTheOrderOfTheirTimesAndNotCancelledOnes) {
  ManualClock clock;
  Reactor reactor(clock);
  std::string order;
  reactor.after(3000, [&] { order += "c"; });
  reactor.after(1000, [&] { order += "a"; });
  const auto cancelled = reactor.after(2000, [&] { order += "x"; });
  reactor.after(2000, [&] { order += "b"; });
  reactor.after(4000, [&] { reactor.stop(); });
  reactor.cancel(cancelled);
  reactor.cancel(9999);
  clock.advance(5000);
  reactor.run();
  EXPECT_EQ(order, "abc");
}

// The process stands still, as between SIGSTOP and SIGCONT. Timers that were due meanwhile keep their distances.
TEST(Reactor, DeadlinesDoNotCountTheTimeInWhichTheProcessStoodStill) {
  ManualClock clock;
  Reactor reactor(clock);
  const TimeUs began_us = reactor.now_us();
  TimeUs deadline_us = 0;
  int beats = 0;
  const std::function<void()> beat = [&] {
    ++beats;
    reactor.after(100'000, beat);
  };
  reactor.after(100'000, beat);
  reactor.after(3'000'000, [&] {
    deadline_us = reactor.now_us();
    reactor.stop();
  });
  reactor.add_poller([&](bool) {  // time passes: a round takes a hundredth of a second, and one of them 20 s
    clock.advance(beats == 10 ? 20'000'000 : 10'000);
    beats += beats == 10;
    return true;
  });
  reactor.run();
  EXPECT_GE(beats, 25) << "the heartbeats went on until the deadline";
  EXPECT_LT(deadline_us - began_us, 3'200'000);
  EXPECT_GT(clock.now_us(), 20'000'000);
}

// A peer's verdict, or a deadline of another thread, may be looked at before the loop notices.
TEST(Reactor, NobodySeesAStandstillBeforeTheLoopNoticesIt) {
  ManualClock machine;
  Reactor reactor(machine);
  const TimeUs began_us = reactor.now_us();
  reactor.after(100'000, [] {});
  bool slept = false;
  const auto still_us = [&] { return reactor.clock().stood_still_us(10'000'000); };
  reactor.add_poller([&](bool about_to_sleep) {
    if (!about_to_sleep) return false;
    machine.advance(100'000 + RunningClock::kStandstillUs);
    EXPECT_EQ(still_us(), 0) << "a timer that is late is no standstill";
    machine.advance(2'000'000);
    EXPECT_EQ(still_us(), 2'000'000 + RunningClock::kStandstillUs);
    EXPECT_EQ(reactor.now_us() - began_us, 100'000 + RunningClock::kStandstillUs) << "the clock waits";
    slept = true;
    reactor.stop();
    return true;
  });
  reactor.run();
  EXPECT_TRUE(slept);
  EXPECT_EQ(still_us(), 2'000'000 + RunningClock::kStandstillUs) << "the loop has left it out";
  EXPECT_EQ(reactor.now_us() - began_us, 100'000 + RunningClock::kStandstillUs);
  machine.advance(1000);
  EXPECT_EQ(reactor.now_us() - began_us, 101'000 + RunningClock::kStandstillUs) << "it goes on where it waited";
}

// The timers that are late after a standstill take their time.
TEST(Reactor, AStandstillIsNoticedOnce) {
  ManualClock machine;
  Reactor reactor(machine);
  reactor.after(100'000, [&] {
    machine.advance(1000);
    reactor.stop();
  });
  bool slept = false;
  reactor.add_poller([&](bool about_to_sleep) {
    if (about_to_sleep && !slept) machine.advance(3'100'000);
    slept |= about_to_sleep;
    return about_to_sleep;
  });
  reactor.run();
  EXPECT_EQ(reactor.clock().stood_still_us(10'000'000), 3'000'000);
}

// The first event after a standstill often replaces a timer by a later one: that hides no standstill.
TEST(Reactor, ATimerThatIsReplacedStillTellsOfAStandstill) {
  ManualClock machine;
  Reactor reactor(machine);
  auto timer = reactor.after(100'000, [] {});
  const TimeUs began_us = reactor.now_us();
  TimeUs woke_us = 0;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "x", 1), 1);
  ASSERT_TRUE(reactor.watch(ends[0], EPOLLIN, [&](std::uint32_t) {
    machine.advance(20'000'000);  // while the loop waited for events
    reactor.cancel(timer);
    timer = reactor.after(5'000'000, [] {});
    woke_us = reactor.now_us();
    reactor.unwatch(ends[0]);
    reactor.stop();
  }));
  reactor.run();
  EXPECT_EQ(woke_us - began_us, 100'000 + RunningClock::kStandstillUs);
  EXPECT_EQ(reactor.now_us(), woke_us);
  EXPECT_EQ(reactor.clock().stood_still_us(10'000'000), 19'900'000);
  for (const int end : ends) close(end);
}

TEST(Reactor, TheInnermostNameTellsWhichCallbackTookLong) {
  ManualClock clock;
  Reactor reactor(clock);
  const auto longest = [&] {
    reactor.run_once();
    return reactor.meter().json(clock.now_us())["longest_callback"]["what"];
  };
  reactor.post([&] { clock.advance(1000); });
  EXPECT_EQ(longest(), "posted work");
  reactor.post([&] { run_for({}, "a request", [&] { clock.advance(2000); }); });
  EXPECT_EQ(longest(), "a request");
  reactor.after(0, [&] {
    name_callback("a heartbeat");
    clock.advance(3000);
  });
  EXPECT_EQ(longest(), "a heartbeat");
  reactor.post([&] { clock.advance(4000); });
  EXPECT_EQ(longest(), "posted work") << "a name is forgotten";
}

TEST(RunningClock, RemembersForAWhileThatTheProcessStoodStill) {
  ManualClock machine;
  RunningClock clock(machine);
  clock.expect_by(1'000'000);
  machine.advance(1'000'000);
  EXPECT_EQ(clock.leave_out_standstill(), 0);
  EXPECT_EQ(clock.stood_still_us(10'000'000), 0) << "it never did";
  machine.advance(2'000'000);
  EXPECT_EQ(clock.leave_out_standstill(), 2'000'000);
  clock.expect_by({});
  EXPECT_EQ(clock.now_us(), 1'000'000 + RunningClock::kStandstillUs);
  machine.advance(300'000);
  EXPECT_EQ(clock.stood_still_us(500'000), 2'000'000);
  machine.advance(300'000);
  EXPECT_EQ(clock.stood_still_us(500'000), 0) << "longer ago";
}

TEST(Reactor, WakesForWorkPostedByAnotherThread) {
  Reactor reactor;
  int ran = 0;
  std::thread poster([&] {
    for (int i = 0; i < 1000; ++i) reactor.post([&] { ++ran; });
    reactor.stop();
  });
  reactor.run();
  poster.join();
  EXPECT_EQ(ran, 1000);
}

TEST(Reactor, ACallbackMayUnwatchAnotherDescriptorOfTheSameRound) {
  Reactor reactor;
  int pipes[2][2];
  int calls = 0;
  for (auto& p : pipes) {
    ASSERT_EQ(pipe(p), 0);
    ASSERT_EQ(write(p[1], "x", 1), 1);
  }
  for (int i = 0; i < 2; ++i)
    ASSERT_TRUE(reactor.watch(pipes[i][0], EPOLLIN, [&](std::uint32_t) {
      ++calls;
      reactor.unwatch(pipes[0][0]);
      reactor.unwatch(pipes[1][0]);
    }));
  reactor.after(2000, [&] { reactor.stop(); });
  reactor.run();
  EXPECT_EQ(calls, 1);
  for (auto& p : pipes) close(p[0]), close(p[1]);
}

TEST(Reactor, APollerIsAskedBeforeEverySleepAndMayRemoveItself) {
  Reactor reactor;
  int asked = 0;
  Reactor::PollerId id = 0;
  id = reactor.add_poller([&](bool about_to_sleep) {
    if (!about_to_sleep) return false;
    ++asked;
    reactor.remove_poller(id);
    reactor.after(1000, [&] { reactor.stop(); });  // it sleeps once more
    return true;
  });
  reactor.run();
  EXPECT_EQ(asked, 1);
}

// A session or a job, as far as the loop knows it.
struct Told final : CallbackOwner {
  void callback_failed(const Error& error) override { errors.push_back(error); }
  std::vector<Error> errors;
};

TEST(Reactor, WhatACallbackThrowsReachesItsOwnerAloneAndTheLoopGoesOn) {
  const std::uint64_t before = failed_callbacks();
  Reactor reactor;
  const auto guilty = std::make_shared<Told>();
  const auto other = std::make_shared<Told>();
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  ASSERT_EQ(write(pipes[1], "x", 1), 1);
  Reactor::PollerId poller = 0;
  run_for(guilty, "a callback", [&] {
    reactor.post([] { throw std::bad_alloc(); });
    reactor.after(1000, [] { throw std::system_error(EAGAIN, std::generic_category(), "thread"); });
    ASSERT_TRUE(reactor.watch(pipes[0], EPOLLIN, [&](std::uint32_t) {
      reactor.unwatch(pipes[0]);
      throw std::runtime_error("event");
    }));
    poller = reactor.add_poller([&](bool) -> bool {
      reactor.remove_poller(poller);
      throw 7;
    });
  });
  int ran = 0;
  run_for(other, "a callback", [&] {
    reactor.after(2000, [&] {
      ++ran;
      reactor.stop();
    });
  });
  reactor.run();
  EXPECT_EQ(ran, 1);
  EXPECT_TRUE(other->errors.empty());
  EXPECT_EQ(failed_callbacks() - before, 4u);
  ASSERT_EQ(guilty->errors.size(), 4u);
  const auto exhausted = std::count_if(guilty->errors.begin(), guilty->errors.end(),
                                       [](const Error& error) { return error.kind == ErrorKind::kExhausted; });
  EXPECT_EQ(exhausted, 2);
  for (auto fd : pipes) close(fd);
}

TEST(Reactor, ACallbackThatACallbackMadeHasTheSameOwner) {
  Reactor reactor;
  const auto owner = std::make_shared<Told>();
  run_for(owner, "a callback", [&] {
    reactor.post([&] {
      reactor.after(0, [&] {
        reactor.stop();
        throw std::bad_alloc();
      });
    });
  });
  reactor.run();
  EXPECT_EQ(owner->errors.size(), 1u);
}

TEST(Reactor, WhatIsDoneForAnotherOwnerMeanwhileFailsThatOne) {
  Reactor reactor;
  const auto session = std::make_shared<Told>();
  const auto job = std::make_shared<Told>();
  bool went_on = false;
  run_for(session, "a callback", [&] {
    run_for(job, "a callback", [] { throw std::bad_alloc(); });
    went_on = true;
    throw std::runtime_error("its own");
  });
  EXPECT_TRUE(went_on);
  ASSERT_EQ(job->errors.size(), 1u);
  ASSERT_EQ(session->errors.size(), 1u);
  EXPECT_EQ(session->errors[0].what, "a callback failed: its own");
}

TEST(Reactor, AnOwnerThatIsGoneAndOneThatThrowsItselfHarmNobody) {
  const std::uint64_t before = failed_callbacks();
  struct Throws final : CallbackOwner {
    void callback_failed(const Error&) override { throw std::bad_alloc(); }
  };
  Reactor reactor;
  run_for(std::make_shared<Throws>(), "a callback", [] { throw std::bad_alloc(); });
  run_for(std::weak_ptr<CallbackOwner>(), "a callback", [] { throw std::bad_alloc(); });
  EXPECT_EQ(failed_callbacks() - before, 2u);
}

TEST(Reactor, AThreadMayPostForAnOwner) {
  Reactor reactor;
  const auto owner = std::make_shared<Told>();
  std::thread([&] {
    EXPECT_TRUE(current_owner().expired());
    reactor.post([] { throw std::bad_alloc(); }, owner);
    reactor.stop();
  }).join();
  reactor.run();
  EXPECT_EQ(owner->errors.size(), 1u);
}

}  // namespace
}  // namespace deft::daemon
