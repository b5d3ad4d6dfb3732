// The connections between daemons, within this process.
#include "daemon/wire/control_plane.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/daemon/ports.h"
#include "tests/link/socket_priorities.h"

namespace deft::daemon {
namespace {

std::string free_address() { return "127.0.0.1:" + std::to_string(free_port()); }

TEST(ControlPlane, ALeaderWithAnAddressOfIPv6IsAnErrorThatSaysSo) {
  Reactor reactor;
  const auto plane = ControlPlane::open(reactor, {.listen = free_address(), .secret_file = {}});
  ASSERT_TRUE(plane);
  for (const char* leader : {"[::1]:29610", "fd00::9:29610"}) {
    const auto peer = (*plane)->connect(leader, geteuid());
    ASSERT_FALSE(peer);
    EXPECT_NE(peer.error().message().find(std::string(leader) + "': daemons talk over IPv4 only"), std::string::npos);
  }
}

TEST(ControlPlane, MessagesOfBothSidesGoBeforeOtherTrafficOfTheNic) {
  const auto before = link::testing::socket_priorities();
  Reactor reactor;
  const std::string address = free_address();
  auto leader = ControlPlane::open(reactor, {.listen = address, .secret_file = {}});
  auto follower = ControlPlane::open(reactor, {.listen = free_address(), .secret_file = {}});
  ASSERT_TRUE(leader && follower);
  bool answered = false;
  (*leader)->on_message = [&](const Peer& from, std::span<const std::byte> message) {
    (*leader)->send(from, {reinterpret_cast<const char*>(message.data()), message.size()});
    return true;
  };
  (*follower)->on_message = [&](const Peer&, std::span<const std::byte> message) {
    answered = message.size() == 5;
    reactor.stop();
    return true;
  };
  const auto peer = (*follower)->connect(address, getuid());
  ASSERT_TRUE(peer);
  (*follower)->send(*peer, "hello");
  reactor.after(60'000'000, [&] { reactor.stop(); });
  reactor.run();
  ASSERT_TRUE(answered);
  const auto seen = link::testing::socket_priorities();
  EXPECT_EQ(seen.count(6) - before.count(6), 2U);  // both ends of the one connection
  EXPECT_EQ(seen.size() - before.size(), 2U);
}

TEST(ControlPlane, ALeaderIsFoundByItsNameWithoutTheLoopWaitingForTheResolver) {
  Reactor reactor;
  const std::string port = std::to_string(free_port());
  auto leader = ControlPlane::open(reactor, {.listen = "127.0.0.1:" + port, .secret_file = {}});
  auto follower = ControlPlane::open(reactor, {.listen = free_address(), .secret_file = {}});
  ASSERT_TRUE(leader && follower);
  bool heard = false;
  (*leader)->on_message = [&](const Peer&, std::span<const std::byte> message) {
    heard = message.size() == 5;
    reactor.stop();
    return true;
  };
  (*follower)->on_stuck = [](const Peer& to) { ADD_FAILURE() << to << " has no address yet, and is not stuck"; };
  const auto peer = (*follower)->connect("localhost:" + port, getuid());
  ASSERT_TRUE(peer);
  EXPECT_TRUE((*follower)->is_nowhere(*peer));
  const std::function<void()> send = [&] {
    (*follower)->send(*peer, "hello");
    reactor.after(20'000, send);
  };
  send();
  reactor.after(60'000'000, [&] { reactor.stop(); });
  reactor.run();
  EXPECT_TRUE(heard);
  EXPECT_FALSE((*follower)->is_nowhere(*peer));
  for (const char* wrong : {"nonsense", ":1", "host:", "host:0", "host:70000", "host:1x"})
    EXPECT_FALSE((*follower)->connect(wrong, getuid())) << wrong;
  (*follower)->disconnect(*peer);
}

// Sending takes in what has come, and ZeroMQ's descriptor does not tell of that any more.
TEST(ControlPlane, AMessageThatComesJustBeforeOneIsSentIsDelivered) {
  using namespace std::chrono_literals;
  Reactor of_leader, of_follower;
  const std::string address = free_address();
  auto leader = ControlPlane::open(of_leader, {.listen = address, .secret_file = {}});
  auto follower = ControlPlane::open(of_follower, {.listen = free_address(), .secret_file = {}});
  ASSERT_TRUE(leader && follower);
  int asked = 0, told = 0;
  Peer from;
  (*leader)->on_message = [&](const Peer& peer, std::span<const std::byte>) { return from = peer, ++asked > 0; };
  (*follower)->on_message = [&](const Peer&, std::span<const std::byte>) { return ++told > 0; };
  const auto peer = (*follower)->connect(address, getuid());
  ASSERT_TRUE(peer);
  // Until nothing has happened for a while.
  const auto settle = [&] {
    for (int quiet = 0; quiet < 20; ++quiet) {
      while (of_leader.run_once() || of_follower.run_once()) quiet = 0;
      std::this_thread::sleep_for(1ms);
    }
  };
  for (int round = 1; round <= 5; ++round) {
    (*follower)->send(*peer, "question");
    for (int wait = 0; asked < round && wait < 10'000; ++wait) settle();
    settle();
    ASSERT_EQ(asked, round);
    (*leader)->send(from, "answer");
    std::this_thread::sleep_for(20ms);  // the answer is here, and the follower has not looked
    (*follower)->send(*peer, "another question");
    for (int wait = 0; told < round && wait < 1000; ++wait) settle();  // on a busy machine the answer is here only now
    settle();
    EXPECT_EQ(told, round);
    asked = round;
  }
}

// ZeroMQ's one thread once waited for ever to tell of such a connection's end, and this daemon reached no leader any more.
TEST(ControlPlane, ALeaderThatHangsUpOnWhoHasGivenItUpDoesNotKeepOthersWaiting) {
  const int silent = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in here{};
  here.sin_family = AF_INET;
  here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof here;
  ASSERT_EQ(bind(silent, reinterpret_cast<sockaddr*>(&here), size), 0);
  ASSERT_EQ(listen(silent, 8), 0);
  ASSERT_EQ(getsockname(silent, reinterpret_cast<sockaddr*>(&here), &size), 0);
  Reactor reactor;
  const std::string address = free_address();
  auto leader = ControlPlane::open(reactor, {.listen = address, .secret_file = {}});
  auto follower = ControlPlane::open(reactor, {.listen = free_address(), .secret_file = {}});
  ASSERT_TRUE(leader && follower);

  const auto given_up = (*follower)->connect("127.0.0.1:" + std::to_string(ntohs(here.sin_port)), getuid());
  ASSERT_TRUE(given_up);
  (*follower)->send(*given_up, "keeps the connection for a moment");
  const int accepted = accept(silent, nullptr, nullptr);
  ASSERT_GE(accepted, 0);
  (*follower)->disconnect(*given_up);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // ZeroMQ's thread closes in its own time
  close(accepted);

  bool heard = false;
  (*leader)->on_message = [&](const Peer&, std::span<const std::byte>) { return reactor.stop(), heard = true; };
  const auto peer = (*follower)->connect(address, getuid());
  ASSERT_TRUE(peer);
  (*follower)->send(*peer, "hello");
  reactor.after(20'000'000, [&] { reactor.stop(); });
  reactor.run();
  EXPECT_TRUE(heard);
  close(silent);
}

// A file with a key of its own; empty: none.
std::string key_file(const std::string& name) {
  if (name.empty()) return {};
  std::array<char, 41> open{}, secret{};
  EXPECT_EQ(zmq_curve_keypair(open.data(), secret.data()), 0);
  const std::string path = testing::TempDir() + "/" + name + std::to_string(getpid());
  std::ofstream(path) << secret.data() << "\n";
  return path;
}

TEST(ControlPlane, ADaemonKnowsThatAnotherKeyKeepsItOut) {
  const std::string one = key_file("one"), other = key_file("other");
  for (const auto& [leads, follows] : {std::pair{one, other}, {one, std::string()}, {std::string(), one}, {one, one}}) {
    Reactor reactor;
    const std::string address = free_address();
    auto leader = ControlPlane::open(reactor, {.listen = address, .secret_file = leads});
    auto follower = ControlPlane::open(reactor, {.listen = free_address(), .secret_file = follows});
    ASSERT_TRUE(leader && follower);
    bool heard = false;
    (*leader)->on_message = [&](const Peer&, std::span<const std::byte>) { return heard = true; };
    const auto peer = (*follower)->connect(address, getuid());
    ASSERT_TRUE(peer);
    (*follower)->send(*peer, "hello");
    const TimeUs until_us = reactor.now_us() + 60'000'000;
    std::function<void()> look = [&] {
      const bool known = heard || ((*follower)->is_locked_out(*peer) && (*leader)->refused().handshakes > 0);
      if (known || reactor.now_us() > until_us) return reactor.stop();
      reactor.after(1'000, look);
    };
    look();
    reactor.run();
    EXPECT_EQ(heard, leads == follows);
    EXPECT_EQ((*follower)->is_locked_out(*peer), leads != follows) << leads << " " << follows;
  }
  for (const auto& path : {one, other}) std::remove(path.c_str());
}

TEST(ControlPlane, LogsFewOfTheMessagesThatReachNobody) {
  ManualClock clock;
  Reactor reactor(clock);
  const auto plane = ControlPlane::open(reactor, {.listen = free_address(), .secret_file = {}});
  ASSERT_TRUE(plane);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 1000; ++i) (*plane)->send("a peer that has gone", "answer");
  const std::string log = testing::internal::GetCapturedStderr();
  std::size_t lines = 0;
  for (std::size_t at = 0; (at = log.find("could not be sent", at)) != std::string::npos; ++at) ++lines;
  EXPECT_EQ(lines, RateLimit::kASecond);
}

TEST(ControlPlane, APeerThatReadsNothingIsToldOfAndTakesNoMemoryForEver) {
  Reactor reactor;
  auto plane = ControlPlane::open(reactor, {.listen = free_address(), .secret_file = {}});
  ASSERT_TRUE(plane);
  const auto peer = (*plane)->connect(free_address(), getuid());  // nobody is there
  ASSERT_TRUE(peer);
  std::vector<Peer> stuck;
  (*plane)->on_stuck = [&](const Peer& to) { stuck.push_back(to); };
  for (int i = 0; i < 66'000 && stuck.empty(); ++i) {
    (*plane)->send(*peer, "x");
    if (i % 1000 == 0) reactor.run_once();
  }
  reactor.run_once();
  ASSERT_FALSE(stuck.empty());
  EXPECT_EQ(stuck[0], *peer);
}

}  // namespace
}  // namespace deft::daemon
