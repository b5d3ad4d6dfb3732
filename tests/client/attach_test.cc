// What deft_open does with daemons that are absent, silent, of another version, or not daemons at all.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <future>

#include "core/base/descriptor.h"
#include "tests/client/scripted_daemon.h"

namespace deft::test {
namespace {

std::string refused(ScriptedDaemon& daemon, int kind, const char* timeout = "60s") {
  deft_error error{};
  EXPECT_EQ(daemon.open(&error, 0, 1, timeout), nullptr);
  EXPECT_EQ(error.kind, kind) << error.message;
  return error.message;
}

// Answers HELLO with a WELCOME that carries these descriptors.
void welcome_with(Worker& worker, std::span<const int> descriptors, std::uint32_t world = 1) {
  worker.receive();
  ipc::Welcome message;
  message.nodes = 1;
  message.world = world;
  const std::vector<std::uint32_t> node_of(world);
  worker.send(ipc::encode(message, ipc::MessageKind::kWelcome, std::span<const std::string_view>{},
                          std::as_bytes(std::span(node_of))),
              descriptors);
}

TEST(Attach, WorldAndNodesAreWhatTheDaemonSays) {
  ScriptedDaemon daemon([](Worker& worker) {
    worker.welcome({0, 1, 0, 1});
    worker.receive();
  });
  deft_session* session = daemon.open(nullptr, 2, 4);
  ASSERT_NE(session, nullptr);
  const deft_world world = deft_get_world(session);
  EXPECT_EQ(world.rank, 2);
  EXPECT_EQ(world.size, 4);
  EXPECT_EQ(world.node, 0);
  EXPECT_EQ(world.nodes, 2);
  EXPECT_EQ(deft_node_of(session, 1), 1);
  EXPECT_EQ(deft_node_of(session, 4), -1);
  EXPECT_EQ(deft_node_of(session, -1), -1);
  deft_close(session);
}

TEST(Attach, HelloSaysWhoAndWhatWasSet) {
  ipc::Decoded<ipc::Hello> hello;
  ScriptedDaemon daemon([&](Worker& worker) {
    const auto packet = worker.receive();
    hello = *ipc::decode<ipc::Hello>(packet.bytes, ipc::MessageKind::kHello, 4);
    worker.send_error(ErrorKind::kLost, "enough");
  });
  const std::string socket = "socket=" + daemon.path();
  const char* options[] = {socket.c_str(), "rank=1",     "world_size=3", "policy=bytescheduler",
                           "job=mine",     "leader=a:1", nullptr};
  deft_session* session = nullptr;
  EXPECT_EQ(deft_open(options, &session, nullptr), DEFT_ELOST);
  EXPECT_EQ(hello.fixed.rank, 1u);
  EXPECT_EQ(hello.fixed.world, 3u);
  EXPECT_EQ(hello.texts[0], "mine");
  EXPECT_EQ(hello.texts[1], "a:1");
  EXPECT_EQ(hello.texts[2], "policy=bytescheduler\n");
  EXPECT_EQ(hello.texts[3], deft_version());
}

TEST(Attach, CloseSaysGoodbye) {
  ScriptedDaemon daemon([](Worker& worker) {
    worker.welcome();
    EXPECT_EQ(ipc::decode_header(worker.receive().bytes)->kind, ipc::MessageKind::kGoodbye);
    EXPECT_TRUE(worker.receive().bytes.empty());
  });
  deft_close(daemon.open());
  deft_close(nullptr);
}

TEST(Attach, NoDaemonIsAnErrorAtOnce) {
  const Scratch scratch;
  const std::string socket = "socket=" + scratch.file("none.sock");
  const char* options[] = {socket.c_str(), nullptr};
  deft_session* session = nullptr;
  deft_error error{};
  const TimeUs before = MonotonicClock::now();
  EXPECT_EQ(deft_open(options, &session, &error), DEFT_EUNAVAILABLE);
  EXPECT_LT(MonotonicClock::now() - before, kPatienceUs);
  EXPECT_NE(std::string(error.message).find("none.sock"), std::string::npos);
}

TEST(Attach, TheDaemonsRefusalIsToldInFull) {
  ScriptedDaemon daemon([](Worker& worker) { worker.send_error(ErrorKind::kMismatch, "rank 1 says 4 workers"); });
  EXPECT_EQ(refused(daemon, DEFT_EMISMATCH), "attach rank 0 of 1 (DEFT_RANK): here: rank 1 says 4 workers (do this)");
}

TEST(Attach, AWorkerThatNoLauncherHasStartedIsToldSo) {
  ScriptedDaemon daemon([](Worker& worker) { worker.send_error(ErrorKind::kMismatch, "rank 1 says 4 workers"); });
  const std::string socket = "socket=" + daemon.path();
  const char* options[] = {socket.c_str(), nullptr};
  deft_session* session = nullptr;
  deft_error error{};
  EXPECT_EQ(deft_open(options, &session, &error), DEFT_EMISMATCH);
  EXPECT_EQ(std::string(error.message).rfind("attach rank 0 of 1 (no launcher's variables are set): ", 0), 0u)
      << error.message;
}

TEST(Attach, AnotherProtocolVersionIsNamed) {
  ScriptedDaemon daemon([](Worker& worker) {
    worker.receive();
    auto bytes = ipc::encode(ipc::Welcome{}, ipc::MessageKind::kWelcome);
    ipc::MessageHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    header.version = 99;
    std::memcpy(bytes.data(), &header, sizeof header);
    worker.send(bytes);
  });
  EXPECT_NE(refused(daemon, DEFT_EMISMATCH).find("version 99"), std::string::npos);
}

TEST(Attach, ADaemonThatHangsUpIsLost) {
  ScriptedDaemon daemon([](Worker& worker) { worker.receive(); });
  refused(daemon, DEFT_ELOST);
}

TEST(Attach, ADaemonThatReadsAndNeverAnswersIsATimeout) {
  ScriptedDaemon daemon([](Worker& worker) {
    while (!worker.receive().bytes.empty()) continue;  // until the worker gives up
  });
  refused(daemon, DEFT_ETIMEOUT, "1s");
}

TEST(Attach, ADaemonThatReadsNothingHangsAndIsNotWaitedForAsLongAsOneThatDoes) {
  std::promise<void> told;
  ScriptedDaemon daemon([&told](Worker& worker) {
    worker.receive();  // HELLO
    told.get_future().wait();
  });
  const std::string text = refused(daemon, DEFT_ELOST, "1s");
  told.set_value();
  EXPECT_NE(text.find("hangs: it has read nothing on"), std::string::npos) << text;
}

TEST(Attach, GarbageIsAViolation) {
  ScriptedDaemon daemon([](Worker& worker) { worker.send(std::vector<std::byte>(333, std::byte{0xaa})); });
  refused(daemon, DEFT_EVIOLATION);
}

TEST(Attach, AMessageOfAnotherKindIsAViolation) {
  ScriptedDaemon daemon([](Worker& worker) { worker.send(ipc::encode(ipc::Declared{}, ipc::MessageKind::kDeclared)); });
  refused(daemon, DEFT_EVIOLATION);
}

TEST(Attach, MissingDescriptorsAreAViolation) {
  ScriptedDaemon daemon([](Worker& worker) { welcome_with(worker, {}); });
  refused(daemon, DEFT_EVIOLATION);
}

TEST(Attach, AnotherWorldIsAMismatch) {
  ScriptedDaemon daemon([](Worker& worker) { welcome_with(worker, {}, 5); });
  EXPECT_NE(refused(daemon, DEFT_EMISMATCH).find("5 workers"), std::string::npos);
}

TEST(Attach, UnsealedMemoryIsRefused) {
  ScriptedDaemon daemon([](Worker& worker) {
    const Descriptor memory(memfd_create("test", MFD_CLOEXEC));
    ASSERT_EQ(ftruncate(memory.get(), shm::kControlSegmentBytes), 0);
    const auto bell = shm::Doorbell::create();
    welcome_with(worker, std::array{memory.get(), bell->descriptor()});
  });
  EXPECT_NE(refused(daemon, DEFT_EVIOLATION).find("not sealed"), std::string::npos);
}

TEST(Attach, AnotherDaemonsMemoryIsRefused) {
  ScriptedDaemon daemon([](Worker& worker) {
    auto memory = shm::Segment::create("test", shm::kControlSegmentBytes);
    shm::ControlSegment::format(*memory, 1234);  // WELCOME says 0
    const auto bell = shm::Doorbell::create();
    welcome_with(worker, std::array{memory->descriptor(), bell->descriptor()});
  });
  refused(daemon, DEFT_EVIOLATION);
}

TEST(Attach, WrongOptionsAreNamedBeforeAnythingElse) {
  deft_session* session = nullptr;
  deft_error error{};
  const char* unknown[] = {"polcy=fifo", nullptr};
  EXPECT_EQ(deft_open(unknown, &session, &error), DEFT_EINVALID);
  EXPECT_NE(std::string(error.message).find("policy"), std::string::npos);
  const char* shapeless[] = {"policy", nullptr};
  EXPECT_EQ(deft_open(shapeless, &session, &error), DEFT_EINVALID);
  const char* rank[] = {"rank=4", "world_size=4", nullptr};
  EXPECT_EQ(deft_open(rank, &session, &error), DEFT_EINVALID);
}

TEST(Option, IsTheEffectiveValue) {
  deft_error error{};
  EXPECT_STREQ(deft_option("job", &error), "default");
  EXPECT_EQ(deft_option("jbo", &error), nullptr);
  EXPECT_EQ(error.kind, DEFT_EINVALID);
  setenv("DEFT_JOB", "other", 1);
  EXPECT_STREQ(deft_option("job", &error), "other");
  unsetenv("DEFT_JOB");
}

TEST(PolicyTraits, ArePluginsOnlyListOfPolicies) {
  deft_error error{};
  EXPECT_EQ(deft_policy_traits("fifo", &error), 0);
  EXPECT_EQ(deft_policy_traits("mgwfbp", &error), 0);
  EXPECT_EQ(deft_policy_traits("bytescheduler", &error), DEFT_POLICY_OVERLAPS_FORWARD);
  EXPECT_EQ(deft_policy_traits("knapsack", &error), DEFT_POLICY_OVERLAPS_FORWARD | DEFT_POLICY_DELAYS_UPDATES);
  EXPECT_EQ(error.kind, DEFT_OK);
  EXPECT_EQ(deft_policy_traits("fife", &error), -DEFT_EINVALID);
  EXPECT_NE(std::string(error.message).find("fife"), std::string::npos);
  EXPECT_EQ(deft_policy_traits(nullptr, nullptr), -DEFT_EINVALID);
}

}  // namespace
}  // namespace deft::test
