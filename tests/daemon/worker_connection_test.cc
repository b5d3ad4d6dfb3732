// A worker's socket: what a client puts into it never makes the event loop wait.
#include "daemon/server/worker_connection.h"
#include "core/base/descriptor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <vector>

namespace deft::daemon {
namespace {

constexpr TimeUs kSoonUs = 30'000'000;
constexpr int kLingerSeconds = 60;

// A TCP connection whose last descriptor is closed for a minute: its data is not sent, because the other end does not read.
struct Lingering {
  Lingering() : listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    const auto* raw = reinterpret_cast<const sockaddr*>(&address);
    EXPECT_EQ(bind(listener.get(), raw, bytes), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
    sender = Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(sender.get(), raw, bytes), 0);
    const linger hold{1, kLingerSeconds};
    setsockopt(sender.get(), SOL_SOCKET, SO_LINGER, &hold, sizeof hold);
    fcntl(sender.get(), F_SETFL, O_NONBLOCK);
    const std::vector<char> piece(1 << 16);
    while (send(sender.get(), piece.data(), piece.size(), MSG_NOSIGNAL) > 0) continue;
    fcntl(sender.get(), F_SETFL, 0);  // a socket that does not block does not linger
  }
  Descriptor listener, sender;
};

struct WorkerConnectionTest : ::testing::Test {
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    client = Descriptor(ends[0]);
    ASSERT_EQ(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);  // as the listener gives it
    ipc::MessageSocket own{Descriptor(ends[1])};
    own.refuse_descriptors();
    connection.emplace(reactor, std::move(own), std::make_shared<QuotaAccount>(quotas, 7),
                       WorkerConnection::Events{[this](const ipc::Packet&) { ++packets; },
                                                [this](const Error& error) {
                                                  errors.push_back(error);
                                                  connection->stop();
                                                },
                                                [this] { connection->stop(); }});
    ASSERT_TRUE(connection->start());
  }
  void send(const std::string& text, int descriptor) {
    ipc::MessageSocket socket(std::move(client));
    const std::array<int, 1> one{descriptor};
    const auto bytes = std::as_bytes(std::span(text));
    EXPECT_TRUE(descriptor < 0 ? socket.send(bytes) : socket.send(bytes, one));
    client = Descriptor(dup(socket.descriptor()));
  }

  [[nodiscard]] std::uint64_t waiting_bytes() const {
    const auto users = quotas->status();
    return users.empty() ? 0 : users[0]["store"].get<std::uint64_t>();
  }

  Reactor reactor;
  const std::shared_ptr<UserQuotas> quotas = std::make_shared<UserQuotas>(quota_limits(Config()));
  Descriptor client;
  std::optional<WorkerConnection> connection;
  int packets = 0;
  std::vector<Error> errors;
};

TEST_F(WorkerConnectionTest, ADescriptorThatLingersHoldsNobodyUp) {
  Lingering tcp;
  send("before", -1);
  send("with a descriptor", tcp.sender.get());
  tcp.sender.reset();
  const TimeUs began_us = MonotonicClock::now();
  while (errors.empty()) reactor.run_once();
  connection.reset();
  EXPECT_EQ(packets, 1);
  EXPECT_NE(errors[0].what.find("descriptors came"), std::string::npos);
  EXPECT_LT(MonotonicClock::now() - began_us, kSoonUs);
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd"), end;
  return static_cast<std::size_t>(std::distance(all, end));
}

TEST_F(WorkerConnectionTest, SocketsDoNotGatherBehindThoseThatLinger) {
  std::vector<std::unique_ptr<Lingering>> held;
  for (unsigned i = 0; i < BlockingWork::kThreadsAUser; ++i) {
    SetUp();
    held.push_back(std::make_unique<Lingering>());
    send("unread", held.back()->sender.get());
    held.back()->sender.reset();
    connection.reset();
  }
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 50; ++i) {
    SetUp();
    send("unread", -1);
    connection.reset();
  }
  EXPECT_LE(open_descriptors(), before);
}

TEST_F(WorkerConnectionTest, AClientThatIsDroppedSeesTheEndAtOnce) {
  Lingering tcp;
  send("unread", tcp.sender.get());
  tcp.sender.reset();
  const TimeUs began_us = MonotonicClock::now();
  connection->stop();
  connection.reset();
  char byte = 0;
  // A reset, if the daemon's end has been closed by now, with what nobody has read.
  const auto got = recv(client.get(), &byte, 1, 0);
  EXPECT_TRUE(got == 0 || (got == -1 && errno == ECONNRESET)) << got << " " << errno;
  EXPECT_LT(MonotonicClock::now() - began_us, kSoonUs);
}

TEST_F(WorkerConnectionTest, WhatTheOtherSideDoesNotReadYetWaitsInOrderAndIsCharged) {
  constexpr std::uint32_t kMessages = 3000;  // more than the queue of the socket holds
  auto memory = std::make_shared<const shm::Segment>(*shm::Segment::create("test", 4096));
  for (std::uint32_t i = 0; i < kMessages; ++i) {
    std::vector<std::byte> packet(sizeof i);
    std::memcpy(packet.data(), &i, sizeof i);
    ASSERT_TRUE(connection->send_in_turn(std::move(packet), i % 1000 == 999 ? memory : nullptr)) << i;
  }
  EXPECT_GT(waiting_bytes(), 4000u);
  ipc::MessageSocket socket(std::move(client));
  for (std::uint32_t i = 0; i < kMessages; ++i) {
    auto packet = socket.try_receive();
    while (packet && !*packet) {
      reactor.run_once();
      packet = socket.try_receive();
    }
    ASSERT_TRUE(packet) << packet.error().message();
    std::uint32_t number = 0;
    std::memcpy(&number, (*packet)->bytes.data(), sizeof number);
    ASSERT_EQ(number, i);
    ASSERT_EQ((*packet)->descriptors.size(), i % 1000 == 999 ? 1u : 0u);
  }
  EXPECT_EQ(waiting_bytes(), 0u);
  EXPECT_TRUE(errors.empty());
}

TEST_F(WorkerConnectionTest, AUserWhoReadsNothingHasALimit) {
  QuotaAmounts limits = quota_limits(Config());
  limits[static_cast<std::size_t>(Quota::kStoreBytes)] = 10'000;
  quotas->set_limits(limits);
  Result<void> sent;
  for (int i = 0; i < 3000 && sent; ++i) sent = connection->send_in_turn(std::vector<std::byte>(100));
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().kind, ErrorKind::kExhausted);
  connection.reset();
  while (waiting_bytes() > 0) reactor.run_once();
}

}  // namespace
}  // namespace deft::daemon
