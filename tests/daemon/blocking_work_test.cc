// Work that blocks: it stands in nobody's way but its own user's, and no thread is left behind.
#include "daemon/base/blocking_work.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "daemon/base/reactor.h"
#include "daemon/base/user_threads.h"

namespace deft::daemon {
namespace {

constexpr std::chrono::seconds kLong{60};

TEST(BlockingWork, RunsEverythingAndCallsBackAfterIt) {
  BlockingWork work;
  std::atomic<int> ran{0}, after{0};
  std::promise<void> all;
  for (int i = 0; i < 500; ++i)
    work.run(
        static_cast<uid_t>(i % 7), [&] { ++ran; },
        [&] {
          if (++after == 500) all.set_value();
        });
  ASSERT_EQ(all.get_future().wait_for(kLong), std::future_status::ready);
  EXPECT_EQ(ran, 500);
}

TEST(BlockingWork, AUserWhoseWorkBlocksHoldsUpNobodyElse) {
  std::promise<void> release;
  const std::shared_future<void> released(release.get_future());
  const auto blocked = std::make_shared<std::atomic<int>>(0);  // some of this work begins after the end of the test
  BlockingWork work;
  for (int i = 0; i < 1000; ++i)
    work.run(1, [blocked, released] {
      ++*blocked;
      released.wait();
    });
  for (uid_t user = 102; user < 110; ++user) {
    std::promise<void> done;
    std::size_t threads = 0;
    work.run(user, [&] {
      threads = threads_by_user()[user];
      done.set_value();
    });
    ASSERT_EQ(done.get_future().wait_for(kLong), std::future_status::ready) << "user " << user;
    EXPECT_EQ(threads, 1u) << "user " << user;
  }
  EXPECT_LE(*blocked, static_cast<int>(BlockingWork::kThreadsAUser));
  release.set_value();
}

TEST(BlockingWork, ItsEndWaitsForNoWorkThatBlocks) {
  std::promise<void> release;
  const std::shared_future<void> released(release.get_future());
  const auto after = std::make_shared<std::atomic<int>>(0);
  const auto began = std::chrono::steady_clock::now();
  {
    BlockingWork work;
    std::promise<void> started;
    work.run(
        1,
        [&started, released] {
          started.set_value();
          released.wait();
        },
        [after] { ++*after; });
    started.get_future().wait();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, kLong);
  release.set_value();
  EXPECT_EQ(*after, 0);
}

TEST(BlockingWork, ItsRunnerDoesTheWorkHereAndNowAfterItsEnd) {
  auto work = std::make_unique<BlockingWork>();
  const BlockingWork::Runner run = work->runner();
  std::promise<std::thread::id> elsewhere;
  run(1, [&] { elsewhere.set_value(std::this_thread::get_id()); });
  EXPECT_TRUE(elsewhere.get_future().get() != std::this_thread::get_id());
  work.reset();
  std::thread::id here;
  run(1, [&] { here = std::this_thread::get_id(); });
  EXPECT_TRUE(here == std::this_thread::get_id());
}

// Where memory is short, too: nobody takes an exception on a thread of blocking work.
static_assert(std::is_nothrow_constructible_v<UserThread, uid_t>);

TEST(UserThreads, AreCountedInWhateverOrderTheyEnd) {
  static constexpr uid_t kOne = 201, kTwo = 202;
  std::optional<UserThread> threads[4];
  for (std::size_t i = 0; i < std::size(threads); ++i) threads[i].emplace(i == 3 ? kTwo : kOne);
  const auto counts = [] {
    auto all = threads_by_user();
    return std::pair(all[kOne], all[kTwo]);
  };
  EXPECT_EQ(counts(), std::pair(std::size_t{3}, std::size_t{1}));
  threads[1].reset();  // between others
  EXPECT_EQ(counts(), std::pair(std::size_t{2}, std::size_t{1}));
  threads[3].reset();  // the newest
  threads[0].reset();  // the oldest
  EXPECT_EQ(counts(), std::pair(std::size_t{1}, std::size_t{0}));
  threads[0].emplace(kTwo);
  EXPECT_EQ(counts(), std::pair(std::size_t{1}, std::size_t{1}));
}

struct Failed final : CallbackOwner {
  void callback_failed(const Error& error) override { errors.push_back(error); }
  std::vector<Error> errors;
};

TEST(ReactorOffload, DoneRunsOnTheLoopForItsOwnerAndWhatTheWorkThrowsFailsThatOwner) {
  Reactor reactor;
  const auto owner = std::make_shared<Failed>();
  const auto loop = std::this_thread::get_id();
  std::thread::id worked, done;
  run_for(owner, "a test", [&] {
    reactor.offload(
        1, [] { throw std::bad_alloc(); }, [&] { ADD_FAILURE() << "the work has failed"; });
    reactor.offload(
        1, [&] { worked = std::this_thread::get_id(); },
        [&] {
          done = std::this_thread::get_id();
          throw std::bad_alloc();
        });
  });
  while (owner->errors.size() < 2) reactor.run_once();
  EXPECT_TRUE(worked != loop);
  EXPECT_TRUE(done == loop);
  EXPECT_EQ(owner->errors[0].kind, ErrorKind::kExhausted);
}

}  // namespace
}  // namespace deft::daemon
