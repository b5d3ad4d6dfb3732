// Callbacks in place of waits: each exactly once, whatever becomes of the job.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/client/scripted_daemon.h"

namespace deft::test {
namespace {

constexpr std::size_t kTensors = 4;

// Written by callbacks, read by the test.
class Calls {
 public:
  static void on_done(void* self, const deft_error* error) { static_cast<Calls*>(self)->add(error->kind); }
  void add(int kind) {
    const std::lock_guard lock(mutex_);
    kinds_.push_back(kind);
    changed_.notify_all();
  }
  // Waits for `count` calls and gives their kinds.
  std::vector<int> await(std::size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return kinds_.size() >= count; }));
    return kinds_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> kinds_;
};

void serve(Worker& worker) {
  worker.welcome();
  worker.grant_arena(arena_bytes(kTensors));
}

TEST(Completions, GradientsAreToldWithoutAThreadThatWaits) {
  ScriptedDaemon daemon([](Worker& worker) {
    serve(worker);
    for (std::uint32_t i = 0; i < kTensors; ++i) worker.finish(worker.pop_as<shm::ReadyRecord>().first_tensor, 1, 0);
    worker.receive();
  });
  deft_session* session = daemon.open();
  deft_group* group = declare(session, kTensors);
  deft_error error{};
  Calls calls;
  ASSERT_EQ(deft_when_reduced(group, 0, kTensors, 0, &Calls::on_done, &calls, &error), DEFT_OK) << error.message;
  for (std::size_t i = 0; i < kTensors; ++i) ASSERT_EQ(deft_ready(group, i, 1, 0, 0, &error), DEFT_OK);
  EXPECT_EQ(calls.await(1), std::vector<int>{DEFT_OK});
  EXPECT_EQ(deft_test(group, 0, kTensors, 0, &error), 1);
  ASSERT_EQ(deft_when_reduced(group, 1, 1, 0, &Calls::on_done, &calls, &error), DEFT_OK) << "it is reduced already";
  EXPECT_EQ(calls.await(2), (std::vector<int>{DEFT_OK, DEFT_OK}));
  deft_close(session);
  EXPECT_EQ(calls.await(2).size(), 2u) << "each once";
}

TEST(Completions, ACollectiveIsFinishedByItsCallback) {
  struct Finish {
    deft_operation* operation = nullptr;
    float output = 0;
    Calls calls;
  } finish;
  ScriptedDaemon daemon([](Worker& worker) {
    worker.welcome();
    const auto operation = worker.expect_operation();
    *reinterpret_cast<float*>(worker.staging_buffer() + operation.fixed.offset) += 1;
    worker.operation_done(operation.fixed.operation);
    worker.receive();
  });
  deft_session* session = daemon.open();
  const float input = 41;
  deft_error error{};
  ASSERT_EQ(deft_allreduce(session, "x", &input, 1, DEFT_FLOAT32, DEFT_SUM, &finish.operation, &error), DEFT_OK);
  const auto call = [](void* data, const deft_error* result) {
    auto* const self = static_cast<Finish*>(data);
    EXPECT_EQ(result->kind, DEFT_OK) << result->message;
    self->calls.add(deft_finish(self->operation, &self->output, nullptr));
  };
  ASSERT_EQ(deft_when_done(finish.operation, call, &finish, &error), DEFT_OK) << error.message;
  EXPECT_EQ(finish.calls.await(1), std::vector<int>{DEFT_OK});
  EXPECT_EQ(finish.output, 42);
  deft_close(session);
}

TEST(Completions, ARefusedCollectiveTellsItsOwnError) {
  ScriptedDaemon daemon([](Worker& worker) {
    worker.welcome();
    const auto operation = worker.expect_operation();
    worker.send_error(ErrorKind::kMismatch, "rank 1 gives 4 elements", operation.fixed.operation);
    worker.receive();
  });
  deft_session* session = daemon.open();
  const float input = 1;
  deft_error error{};
  deft_operation* operation = nullptr;
  Calls calls;
  ASSERT_EQ(deft_allreduce(session, "x", &input, 1, DEFT_FLOAT32, DEFT_SUM, &operation, &error), DEFT_OK);
  ASSERT_EQ(deft_when_done(operation, &Calls::on_done, &calls, &error), DEFT_OK);
  EXPECT_EQ(calls.await(1), std::vector<int>{DEFT_EMISMATCH});
  EXPECT_EQ(deft_finish(operation, nullptr, &error), DEFT_EMISMATCH);
  deft_close(session);
}

