// Collectives over a session: what is staged in shared memory, where, and what comes back.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>

#include "tests/client/scripted_daemon.h"

namespace deft::test {
namespace {

TEST(Collective, AllReduceStagesTheInputAndBringsTheResult) {
  ScriptedDaemon daemon([](Worker& worker) {
    worker.welcome({0, 0});
    const auto operation = worker.expect_operation();
    EXPECT_EQ(operation.texts[0], "loss");
    EXPECT_EQ(operation.fixed.collective, ipc::Collective::kAllReduce);
    EXPECT_EQ(operation.fixed.count, 3u);
    EXPECT_EQ(operation.fixed.reduce_op, 3u);
    auto* values = reinterpret_cast<float*>(worker.staging_buffer() + operation.fixed.offset);
    for (int i = 0; i < 3; ++i) values[i] += 1;
    worker.operation_done(operation.fixed.operation);
    worker.receive();
  });
  deft_session* session = daemon.open(nullptr, 0, 2);
  const float input[] = {1, 2, 3};
  float output[3] = {};
  deft_operation* operation = nullptr;
  deft_error error{};
  ASSERT_EQ(deft_allreduce(session, "loss", input, 3, DEFT_FLOAT32, DEFT_MAX, &operation, &error), DEFT_OK)
      << error.message;
  while (deft_poll(operation, &error) == 0) std::this_thread::yield();
  ASSERT_EQ(deft_finish(operation, output, &error), DEFT_OK) << error.message;
  EXPECT_EQ(output[0], 2);
  EXPECT_EQ(output[2], 4);
  deft_close(session);
}

// Ranks 0 and 2 are on node 0, ranks 1 and 3 on node 1: in the buffer lie 0, 2, 1, 3; the caller sees 0, 1, 2, 3.
TEST(Collective, AllGatherOrdersByNodeInTheBufferAndByRankForTheCaller) {
  ScriptedDaemon daemon([](Worker& worker) {
    worker.welcome({0, 1, 0, 1});
    const auto operation = worker.expect_operation();
    EXPECT_EQ(operation.fixed.count, 3u);
    EXPECT_EQ(operation.fixed.capacity, 7u);
    auto* buffer = reinterpret_cast<std::int32_t*>(worker.staging_buffer() + operation.fixed.offset);
    EXPECT_EQ(buffer[1], 20);  // rank 2's block begins behind the one element of rank 0
    EXPECT_EQ(buffer[3], 22);
    buffer[0] = 0;
    buffer[4] = 10, buffer[5] = 11;  // rank 1
    buffer[6] = 30;                  // rank 3
    worker.operation_done(operation.fixed.operation);
    worker.receive();
  });
  deft_session* session = daemon.open(nullptr, 2, 4);
  const std::int32_t input[] = {20, 21, 22};
  const size_t counts[] = {1, 2, 3, 1};
  std::int32_t output[7] = {};
  deft_operation* operation = nullptr;
  deft_error error{};
  ASSERT_EQ(deft_allgather(session, "g", input, counts, DEFT_INT32, &operation, &error), DEFT_OK) << error.message;
  ASSERT_EQ(deft_finish(operation, output, &error), DEFT_OK) << error.message;
  EXPECT_EQ(std::vector<int>(output, output + 7), (std::vector<int>{0, 10, 11, 20, 21, 22, 30}));
  deft_close(session);
}

TEST(Collective, StartCarriesTermsAndWaitsInSlices) {
  std::atomic<bool> asked{false};
  ScriptedDaemon daemon([&](Worker& worker) {
    worker.welcome({0, 0});
    const auto operation = worker.expect_operation();
    EXPECT_EQ(operation.texts[0], "loss");
    EXPECT_EQ(operation.texts[1], "shape [3, 1]");
    EXPECT_EQ(operation.fixed.collective, ipc::Collective::kAllReduce);
    while (!asked) std::this_thread::yield();
    worker.operation_done(operation.fixed.operation);
    const auto barrier = worker.expect_operation();
    EXPECT_EQ(barrier.fixed.collective, ipc::Collective::kBarrier);
    EXPECT_EQ(barrier.fixed.count, 0u);
    worker.send_error(ErrorKind::kMismatch, "rank 1 reduces", barrier.fixed.operation);
    worker.receive();
  });
  deft_session* session = daemon.open(nullptr, 0, 2);
  const float input[] = {1, 2, 3};
  float output[3] = {};
  const size_t count = 3;
  deft_collective call{DEFT_ALLREDUCE, DEFT_FLOAT32, DEFT_SUM, 0, "loss", "shape [3, 1]", input, &count};
  deft_operation* operation = nullptr;
  deft_error error{};
  ASSERT_EQ(deft_start(session, &call, &operation, &error), DEFT_OK) << error.message;
  EXPECT_EQ(deft_poll_for(operation, 1000, &error), 0) << "nobody has answered yet";
  asked = true;
  EXPECT_EQ(deft_poll_for(operation, 60'000'000, &error), 1) << error.message;
  ASSERT_EQ(deft_finish(operation, output, &error), DEFT_OK) << error.message;
  EXPECT_EQ(output[2], 3);

  call = {DEFT_BARRIER, 0, 0, 0, "all", nullptr, nullptr, nullptr};
  ASSERT_EQ(deft_start(session, &call, &operation, &error), DEFT_OK) << error.message;
  EXPECT_EQ(deft_poll_for(operation, 60'000'000, &error), -DEFT_EMISMATCH);
  EXPECT_EQ(deft_finish(operation, nullptr, &error), DEFT_EMISMATCH);
  deft_close(session);
}

TEST(Collective, StartRefusesWrongArguments) {
  ScriptedDaemon daemon([](Worker& worker) {
    worker.welcome({0, 0});
    worker.receive();
  });
  deft_session* session = daemon.open(nullptr, 0, 2);
  const float input = 1;
  const size_t count = 1;
  const std::string long_terms(513, 'x');
  const deft_collective right{DEFT_ALLREDUCE, DEFT_FLOAT32, DEFT_SUM, 0, "loss", nullptr, &input, &count};
  const auto kind_of = [&](auto change) {
    deft_collective call = right;
    change(call);
    deft_operation* operation = nullptr;
    deft_error error{};
    return deft_start(session, &call, &operation, &error);
  };
  EXPECT_EQ(kind_of([](auto& call) { call.collective = 5; }), DEFT_EINVALID);
  EXPECT_EQ(kind_of([](auto& call) { call.dtype = 99; }), DEFT_EINVALID);
  EXPECT_EQ(kind_of([](auto& call) { call.reduce_op = 9; }), DEFT_EINVALID);
  EXPECT_EQ(kind_of([](auto& call) { call.name = nullptr; }), DEFT_EINVALID);
  EXPECT_EQ(kind_of([](auto& call) { call.input = nullptr; }), DEFT_EINVALID);
  EXPECT_EQ(kind_of([](auto& call) { call.counts = nullptr; }), DEFT_EINVALID);
  EXPECT_EQ(kind_of([](auto& call) { call.terms = "a\nb"; }), DEFT_EINVALID);
  EXPECT_EQ(kind_of([&](auto& call) { call.terms = long_terms.c_str(); }), DEFT_EINVALID);
  EXPECT_EQ(kind_of([](auto& call) { call = {DEFT_BROADCAST, 1, 0, 2, "x", nullptr, call.input, call.counts}; }),
            DEFT_EINVALID);
  deft_close(session);
}

TEST(Collective, ARefusedOperationFailsAloneAndTellsWhy) {
  ScriptedDaemon daemon([](Worker& worker) {
    worker.welcome({0, 0});
    auto operation = worker.expect_operation();
    worker.send_error(ErrorKind::kMismatch, "rank 1 gives 4 elements", operation.fixed.operation);
    operation = worker.expect_operation();
    worker.operation_done(operation.fixed.operation);
    worker.receive();
  });
  deft_session* session = daemon.open(nullptr, 0, 2);
  float value = 1;
  deft_operation* operation = nullptr;
  deft_error error{};
  ASSERT_EQ(deft_allreduce(session, "a", &value, 1, DEFT_FLOAT32, DEFT_SUM, &operation, &error), DEFT_OK);
  EXPECT_EQ(deft_finish(operation, &value, &error), DEFT_EMISMATCH);
  EXPECT_STREQ(error.message, "operation 'a': here: rank 1 gives 4 elements (do this)");
  ASSERT_EQ(deft_allreduce(session, "a", &value, 1, DEFT_FLOAT32, DEFT_SUM, &operation, &error), DEFT_OK);
  EXPECT_EQ(deft_finish(operation, &value, &error), DEFT_OK) << error.message;
  deft_close(session);
}

TEST(Collective, AFailureCodeWithoutATextIsStillAnError) {
  ScriptedDaemon daemon([](Worker& worker) {
    worker.welcome();
    const auto operation = worker.expect_operation();
    worker.operation_done(operation.fixed.operation, DEFT_ETIMEOUT);
    worker.receive();
  });
  deft_session* session = daemon.open();
  float value = 1;
  deft_operation* operation = nullptr;
  deft_error error{};
  ASSERT_EQ(deft_allreduce(session, "a", &value, 1, DEFT_FLOAT32, DEFT_SUM, &operation, &error), DEFT_OK);
  EXPECT_EQ(deft_finish(operation, &value, &error), DEFT_ETIMEOUT);
  deft_close(session);
}

TEST(Collective, ABufferThatCannotBeMadeFailsAlone) {
  ScriptedDaemon daemon([](Worker& worker) {
    worker.welcome();
    const auto packet = worker.receive();
    const auto request = ipc::decode<ipc::StagingBuffer>(packet.bytes, ipc::MessageKind::kStagingBuffer, 0);
    worker.send_error(ErrorKind::kExhausted, "the daemon's shared memory is full", request->fixed.buffer);
    const auto operation = worker.expect_operation();
    worker.operation_done(operation.fixed.operation);
    worker.receive();
  });
  deft_session* session = daemon.open();
  std::vector<float> values(1 << 20);
  deft_operation* operation = nullptr;
  deft_error error{};
  EXPECT_EQ(deft_allreduce(session, "a", values.data(), values.size(), DEFT_FLOAT32, DEFT_SUM, &operation, &error),
            DEFT_EEXHAUSTED);
  ASSERT_EQ(deft_allreduce(session, "a", values.data(), 1, DEFT_FLOAT32, DEFT_SUM, &operation, &error), DEFT_OK);
  EXPECT_EQ(deft_finish(operation, nullptr, &error), DEFT_OK) << error.message;
  deft_close(session);
}

TEST(Collective, MistakesOfTheCallerAreNamedAndHarmless) {
  ScriptedDaemon daemon([](Worker& worker) {
    worker.welcome();
    EXPECT_EQ(ipc::decode_header(worker.receive().bytes)->kind, ipc::MessageKind::kGoodbye);
  });
  deft_session* session = daemon.open();
  const float value = 1;
  deft_operation* o = nullptr;
  deft_error error{};
  EXPECT_EQ(deft_allreduce(session, "a", &value, 1, 99, DEFT_SUM, &o, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_allreduce(session, "a", &value, 1, -1, DEFT_SUM, &o, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_allreduce(session, "a", &value, 1, DEFT_FLOAT32, 0, &o, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_allreduce(session, "", &value, 1, DEFT_FLOAT32, DEFT_SUM, &o, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_allreduce(session, nullptr, &value, 1, DEFT_FLOAT32, DEFT_SUM, &o, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_allreduce(session, "a", nullptr, 1, DEFT_FLOAT32, DEFT_SUM, &o, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_allreduce(session, "a", &value, ~size_t{0}, DEFT_FLOAT64, DEFT_SUM, &o, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_broadcast(session, "a", &value, 1, DEFT_FLOAT32, 1, &o, &error), DEFT_EINVALID);
  EXPECT_EQ(deft_broadcast(session, "a", &value, 1, DEFT_FLOAT32, -1, &o, &error), DEFT_EINVALID);
  const std::string name(2000, 'n');
  EXPECT_EQ(deft_allreduce(session, name.c_str(), &value, 1, DEFT_FLOAT32, DEFT_SUM, &o, &error), DEFT_EINVALID);
  deft_close(session);
}

// All parameters of a model are broadcast at once: that must not take a buffer, and a descriptor, for each.
TEST(Collective, HundredsAtATimeShareAFewBuffers) {
  constexpr int kMany = 600;
  std::atomic<int> buffers{0};
  ScriptedDaemon daemon([&](Worker& worker) {
    worker.welcome();
    std::vector<std::uint64_t> operations;
    while (operations.size() < kMany) {
      const auto packet = worker.receive();
      const auto header = ipc::decode_header(packet.bytes);
      if (header->kind == ipc::MessageKind::kStagingBuffer) {
        const auto asked = ipc::decode<ipc::StagingBuffer>(packet.bytes, header->kind, 0)->fixed;
        const auto memory = shm::Segment::create("test-staging", asked.bytes);
        const std::array<int, 1> descriptors{memory->descriptor()};
        worker.send(ipc::encode(asked, ipc::MessageKind::kStagingBufferMade), descriptors);
        ++buffers;
      } else {
        operations.push_back(ipc::decode<ipc::Operation>(packet.bytes, header->kind, 1)->fixed.operation);
      }
    }
    for (auto it = operations.rbegin(); it != operations.rend(); ++it) worker.operation_done(*it);
    worker.receive();
  });
  deft_session* session = daemon.open();
  std::vector<std::vector<float>> values;
  std::vector<deft_operation*> operations(kMany);
  deft_error error{};
  for (int i = 0; i < kMany; ++i) {
    values.emplace_back(1 + i * 7 % 4000, static_cast<float>(i));
    ASSERT_EQ(deft_broadcast(session, std::to_string(i).c_str(), values[i].data(), values[i].size(), DEFT_FLOAT32, 0,
                             &operations[i], &error),
              DEFT_OK)
        << error.message;
  }
  for (int i = 0; i < kMany; ++i) {
    std::vector<float> output(values[i].size());
    ASSERT_EQ(deft_finish(operations[i], output.data(), &error), DEFT_OK) << error.message;
    ASSERT_EQ(output, values[i]) << "operation " << i << " shares memory with another";
  }
  EXPECT_LE(buffers, 6);
  deft_close(session);
}

// A thread sanitizer sees what a call touches after deft_close has ended its wait.
TEST(Collective, CloseLetsCallsLeaveBeforeTheSessionGoes) {
  for (int trial = 0; trial < 20; ++trial) {
    std::atomic<bool> waiting{false};
    ScriptedDaemon daemon([&](Worker& worker) {
      worker.welcome();
      for (int i = 0; i < 4; ++i) worker.receive();
      waiting = true;
      worker.receive();
    });
    deft_session* session = daemon.open();
    std::vector<std::thread> threads;
    for (const char* name : {"a", "b", "c", "d"})
      threads.emplace_back([=] { EXPECT_EQ(deft_barrier(session, name, nullptr), DEFT_EINVALID); });
    while (!waiting) std::this_thread::yield();
    deft_close(session);
    for (auto& thread : threads) thread.join();
  }
}

TEST(Collective, OperationsThatWereNeverFinishedGoWithTheSession) {
  ScriptedDaemon daemon([](Worker& worker) {
    worker.welcome();
    worker.expect_operation();
    worker.receive();
  });
  deft_session* session = daemon.open();
  const float value = 1;
  deft_operation* operation = nullptr;
  ASSERT_EQ(deft_allreduce(session, "a", &value, 1, DEFT_FLOAT32, DEFT_SUM, &operation, nullptr), DEFT_OK);
  deft_close(session);  // the leak checker watches
}

}  // namespace
}  // namespace deft::test
