// The event loop: order, cancellation, and callbacks that change what is watched.
#include "daemon/base/reactor.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <thread>

namespace deft::daemon {
namespace {

TEST(Reactor, RunsTimersInTheOrderOfTheirTimesAndNotCancelledOnes) {
  Reactor reactor;
  std::string order;
  reactor.after(3000, [&] { order += "c"; });
  reactor.after(1000, [&] { order += "a"; });
  const auto cancelled = reactor.after(2000, [&] { order += "x"; });
  reactor.after(2000, [&] { order += "b"; });
  reactor.after(4000, [&] { reactor.stop(); });
  reactor.cancel(cancelled);
  reactor.cancel(9999);
  reactor.run();
  EXPECT_EQ(order, "abc");
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
    return true;
  });
  reactor.after(1000, [&] { reactor.stop(); });
  reactor.run();
  EXPECT_EQ(asked, 1);
}

}  // namespace
}  // namespace deft::daemon
