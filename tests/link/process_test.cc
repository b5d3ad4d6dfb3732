// Nodes as processes: what happens when one is killed or stopped.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "tests/link/backends.h"

namespace deft::link::testing {
namespace {

using model::DType;
using model::ReduceOp;

constexpr int kSawLoss = 0;
constexpr int kNoLink = 2;
constexpr int kWrongError = 3;

class Processes : public BackendTest {
 protected:
  void SetUp() override { ASSERT_EQ(pipe(started_), 0); }
  void TearDown() override {
    close(started_[0]);
    close(started_[1]);
  }

  // A node that all-reduces `bytes` for ever, and ends well when it is told that a peer is lost.
  pid_t start(const LinkGroup& group, std::uint32_t node, std::size_t bytes) {
    const pid_t pid = fork();
    if (pid != 0) return pid;
    alarm(20);  // never outlive a failed test
    LinkGroup own = group;
    own.node = node;
    auto link = open_link(spec_for(GetParam(), node), own);
    if (!link) _exit(kNoLink);
    Bytes data(bytes);
    for (int i = 0;; ++i) {
      const auto result = all_reduce(**link, data.data(), bytes, DType::kUInt8, ReduceOp::kMax);
      if (!result) _exit(result.error().kind == ErrorKind::kLost ? kSawLoss : kWrongError);
      if (i == 3 && write(started_[1], "x", 1) != 1) _exit(kWrongError);
    }
  }

  void await_running(std::uint32_t nodes) {
    char byte = 0;
    for (std::uint32_t i = 0; i < nodes; ++i) ASSERT_EQ(read(started_[0], &byte, 1), 1);
  }

  int started_[2] = {};
};
INSTANTIATE_TEST_SUITE_P(Links, Processes, ::testing::ValuesIn(backends_with_encryption()), name_of);

#if defined(__SANITIZE_THREAD__)
constexpr std::array kNodeCounts = {3U};  // ThreadSanitizer takes seven times as long
#else
constexpr std::array kNodeCounts = {2U, 3U, 4U};
#endif

TEST_P(Processes, APeerKilledInMidOperationIsAnErrorAtOnceOnAllOthers) {
  for (const std::uint32_t nodes : kNodeCounts) {
    for (const std::size_t bytes : {std::size_t{100}, std::size_t{4'000'037}}) {
      const LinkGroup group = make_group(nodes, std::make_shared<SharedStore>(), GetParam());
      std::vector<pid_t> pids;
      for (std::uint32_t node = 0; node < nodes; ++node) pids.push_back(start(group, node, bytes));
      await_running(nodes);
      kill(pids.back(), SIGKILL);
      const TimeUs killed_at = MonotonicClock::now();
      for (std::uint32_t node = 0; node + 1 < nodes; ++node) {
        int status = 0;
        ASSERT_EQ(waitpid(pids[node], &status, 0), pids[node]);
        ASSERT_TRUE(WIFEXITED(status)) << "node " << node << " ended by signal " << WTERMSIG(status);
        EXPECT_EQ(WEXITSTATUS(status), kSawLoss) << "node " << node;
      }
      EXPECT_LT(MonotonicClock::now() - killed_at, kPromptly);
      waitpid(pids.back(), nullptr, 0);
    }
  }
}

TEST_P(Processes, AStoppedPeerIsWaitedForAndGoesOnWhenContinued) {
  const LinkGroup group = make_group(2, std::make_shared<SharedStore>(), GetParam());
  const pid_t other = start(group, 1, 1'000'000);
  LinkGroup own = group;
  own.node = 0;
  auto link = open_link(spec_for(GetParam(), 0), own);
  ASSERT_TRUE(link) << link.error().message();
  Bytes data(1'000'000);
  const auto reduce = [&] { return all_reduce(**link, data.data(), data.size(), DType::kUInt8, ReduceOp::kMax); };
  for (int i = 0; i < 5; ++i) ASSERT_OK(reduce());
  kill(other, SIGSTOP);
  const TimeUs stopped_at = MonotonicClock::now();
  // The stopped process is continued by a third one: this one is waiting for it.
  const pid_t waker = fork();
  if (waker == 0) {
    usleep(300'000);
    kill(other, SIGCONT);
    _exit(0);
  }
  for (int i = 0; i < 5; ++i) ASSERT_OK(reduce());
  EXPECT_GT(MonotonicClock::now() - stopped_at, 250'000);
  (*link)->abort("done");
  for (const pid_t pid : {waker, other}) {
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

}  // namespace
}  // namespace deft::link::testing