TEST(Completions, AJobThatFailsTellsEveryCallbackTheCause) {
  ScriptedDaemon daemon([](Worker& worker) {
    serve(worker);
    worker.pop();
    worker.send_error(ErrorKind::kLost, "rank 3 (pid 77) died");
    worker.close();
  });
  deft_session* session = daemon.open();
  deft_group* group = declare(session, kTensors);
  deft_error error{};
  Calls calls;
  for (std::size_t i = 0; i < kTensors; ++i)
    ASSERT_EQ(deft_when_reduced(group, i, 1, 0, &Calls::on_done, &calls, &error), DEFT_OK) << error.message;
  ASSERT_EQ(deft_ready(group, 0, 1, 0, 0, &error), DEFT_OK);
  EXPECT_EQ(calls.await(kTensors), std::vector<int>(kTensors, DEFT_ELOST));
  EXPECT_EQ(deft_when_reduced(group, 0, 1, 0, &Calls::on_done, &calls, &error), DEFT_ELOST) << "and is not called";
  deft_close(session);
  EXPECT_EQ(calls.await(kTensors).size(), kTensors);
}

TEST(Completions, CloseReturnsWhenAllCallbacksHaveRun) {
  ScriptedDaemon daemon([](Worker& worker) {
    serve(worker);
    worker.receive();
  });
  deft_session* session = daemon.open();
  deft_group* group = declare(session, kTensors);
  deft_error error{};
  std::atomic<int> called{0};
  const auto call = [](void* data, const deft_error* result) {
    EXPECT_EQ(result->kind, DEFT_EINVALID);
    ++*static_cast<std::atomic<int>*>(data);
  };
  for (int i = 0; i < 100; ++i) ASSERT_EQ(deft_when_reduced(group, 0, 1, 0, call, &called, &error), DEFT_OK);
  deft_close(session);
  EXPECT_EQ(called, 100);
}

// A chain: each callback hands over the next step and asks for its end, as an asynchronous framework does.
TEST(Completions, ACallbackMayAskForTheNextOne) {
  constexpr std::uint64_t kSteps = 200;
  struct Chain {
    deft_group* group = nullptr;
    std::uint64_t step = 0;
    Calls calls;
    void go_on() {
      deft_error error{};
      const int handed = deft_ready(group, 0, 1, step, 0, &error);
      const int asked = deft_when_reduced(group, 0, 1, step, &Chain::on_done, this, &error);
      if (handed != DEFT_OK || asked != DEFT_OK) calls.add(DEFT_EINTERNAL);
    }
    static void on_done(void* data, const deft_error* result) {
      auto* const self = static_cast<Chain*>(data);
      if (result->kind != DEFT_OK || ++self->step == kSteps) return self->calls.add(result->kind);
      self->go_on();
    }
  } chain;
  ScriptedDaemon daemon([](Worker& worker) {
    serve(worker);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      const auto ready = worker.pop_as<shm::ReadyRecord>();
      worker.finish(ready.first_tensor, 1, ready.generation);
    }
    worker.receive();
  });
  deft_session* session = daemon.open();
  chain.group = declare(session, kTensors);
  chain.go_on();
  EXPECT_EQ(chain.calls.await(1), std::vector<int>{DEFT_OK});
  EXPECT_EQ(chain.step, kSteps);
  deft_close(session);
}

TEST(Completions, MistakesOfTheCallerAreNamedAndNothingIsCalled) {
  ScriptedDaemon daemon([](Worker& worker) {
    serve(worker);
    worker.receive();
  });
  deft_session* session = daemon.open();
  deft_group* group = declare(session, kTensors);
  deft_error error{};
  Calls calls;
  EXPECT_EQ(deft_when_reduced(group, kTensors, 1, 0, &Calls::on_done, &calls, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_when_reduced(group, 0, 0, 0, &Calls::on_done, &calls, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_when_reduced(group, 0, 1, 0, nullptr, &calls, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_when_reduced(nullptr, 0, 1, 0, &Calls::on_done, &calls, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_when_done(nullptr, &Calls::on_done, &calls, &error), DEFT_EINVALID);
  deft_close(session);
  EXPECT_TRUE(calls.await(0).empty());
}

}  // namespace
}  // namespace deft::test
