// What a worker says of itself: every field that can hurt is refused by its name.
#include "daemon/server/hello.h"

#include <gtest/gtest.h>

#include "core/ipc/wire.h"
#include "daemon/wire/codec.h"

namespace deft::daemon {
namespace {

struct Said {
  ipc::Hello numbers = [] {
    ipc::Hello hello;
    hello.world = 4;
    hello.local_size = 2;
    return hello;
  }();
  std::string job = "job", leader = "host:1", settings = "policy=fifo\nlinks=gloo\n", version = "0.1";
};

Result<WorkerHello> read(const Said& said) {
  ipc::Packet packet;
  packet.bytes =
      ipc::encode(said.numbers, ipc::MessageKind::kHello, {said.job, said.leader, said.settings, said.version});
  return read_hello(packet);
}

std::string refusal(const Said& said) {
  const auto hello = read(said);
  return hello ? "" : hello.error().what;
}

TEST(Hello, AWorkerThatTellsTheTruth) {
  const auto hello = read({});
  ASSERT_TRUE(hello) << hello.error().message();
  EXPECT_EQ(hello->job, "job");
  EXPECT_EQ(hello->settings, "policy=fifo\nlinks=gloo\n");
  EXPECT_EQ(hello->world, 4u);
  EXPECT_EQ(hello->local_size, 2u);
}

TEST(Hello, TheLargestJobIsTakenAndNoneAboveIt) {
  Said said;
  said.numbers.world = ipc::kMaxWorld;
  said.numbers.local_size = wire::kMaxLocalSize;
  EXPECT_EQ(refusal(said), "");
  ++said.numbers.local_size;
  EXPECT_EQ(refusal(said), "the local size is 4097, more than 4096");
  ++said.numbers.world;
  EXPECT_EQ(refusal(said), "the world's size is 16001, more than 16000");
}

TEST(Hello, ARankOutsideItsWorldIsNamed) {
  Said said;
  said.numbers.rank = 4;
  EXPECT_EQ(refusal(said), "rank 4 does not exist in a world of 4");
  said.numbers.rank = 0;
  said.numbers.local_rank = 2;
  EXPECT_EQ(refusal(said), "local rank 2 of 2 on a node does not fit a world of 4");
}

TEST(Hello, TextsAreBoundedWellFormedAndOfOneLine) {
  const std::string long_name(ipc::kMaxJobNameBytes + 1, 'x');
  EXPECT_EQ(refusal({.job = ""}), "the job's name is empty");
  EXPECT_EQ(refusal({.job = long_name}), "the job's name has 256 bytes, more than 255");
  EXPECT_EQ(refusal({.job = "\xff"}), "the job's name is not valid UTF-8");
  EXPECT_EQ(refusal({.job = "a\rb"}), "the job's name holds control characters");
  EXPECT_EQ(refusal({.leader = long_name}), "the leader's address has 256 bytes, more than 255");
  EXPECT_EQ(refusal({.settings = std::string(kMaxSettingsBytes + 1, 'x')}),
            "the job's settings has 8193 bytes, more than 8192");
  EXPECT_EQ(refusal({.settings = "a=\x1b"}), "the job's settings holds control characters");
  EXPECT_EQ(refusal({.version = std::string(65, '1')}), "the library's version has 65 bytes, more than 64");
}

TEST(Hello, AnotherMessageIsAViolation) {
  ipc::Packet packet;
  packet.bytes = ipc::encode(ipc::Hello{}, ipc::MessageKind::kHello, {"three", "texts", "only"});
  EXPECT_EQ(read_hello(packet).error().kind, ErrorKind::kViolation);
}

}  // namespace
}  // namespace deft::daemon
