// Frameworks fork (data loaders do): a child neither uses nor disturbs nor keeps alive its parent's session.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/client/scripted_daemon.h"

namespace deft::test {
namespace {

int status_of(pid_t child) {
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

TEST(Fork, TheChildIsRefusedAndTheParentGoesOn) {
  ScriptedDaemon daemon([](Worker& worker) {
    worker.welcome();
    worker.grant_arena(arena_bytes(1));
    worker.pop();
    worker.finish(0, 1, 0);
    EXPECT_EQ(ipc::decode_header(worker.receive().bytes)->kind, ipc::MessageKind::kGoodbye) << "the child spoke";
  });
  deft_session* session = daemon.open();
  deft_group* group = declare(session, 1);
  const pid_t child = fork();
  if (child == 0) {
    const float value = 1;
    deft_operation* operation = nullptr;
    const bool refused =
        deft_ready(group, 0, 1, 0, 0, nullptr) == DEFT_EINVALID &&
        deft_wait(group, 0, 1, 0, nullptr) == DEFT_EINVALID &&
        deft_stage(session, DEFT_FORWARD, 0, nullptr) == DEFT_EINVALID &&
        deft_barrier(session, "b", nullptr) == DEFT_EINVALID &&
        deft_allreduce(session, "a", &value, 1, DEFT_FLOAT32, DEFT_SUM, &operation, nullptr) == DEFT_EINVALID;
    deft_close(session);
    _exit(refused ? 0 : 1);
  }
  EXPECT_EQ(status_of(child), 0);
  deft_error error{};
  ASSERT_EQ(deft_ready(group, 0, 1, 0, 0, &error), DEFT_OK) << error.message;
  ASSERT_EQ(deft_wait(group, 0, 1, 0, &error), DEFT_OK) << error.message;
  deft_close(session);
}

// Worker (a child of this test) forks a data loader and is killed; the loader lives on, yet the daemon sees the end.
TEST(Fork, AKilledWorkersEndIsSeenWhileItsChildrenLive) {
  const Scratch scratch;
  auto listener = ipc::Listener::bind(scratch.file("deftd.sock"));
  ASSERT_TRUE(listener);
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t trainer = fork();
  if (trainer == 0) {
    const std::string socket = "socket=" + scratch.file("deftd.sock");
    const char* options[] = {socket.c_str(), nullptr};
    deft_session* session = nullptr;
    if (deft_open(options, &session, nullptr) != DEFT_OK) _exit(1);
    const pid_t loader = fork();
    if (loader == 0) {
      pause();
      _exit(0);
    }
    if (write(pipe_ends[1], &loader, sizeof loader) < 0) _exit(1);
    raise(SIGKILL);
  }
  std::optional<Worker> worker;
  while (!worker)
    if (auto channel = listener->accept(); channel && *channel) worker.emplace(std::move(**channel));
  worker->welcome();
  pid_t loader = 0;
  ASSERT_EQ(read(pipe_ends[0], &loader, sizeof loader), static_cast<ssize_t>(sizeof loader));
  waitpid(trainer, nullptr, 0);
  const TimeUs before = MonotonicClock::now();
  EXPECT_TRUE(worker->receive().bytes.empty());
  EXPECT_LT(MonotonicClock::now() - before, kPatienceUs);
  EXPECT_EQ(kill(loader, 0), 0) << "the data loader should have lived on";
  kill(loader, SIGKILL);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

}  // namespace
}  // namespace deft::test
