// Gradients over a session, and what becomes of waits when the daemon fails in every way it can.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <bit>
#include <thread>

#include "tests/client/scripted_daemon.h"

namespace deft::test {
namespace {

constexpr std::size_t kTensors = 8;

void serve(Worker& worker, std::size_t tensors = kTensors) {
  worker.welcome();
  worker.grant_arena(arena_bytes(tensors));
}

// Opens, declares, hands tensor 0 over and waits for it while the daemon does `then`: gives the error.
deft_error error_of_wait(const std::function<void(Worker&)>& then) {
  ScriptedDaemon daemon([&](Worker& worker) {
    serve(worker);
    worker.pop();
    then(worker);
  });
  deft_session* session = daemon.open();
  deft_group* group = declare(session, kTensors);
  deft_error error{};
  EXPECT_EQ(deft_ready(group, 0, 1, 0, 0, &error), DEFT_OK) << error.message;
  EXPECT_NE(deft_wait(group, 0, 1, 0, &error), DEFT_OK);
  deft_error again{};
  EXPECT_EQ(deft_wait(group, 0, 1, 0, &again), error.kind) << "later calls tell the same";
  EXPECT_STREQ(again.message, error.message);
  EXPECT_EQ(deft_stage(session, DEFT_FORWARD, 0, &again), error.kind);
  deft_close(session);
  return error;
}

TEST(Session, AGradientGoesAndComesBackReduced) {
  ScriptedDaemon daemon([](Worker& worker) {
    serve(worker);
    for (std::uint64_t step = 0; step < 3; ++step) {
      const auto ready = worker.pop_as<shm::ReadyRecord>();
      EXPECT_EQ(ready.generation, step);
      EXPECT_EQ(ready.first_tensor, 2u);
      EXPECT_EQ(ready.tensors, 3u);
      auto* values = reinterpret_cast<float*>(worker.arena() + 2 * kTensorBytes);
      for (int i = 0; i < 48; ++i) values[i] *= 2;
      worker.finish(2, 3, step);
    }
    worker.receive();
  });
  deft_session* session = daemon.open();
  deft_group* group = declare(session, kTensors);
  auto* gradient = static_cast<float*>(deft_tensor_data(group, 3, 0));
  ASSERT_NE(gradient, nullptr);
  EXPECT_EQ(deft_tensor_bytes(group, 3), kTensorBytes);
  deft_error error{};
  for (std::uint64_t step = 0; step < 3; ++step) {
    gradient[5] = 21;
    ASSERT_EQ(deft_ready(group, 2, 3, step, 0, &error), DEFT_OK) << error.message;
    ASSERT_EQ(deft_wait(group, 2, 3, step, &error), DEFT_OK) << error.message;
    EXPECT_EQ(gradient[5], 42);
    EXPECT_EQ(deft_test(group, 2, 3, step, &error), 1);
    EXPECT_EQ(deft_test(group, 2, 3, step + 1, &error), 0);
  }
  deft_close(session);
}

TEST(Session, MistakesOfTheCallerAreNamedAndHarmless) {
  ScriptedDaemon daemon([](Worker& worker) {
    serve(worker);
    worker.receive();
  });
  deft_session* session = daemon.open();
  deft_group* group = declare(session, kTensors);
  deft_error error{};
  EXPECT_EQ(deft_ready(group, 7, 2, 0, 0, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_ready(group, ~size_t{0}, 2, 0, 0, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_ready(group, 0, 0, 0, 0, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_ready(group, 0, 1, 0, 1, &error), DEFT_EINVALID) << "one slot was declared";
  EXPECT_EQ(deft_ready(group, 0, 1, 1, 0, &error), DEFT_EINVALID) << "step 0 is due";
  EXPECT_NE(std::string(error.message).find("'t0'"), std::string::npos);
  EXPECT_EQ(deft_ready(group, 0, 1, 0, 0, &error), DEFT_OK);
  EXPECT_EQ(deft_ready(group, 0, 2, 0, 0, &error), DEFT_EINVALID) << "t0 was handed over before";
  EXPECT_EQ(deft_wait(group, 8, 1, 0, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_test(group, 8, 1, 0, &error), -DEFT_EINVALID);
  EXPECT_EQ(deft_tensor_data(group, 8, 0), nullptr);
  EXPECT_EQ(deft_tensor_data(group, 0, 1), nullptr);
  EXPECT_EQ(deft_tensor_bytes(group, 8), 0u);
  EXPECT_EQ(deft_stage(session, 3, 0, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_test(group, 0, 1, 0, &error), 0) << "the session goes on";
  deft_close(session);
}

// Every call with a group, after its release.
void expect_released(deft_session* session, deft_group* group) {
  deft_error error{};
  deft_generation dated{};
  dated.generation = 99;
  EXPECT_EQ(deft_ready(group, 0, 1, 1, 0, &error), DEFT_EINVALID);
  EXPECT_NE(std::string(error.message).find("was released"), std::string::npos) << error.message;
  EXPECT_EQ(deft_wait(group, 0, 1, 0, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_test(group, 0, 1, 0, &error), -DEFT_EINVALID);
  EXPECT_EQ(deft_test_for(group, 0, 1, 0, 1, &error), -DEFT_EINVALID);
  EXPECT_EQ(deft_flush(group, 1, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_send_residuals(group, 1, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_use_device_arena(group, &error, &error), DEFT_EINVALID);
  const deft_statistics statistics{};
  EXPECT_EQ(deft_report_statistics(group, &statistics, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_when_reduced(
                group, 0, 1, 0, [](void*, const deft_error*) {}, nullptr, &error),
            DEFT_EINVALID);
  EXPECT_EQ(deft_release(session, group, &error), -DEFT_EINVALID);
  EXPECT_EQ(deft_tensor_data(group, 0, 0), nullptr);
  EXPECT_EQ(deft_tensor_bytes(group, 0), 0u);
  EXPECT_EQ(deft_arena_bytes(group), 0u);
  deft_generations_of_step(group, 0, &dated);
  EXPECT_EQ(dated.generation, 99u) << "left as it is";
}

TEST(Session, AReleasedGroupLeavesTheProcessAndItsHandleIsHarmless) {
  ScriptedDaemon daemon([](Worker& worker) {
    serve(worker, 1);
    worker.pop_as<shm::ReadyRecord>();
    worker.finish(0, 1, 0);
    EXPECT_EQ(worker.pop_as<shm::ReleaseRecord>().group, 0u);
    worker.push(shm::ReleasedRecord{.group = 0});
    worker.grant_arena(arena_bytes(1));
    worker.pop_as<shm::ReadyRecord>();
    worker.finish(0, 1, 0, 1);
    worker.receive();
  });
  deft_session* session = daemon.open();
  deft_group* group = declare(session, 1);
  deft_error error{};
  ASSERT_EQ(deft_ready(group, 0, 1, 0, 0, &error), DEFT_OK);
  ASSERT_EQ(deft_wait(group, 0, 1, 0, &error), DEFT_OK);
  EXPECT_EQ(deft_release(session, nullptr, &error), -DEFT_EINVALID);
  EXPECT_EQ(deft_release(session, group, &error), 1) << "all that was handed over is reduced";
  expect_released(session, group);
  deft_group* const next = declare(session, 1);
  ASSERT_NE(next, nullptr);
  ASSERT_EQ(deft_ready(next, 0, 1, 0, 0, &error), DEFT_OK) << error.message;
  EXPECT_EQ(deft_wait(next, 0, 1, 0, &error), DEFT_OK) << error.message;
  deft_close(session);
}

TEST(Session, WhoWaitsForWhatWasReleasedHearsOfIt) {
  std::atomic<bool> waits{false};
  ScriptedDaemon daemon([&](Worker& worker) {
    serve(worker, 1);
    worker.pop_as<shm::ReadyRecord>();
    worker.await_sleep();  // the waiting thread is at the ring
    waits = true;
    worker.pop_as<shm::ReleaseRecord>();
    worker.receive();
  });
  deft_session* session = daemon.open();
  deft_group* group = declare(session, 1);
  deft_error error{};
  ASSERT_EQ(deft_ready(group, 0, 1, 0, 0, &error), DEFT_OK);
  std::atomic<int> called{-1};
  ASSERT_EQ(
      deft_when_reduced(
          group, 0, 1, 0, [](void* to, const deft_error* told) { *static_cast<std::atomic<int>*>(to) = told->kind; },
          &called, &error),
      DEFT_OK);
  deft_error waited{};
  int outcome = -1;
  std::thread waiter([&] { outcome = deft_wait(group, 0, 1, 0, &waited); });
  while (!waits) std::this_thread::yield();
  EXPECT_EQ(deft_release(session, group, &error), 0) << "it is still under way";
  waiter.join();
  EXPECT_EQ(outcome, DEFT_EINVALID);
  EXPECT_NE(std::string(waited.message).find("was released"), std::string::npos) << waited.message;
  deft_close(session);  // all callbacks have run
  EXPECT_EQ(called, DEFT_EINVALID);
}

TEST(Session, AReleaseThatThisWorkerDidNotAskForIsAViolation) {
  const deft_error error = error_of_wait([](Worker& worker) { worker.push(shm::ReleasedRecord{.group = 0}); });
  EXPECT_EQ(error.kind, DEFT_EVIOLATION);
}

TEST(Session, BadDeclarationsAreRefusedBeforeTheDaemonHearsOfThem) {
  ScriptedDaemon daemon([](Worker& worker) {
    worker.welcome();
    EXPECT_EQ(ipc::decode_header(worker.receive().bytes)->kind, ipc::MessageKind::kGoodbye);
  });
  deft_session* session = daemon.open();
  deft_group* group = nullptr;
  deft_error error{};
  const std::uint64_t shape[] = {2};
  const deft_tensor twice[] = {{"w", DEFT_FLOAT32, 1, shape, 0}, {"w", DEFT_FLOAT32, 1, shape, 1}};
  EXPECT_EQ(deft_declare(session, "g", twice, 2, 1, DEFT_SUM, &group, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_declare(session, "g", twice, 1, 9, DEFT_SUM, &group, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_declare(session, "g", twice, 1, 1, 4, &group, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_declare(session, "g", twice, 0, 1, DEFT_SUM, &group, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_declare(session, "", twice, 1, 1, DEFT_SUM, &group, &error), DEFT_EINVALID);
  const deft_tensor strange = {"w", 99, 1, shape, 0};
  EXPECT_EQ(deft_declare(session, "g", &strange, 1, 1, DEFT_SUM, &group, &error), DEFT_EINVALID);
  const deft_tensor nameless = {nullptr, DEFT_FLOAT32, 1, shape, 0};
  EXPECT_EQ(deft_declare(session, "g", &nameless, 1, 1, DEFT_SUM, &group, &error), DEFT_EINVALID);
  const deft_tensor deep = {"w", DEFT_FLOAT32, 9, shape, 0};
  EXPECT_EQ(deft_declare(session, "g", &deep, 1, 1, DEFT_SUM, &group, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_declare(session, "g", nullptr, 1, 1, DEFT_SUM, &group, &error), DEFT_EINVALID);
  deft_close(session);
}

TEST(Session, AnArenaOfAnotherSizeIsRefused) {
  ScriptedDaemon daemon([](Worker& worker) {
    worker.welcome();
    worker.grant_arena(arena_bytes(kTensors) + 4096);
    worker.receive();
  });
  deft_session* session = daemon.open();
  deft_error error{};
  EXPECT_EQ(declare(session, kTensors, &error), nullptr);
  EXPECT_EQ(error.kind, DEFT_EVIOLATION);
  deft_close(session);
}

TEST(Session, ADaemonThatDiesInMidWaitIsLostAtOnce) {
  const TimeUs before = MonotonicClock::now();
  const auto error = error_of_wait([](Worker& worker) {
    worker.await_sleep();
    worker.close();
  });
  EXPECT_EQ(error.kind, DEFT_ELOST);
  EXPECT_NE(std::string(error.message).find("daemon on this node is gone"), std::string::npos);
  EXPECT_LT(MonotonicClock::now() - before, kPatienceUs);
}

TEST(Session, AnErrorInMidWaitIsToldInFull) {
  const auto error = error_of_wait([](Worker& worker) {
    worker.send_error(ErrorKind::kLost, "rank 3 (pid 77) died");
    worker.close();
  });
  EXPECT_EQ(error.kind, DEFT_ELOST);
  EXPECT_STREQ(error.message, "here: rank 3 (pid 77) died (do this)");
}

TEST(Session, TheRingsFailureTakesItsTextFromTheSocket) {
  const auto error = error_of_wait([](Worker& worker) {
    worker.push(shm::FailedRecord{});
    worker.await([&] { return worker.rings().completion().head == 1; });
    worker.send_error(ErrorKind::kTimeout, "node 1 does not answer");
    worker.receive();
  });
  EXPECT_EQ(error.kind, DEFT_ETIMEOUT);
}

TEST(Session, AFailureWithoutATextIsStillOne) {
  const auto error = error_of_wait([](Worker& worker) {
    worker.push(shm::FailedRecord{});
    worker.receive();
  });
  EXPECT_EQ(error.kind, DEFT_ELOST);
}

TEST(Session, GarbageInMidWaitIsAViolation) {
  const auto garbage = [](Worker& worker) { worker.send(std::vector<std::byte>(100, std::byte{1})); };
  EXPECT_EQ(error_of_wait(garbage).kind, DEFT_EVIOLATION);
  const auto cut_error = [](Worker& worker) {
    worker.send(ipc::encode(ipc::ErrorMessage{}, ipc::MessageKind::kError, {"only one text"}));
  };
  EXPECT_EQ(error_of_wait(cut_error).kind, DEFT_EVIOLATION);
}

TEST(Session, ACorruptCompletionRingIsAViolation) {
  const auto corrupt = [](Worker& worker) {
    worker.rings().completion().tail.store(1'000'000);
    worker.wake();
  };
  EXPECT_EQ(error_of_wait(corrupt).kind, DEFT_EVIOLATION);
}

TEST(Session, TheEndOfTensorsThatAreNotThereIsAViolation) {
  EXPECT_EQ(error_of_wait([](Worker& worker) { worker.finish(7, 2, 0); }).kind, DEFT_EVIOLATION);
  EXPECT_EQ(error_of_wait([](Worker& worker) { worker.finish(~0u, 2, 0); }).kind, DEFT_EVIOLATION);
  EXPECT_EQ(error_of_wait([](Worker& worker) { worker.finish(0, 1, 0, 5); }).kind, DEFT_EVIOLATION);
}

TEST(Session, AnUnknownRecordIsAViolation) {
  const auto unknown = [](Worker& worker) {
    worker.push(std::bit_cast<shm::Record>(std::array<std::uint32_t, shm::kRecordBytes / 4>{999}));
  };
  EXPECT_EQ(error_of_wait(unknown).kind, DEFT_EVIOLATION);
}

TEST(Session, AFailureIsNoticedWithoutAnyWait) {
  ScriptedDaemon daemon([](Worker& worker) {
    serve(worker);
    worker.send_error(ErrorKind::kLost, "over");
    worker.close();
  });
  deft_session* session = daemon.open();
  declare(session, kTensors);
  int code = DEFT_OK;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (std::uint64_t step = 0; code == DEFT_OK && std::chrono::steady_clock::now() < deadline; ++step) {
    code = deft_stage(session, DEFT_FORWARD, step, nullptr);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(code, DEFT_ELOST);
  deft_close(session);
}

TEST(Session, AFullRingWaitsForTheDaemon) {
  constexpr std::uint64_t kStages = 3 * shm::kRingCapacity;
  std::atomic<std::uint64_t> seen{0};
  ScriptedDaemon daemon([&](Worker& worker) {
    worker.welcome();
    worker.await([&] {
      const auto& ring = worker.rings().submission();
      return ring.tail - ring.head == shm::kRingCapacity;
    });
    for (; seen < kStages; ++seen) ASSERT_EQ(worker.pop_as<shm::StageRecord>().step, seen.load());
    worker.receive();
  });
  deft_session* session = daemon.open();
  deft_error error{};
  for (std::uint64_t step = 0; step < kStages; ++step)
    ASSERT_EQ(deft_stage(session, DEFT_FORWARD, step, &error), DEFT_OK) << error.message;
  deft_close(session);
}

// Replay must tell a worker that hides its communication from one whose framework waits for it elsewhere.
TEST(Session, StagesSayWhetherTheWorkerWaitsHere) {
  ScriptedDaemon daemon([&](Worker& worker) {
    worker.welcome();
    worker.grant_arena(arena_bytes(kTensors));
    EXPECT_EQ(worker.pop_as<shm::StageRecord>().tells_waits, 0U);
    worker.finish(worker.pop_as<shm::ReadyRecord>().first_tensor, 1, 0);
    EXPECT_EQ(worker.pop_as<shm::StageRecord>().tells_waits, 1U);
    worker.receive();
  });
  deft_session* session = daemon.open();
  deft_group* group = declare(session, kTensors);
  EXPECT_EQ(deft_stage(session, DEFT_BACKWARD, 0, nullptr), DEFT_OK);
  EXPECT_EQ(deft_ready(group, 0, 1, 0, 0, nullptr), DEFT_OK);
  EXPECT_EQ(deft_wait(group, 0, 1, 0, nullptr), DEFT_OK);
  EXPECT_EQ(deft_stage(session, DEFT_FORWARD, 1, nullptr), DEFT_OK);
  deft_close(session);
}

// Waiters share one look at the ring: whoever looks wakes the right ones, and hands the look on when it leaves.
TEST(Session, ManyWaitersMissNothing) {
  constexpr std::uint64_t kSteps = 200;
  for (const std::uint32_t spin_us : {0u, 50u}) {
    ScriptedDaemon daemon([&](Worker& worker) {
      worker.welcome({0}, spin_us);
      worker.grant_arena(arena_bytes(kTensors));
      for (std::uint64_t i = 0; i < kSteps * kTensors; ++i) {
        const auto ready = worker.pop_as<shm::ReadyRecord>();
        worker.finish(ready.first_tensor, 1, ready.generation);
      }
      worker.receive();
    });
    deft_session* session = daemon.open();
    deft_group* group = declare(session, kTensors);
    std::atomic<int> failures{0};
    std::vector<std::thread> threads;
    for (std::size_t tensor = 0; tensor < kTensors; ++tensor)
      threads.emplace_back([&, tensor] {
        for (std::uint64_t step = 0; step < kSteps; ++step)
          if (deft_ready(group, tensor, 1, step, 0, nullptr) != DEFT_OK ||
              deft_wait(group, tensor, 1, step, nullptr) != DEFT_OK)
            ++failures;
      });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(failures, 0);
    deft_close(session);
  }
}

TEST(Session, AllWaitersLearnOfTheEnd) {
  ScriptedDaemon daemon([](Worker& worker) {
    serve(worker);
    for (std::size_t i = 0; i < kTensors; ++i) worker.pop();
    worker.await_sleep();
  });
  deft_session* session = daemon.open();
  deft_group* group = declare(session, kTensors);
  std::atomic<int> lost{0};
  std::vector<std::thread> threads;
  for (std::size_t tensor = 0; tensor < kTensors; ++tensor)
    threads.emplace_back([&, tensor] {
      deft_ready(group, tensor, 1, 0, 0, nullptr);
      if (deft_wait(group, tensor, 1, 0, nullptr) == DEFT_ELOST) ++lost;
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(lost, static_cast<int>(kTensors));
  deft_close(session);
}

TEST(Session, CloseEndsTheWaitsOfOtherThreads) {
  std::atomic<bool> waiting{false};
  ScriptedDaemon daemon([&](Worker& worker) {
    serve(worker);
    worker.pop();
    worker.await_sleep();
    waiting = true;
    worker.receive();
  });
  deft_session* session = daemon.open();
  deft_group* group = declare(session, kTensors);
  int code = DEFT_OK;
  std::thread other([&] {
    deft_ready(group, 0, 1, 0, 0, nullptr);
    code = deft_wait(group, 0, 1, 0, nullptr);
  });
  while (!waiting) std::this_thread::yield();
  deft_close(session);
  other.join();
  EXPECT_EQ(code, DEFT_EINVALID);
}

}  // namespace
}  // namespace deft::test
