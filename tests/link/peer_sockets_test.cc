// Members of a link connect with each other, whoever else knocks meanwhile.
#include "core/link/peer_sockets.h"
#include "core/base/descriptor.h"

#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "core/link/address.h"
#include "core/link/rendezvous.h"
#include "core/link/secret.h"
#include "tests/link/backends.h"

namespace deft::link::testing {
namespace {

constexpr std::size_t kSecretBytes = 16;
constexpr std::uint64_t kCall = 0x314c4c4143544645, kAnswer = 0x31525753414f4544;
const LinkSpec kLoopback{"tcp", "lo", "127.0.0.1"};

Bytes published(const LinkGroup& group, std::string_view topic, std::uint32_t member) {
  const std::string key = meeting_key(group, topic, member);
  auto values = group.store->get({&key, 1}, seconds_from_now(20));
  return values ? values->front() : Bytes();
}

// A connection to the port that this member has published.
Descriptor knock(const Bytes& invitation) {
  const auto address = from_text(std::span(invitation).subspan(kSecretBytes));
  EXPECT_TRUE(address);
  Descriptor made(socket(address->family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(made.get(), address->get(), address->bytes), 0);
  return made;
}

Bytes greeting(std::uint64_t magic, std::uint64_t member, std::span<const std::byte> secret) {
  Bytes bytes(32);
  std::memcpy(bytes.data(), &magic, sizeof magic);
  std::memcpy(bytes.data() + 8, &member, sizeof member);
  std::ranges::copy(secret.first(kSecretBytes), bytes.begin() + 16);
  return bytes;
}

void say(const Descriptor& socket, const Bytes& bytes) {
  EXPECT_EQ(send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

bool is_hung_up(const Descriptor& socket) {
  char byte = 0;
  return recv(socket.get(), &byte, 1, 0) <= 0;
}

struct PeerSockets : ::testing::Test {
  LinkGroup member(std::uint32_t own) const {
    LinkGroup copy = group;
    copy.node = own;
    return copy;
  }
  LinkGroup group = make_group(3, std::make_shared<MemoryStore>());
};

TEST_F(PeerSockets, EachMemberTalksToEachOther) {
  std::vector<std::thread> threads;
  for (std::uint32_t own = 0; own < 3; ++own)
    threads.emplace_back([this, own] {
      auto sockets = connect_peers(kLoopback, member(own), "test");
      ASSERT_TRUE(sockets) << sockets.error().message();
      ASSERT_FALSE(sockets->sockets[own].valid());
      for (std::uint32_t peer = 0; peer < 3; ++peer) {
        if (peer == own) continue;
        const char word = static_cast<char>('0' + own);
        ASSERT_EQ(send(sockets->sockets[peer].get(), &word, 1, MSG_NOSIGNAL), 1);
      }
      for (std::uint32_t peer = 0; peer < 3; ++peer) {
        if (peer == own) continue;
        char word = 0;
        while (recv(sockets->sockets[peer].get(), &word, 1, 0) < 0) std::this_thread::yield();
        EXPECT_EQ(word, static_cast<char>('0' + peer));
      }
    });
  for (auto& thread : threads) thread.join();
}

TEST_F(PeerSockets, AMemberCallsFromTheAddressOfItsOwnNic) {
  group.nodes = 2;
  Result<PeerConnections> first;
  std::thread waiting([&] { first = connect_peers(kLoopback, member(0), "test"); });
  const auto second = connect_peers({"tcp", "lo", "127.0.0.9"}, member(1), "test");
  waiting.join();
  ASSERT_TRUE(first && second);
  sockaddr_storage caller{};
  socklen_t size = sizeof caller;
  ASSERT_EQ(getpeername(first->sockets[1].get(), reinterpret_cast<sockaddr*>(&caller), &size), 0);
  const Address nic = make_address("127.0.0.9", 0).value();
  EXPECT_EQ(reinterpret_cast<const sockaddr_in&>(caller).sin_addr.s_addr,
            reinterpret_cast<const sockaddr_in*>(nic.get())->sin_addr.s_addr);
}

TEST_F(PeerSockets, StrangersGetNoFurtherAndHoldNobodyUp) {
  group.nodes = 2;
  Result<PeerConnections> first, second;
  std::thread waiting([&] { first = connect_peers(kLoopback, member(0), "test"); });
  const Bytes invitation = published(group, "test", 0);
  const StrangerCounts before = stranger_counts();
  std::vector<Descriptor> silent;
  for (int i = 0; i < 400; ++i) silent.push_back(knock(invitation));
  const auto secret = std::span(invitation).first(kSecretBytes);
  Bytes wrong_secret(secret.begin(), secret.end());
  wrong_secret.back() ^= std::byte{1};
  const Bytes attacks[] = {Bytes(48, std::byte{0xFF}), greeting(kCall, 1, wrong_secret), greeting(kCall, 7, secret),
                           greeting(kCall, 0, secret), greeting(kCall + 1, 1, secret)};
  std::vector<Descriptor> strangers;
  for (const Bytes& attack : attacks) {
    strangers.push_back(knock(invitation));
    say(strangers.back(), attack);
  }
  second = connect_peers(kLoopback, member(1), "test");
  waiting.join();
  ASSERT_TRUE(first) << first.error().message();
  ASSERT_TRUE(second) << second.error().message();
  EXPECT_TRUE(first->sockets[1].valid() && second->sockets[0].valid());
  for (const Descriptor& stranger : strangers) EXPECT_TRUE(is_hung_up(stranger));
  for (const Descriptor& stranger : silent) EXPECT_TRUE(is_hung_up(stranger));
  EXPECT_GE(stranger_counts().wrong, before.wrong + std::size(attacks));
  EXPECT_GT(stranger_counts().crowded_out, before.crowded_out);
}

TEST_F(PeerSockets, WithoutDescriptorsTheOpeningFailsAtOnceAndSaysWhy) {
  group.nodes = 2;
  group.connect_deadline_us = seconds_from_now(600);
  ASSERT_OK(group.store->set(meeting_key(group, "test", 1), with_text(Secret{}, to_text("127.0.0.1", 9))));
  Result<PeerConnections> sockets;
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  std::thread waiting([&] {
    sockets = connect_peers(kLoopback, member(0), "test");
    setrlimit(RLIMIT_NOFILE, &before);  // UBSan wants descriptors when the thread ends
  });
  const Bytes invitation = published(group, "test", 0);
  const auto address = from_text(std::span(invitation).subspan(kSecretBytes));
  ASSERT_TRUE(address);
  const Descriptor caller(socket(address->family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto next = static_cast<rlim_t>(Descriptor(dup(caller.get())).get());
  const rlimit none_is_left{next, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none_is_left);
  EXPECT_EQ(connect(caller.get(), address->get(), address->bytes), 0);
  waiting.join();
  ASSERT_FALSE(sockets);
  EXPECT_EQ(sockets.error().kind, ErrorKind::kExhausted);
  EXPECT_NE(sockets.error().what.find("Too many open files"), std::string::npos) << sockets.error().message();
}

// The test plays members 1 and 2. A greeting that was overheard gets nobody in a second time, and half of one does not, either.
TEST_F(PeerSockets, AReplayedGreetingAndHalfOfOneAreHungUp) {
  Result<PeerConnections> sockets;
  std::thread waiting([&] { sockets = connect_peers(kLoopback, member(0), "test"); });
  for (const std::uint32_t member : {1U, 2U})
    ASSERT_OK(group.store->set(meeting_key(group, "test", member), with_text(Secret{}, to_text("127.0.0.1", 9))));
  const Bytes invitation = published(group, "test", 0);
  const auto secret = std::span(invitation).first(kSecretBytes);
  const StrangerCounts before = stranger_counts();
  const Descriptor first = knock(invitation);
  say(first, greeting(kCall, 1, secret));
  char answer[32];
  ASSERT_EQ(recv(first.get(), answer, sizeof answer, MSG_WAITALL), 32);
  const Descriptor replayed = knock(invitation);
  say(replayed, greeting(kCall, 1, secret));
  EXPECT_TRUE(is_hung_up(replayed));
  const Descriptor half = knock(invitation);
  const Bytes whole = greeting(kCall, 2, secret);
  say(half, {whole.begin(), whole.begin() + 20});
  EXPECT_TRUE(is_hung_up(half));  // after kStrangerUs
  const Descriptor second = knock(invitation);
  say(second, whole);
  waiting.join();
  ASSERT_TRUE(sockets) << sockets.error().message();
  EXPECT_TRUE(sockets->sockets[1].valid() && sockets->sockets[2].valid());
  EXPECT_EQ(stranger_counts().wrong, before.wrong + 1);
  EXPECT_EQ(stranger_counts().late, before.late + 1);
}

// The test plays members 1 and 2. To member 1 it is as if the answer had not come: it cannot know that member 0 has taken it in.
TEST_F(PeerSockets, AMemberWhoseConnectionBreaksBeforeItHearsTheAnswerComesAgain) {
  Result<PeerConnections> sockets;
  std::thread waiting([&] { sockets = connect_peers(kLoopback, member(0), "test"); });
  for (const std::uint32_t member : {1U, 2U})
    ASSERT_OK(group.store->set(meeting_key(group, "test", member), with_text(Secret{}, to_text("127.0.0.1", 9))));
  const Bytes invitation = published(group, "test", 0);
  const auto secret = std::span(invitation).first(kSecretBytes);
  char answer[32];
  {
    const Descriptor broken = knock(invitation);
    say(broken, greeting(kCall, 1, secret));
    ASSERT_EQ(recv(broken.get(), answer, sizeof answer, MSG_WAITALL), 32);
    const linger reset{1, 0};
    setsockopt(broken.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  }
  const Descriptor again = knock(invitation);
  say(again, greeting(kCall, 1, secret));
  EXPECT_EQ(recv(again.get(), answer, sizeof answer, MSG_WAITALL), 32);
  const Descriptor second = knock(invitation);
  say(second, greeting(kCall, 2, secret));
  waiting.join();
  ASSERT_TRUE(sockets) << sockets.error().message();
  say(again, Bytes(1, std::byte{7}));
  pollfd readable{sockets->sockets[1].get(), POLLIN, 0};
  ASSERT_EQ(poll(&readable, 1, 20'000), 1);
  EXPECT_EQ(recv(sockets->sockets[1].get(), answer, 1, 0), 1);
}

// The test plays member 0, which strangers crowd out of its own port for a while.
TEST_F(PeerSockets, AMemberThatHangsUpForAWhileIsCalledUntilItAnswers) {
  group.nodes = 2;
  const Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto address = make_address("127.0.0.1", 0);
  ASSERT_EQ(bind(listener.get(), address->get(), address->bytes), 0);
  ASSERT_EQ(listen(listener.get(), 64), 0);
  const std::string at = to_text("127.0.0.1", *port_of(listener.get()));
  ASSERT_OK(group.store->set(meeting_key(group, "test", 0), with_text(Secret{}, at)));
  Result<PeerConnections> sockets;
  std::thread calling([&] {
    sockets = connect_peers(kLoopback, member(1), "test");
    shutdown(listener.get(), SHUT_RDWR);
  });
  const Bytes caller = published(group, "test", 1);
  const TimeUs besieged_until_us = MonotonicClock::now() + 300'000;
  Descriptor taken;
  do {
    taken.reset();
    taken = Descriptor(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  } while (taken.valid() && MonotonicClock::now() < besieged_until_us);
  if (taken.valid()) say(taken, greeting(kAnswer, 0, std::span(caller).first(kSecretBytes)));
  calling.join();
  ASSERT_TRUE(sockets) << sockets.error().message();
  EXPECT_TRUE(sockets->sockets[0].valid());
}

TEST_F(PeerSockets, WhoDoesNotKnowTheCallersSecretIsNotTakenForAMember) {
  group.nodes = 2;
  group.connect_deadline_us = seconds_from_now(20);
  Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto address = make_address("127.0.0.1", 0);
  ASSERT_EQ(bind(listener.get(), address->get(), address->bytes), 0);
  ASSERT_EQ(listen(listener.get(), 64), 0);
  Bytes invitation(kSecretBytes);
  for (const char c : to_text("127.0.0.1", *port_of(listener.get()))) invitation.push_back(static_cast<std::byte>(c));
  ASSERT_OK(group.store->set(meeting_key(group, "test", 0), invitation));
  std::atomic<bool> done{false};
  std::thread impostor([&] {
    while (!done) {
      const Descriptor caller(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!caller.valid()) return;
      send(caller.get(), Bytes(32, std::byte{1}).data(), 32, MSG_NOSIGNAL);
    }
  });
  const auto sockets = connect_peers(kLoopback, member(1), "test");
  done = true;
  shutdown(listener.get(), SHUT_RDWR);
  impostor.join();
  ASSERT_FALSE(sockets);
  EXPECT_EQ(sockets.error().kind, ErrorKind::kLost);
  EXPECT_NE(sockets.error().what.find("node 0"), std::string::npos) << sockets.error().message();
}

// To connect with a group of receivers is refused at once, as where no way leads there.
TEST_F(PeerSockets, TheDeadlineNamesTheReasonWhyAMemberCannotBeReached) {
  group.nodes = 2;
  group.connect_deadline_us = MonotonicClock::now();
  Bytes invitation(kSecretBytes);
  for (const char c : to_text("224.0.0.1", 9)) invitation.push_back(static_cast<std::byte>(c));
  ASSERT_OK(group.store->set(meeting_key(group, "test", 0), invitation));
  const auto sockets = connect_peers(kLoopback, member(1), "test");
  ASSERT_FALSE(sockets);
  EXPECT_EQ(sockets.error().kind, ErrorKind::kTimeout) << sockets.error().message();
  EXPECT_NE(sockets.error().what.find("node 0 (Network is unreachable)"), std::string::npos) << sockets.error().what;
}

void set_loopback(bool up) {
  const Descriptor any(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = static_cast<short>(up ? IFF_UP | IFF_RUNNING | IFF_LOOPBACK : 0);
  if (ioctl(any.get(), SIOCSIFFLAGS, &request) != 0) std::abort();
}

// The loopback is down from the moment in which a member reads where the others are until it has called them and waits.
struct StoreOfALateNetwork final : Store {
  explicit StoreOfALateNetwork(std::shared_ptr<Store> shared) : all(std::move(shared)) {}
  Result<void> set(const std::string& key, std::span<const std::byte> value) override { return all->set(key, value); }
  Result<std::vector<Bytes>> get(std::span<const std::string> keys, TimeUs deadline_us) override {
    auto values = all->get(keys, deadline_us);
    set_loopback(false);
    return values;
  }
  [[nodiscard]] bool ended() const override {
    set_loopback(true);
    return false;
  }
  std::shared_ptr<Store> all;
};

// Names the run of this program that is in a network of its own.
constexpr const char* kInItsOwnNetwork = "DEFT_TEST_IN_ITS_OWN_NETWORK";

// unshare(1) makes the network, because a process with threads cannot leave its user namespace, and TSan has a thread.
int run_in_a_network_of_its_own(const std::string& command) {
  const int status = std::system(("unshare --user --map-root-user --net " + command).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

struct OwnNetwork : ::testing::Test {
  void SetUp() override {
    if (!std::getenv(kInItsOwnNetwork) && run_in_a_network_of_its_own("true") != 0)
      GTEST_SKIP() << "the system forbids user namespaces";
  }
  // False: the test has run in another process, which has one.
  static bool is_here() {
    if (std::getenv(kInItsOwnNetwork)) return set_loopback(true), true;
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    const std::string program = std::filesystem::read_symlink("/proc/self/exe");
    const std::string environment = "env --unset GTEST_OUTPUT " + std::string(kInItsOwnNetwork) + "=1 ";
    EXPECT_EQ(run_in_a_network_of_its_own(environment + "'" + program + "' --gtest_filter=OwnNetwork." + name), 0);
    return false;
  }
};

TEST_F(OwnNetwork, AMemberIsCalledAgainUntilThereIsAWayToIt) {
  if (!is_here()) return;
  LinkGroup first = make_group(2, std::make_shared<MemoryStore>()), second = first;
  second.node = 1;
  second.store = std::make_shared<StoreOfALateNetwork>(first.store);
  Result<PeerConnections> answers;
  std::thread waiting([&] { answers = connect_peers(kLoopback, first, "test"); });
  const auto calls = connect_peers(kLoopback, second, "test");
  waiting.join();
  EXPECT_TRUE(calls) << calls.error().message();
  EXPECT_TRUE(answers) << answers.error().message();
}

// The kernel of a peer that is late says so long that it has no more room.
TEST_F(OwnNetwork, OfATcpLinkALatePeerIsWaitedForAndALostOneIsNot) {
  if (!is_here()) return;
  LinkGroup groups[2] = {make_group(2, std::make_shared<MemoryStore>()), {}};
  groups[0].silence_us = 150'000;
  groups[1] = groups[0];
  groups[1].node = 1;
  auto opened = std::async(std::launch::async, [&] { return open_link(kLoopback, groups[1]); });
  const auto first = open_link(kLoopback, groups[0]), second = opened.get();
  ASSERT_TRUE(first && second);
  const auto reduce = [](Link& link) {
    Bytes data(16 << 20);
    return all_reduce(link, data.data(), data.size(), model::DType::kUInt8, model::ReduceOp::kMax);
  };
  auto waits = std::async(std::launch::async, [&] { return reduce(**first); });
  EXPECT_EQ(waits.wait_for(std::chrono::milliseconds(600)), std::future_status::timeout);
  ASSERT_OK(reduce(**second));
  ASSERT_OK(waits.get());
  set_loopback(false);
  waits = std::async(std::launch::async, [&] { return reduce(**first); });
  const auto lost = reduce(**second);
  for (const auto& result : {lost, waits.get()}) {
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().what.find("its machine has acknowledged nothing for"), std::string::npos)
        << result.error().message();
  }
}

struct EndedStore final : Store {
  Result<void> set(const std::string& key, std::span<const std::byte> value) override { return memory.set(key, value); }
  Result<std::vector<Bytes>> get(std::span<const std::string> keys, TimeUs deadline_us) override {
    return memory.get(keys, deadline_us);
  }
  [[nodiscard]] bool ended() const override { return is_ended; }
  MemoryStore memory;
  std::atomic<bool> is_ended{false};
};

TEST(PeerSocketsOfAJob, TheEndOfTheJobEndsTheOpening) {
  const auto store = std::make_shared<EndedStore>();
  LinkGroup group = make_group(2, store);
  group.connect_deadline_us = seconds_from_now(60);
  Bytes invitation(kSecretBytes);  // of member 1, which then never comes
  for (const char c : to_text("127.0.0.1", 9)) invitation.push_back(static_cast<std::byte>(c));
  ASSERT_OK(store->set(meeting_key(group, "test", 1), invitation));
  const TimeUs began_us = MonotonicClock::now();
  std::thread ender([&] {
    published(group, "test", 0);
    store->is_ended = true;
  });
  const auto sockets = connect_peers(kLoopback, group, "test");
  ender.join();
  ASSERT_FALSE(sockets);
  EXPECT_EQ(sockets.error().kind, ErrorKind::kLost);
  EXPECT_LT(MonotonicClock::now() - began_us, 20'000'000);
}

// Node 1 proves itself and then sends what gloo cannot read: the process lives, and the link can be ended.
TEST(Gloo, APeerThatSendsNonsenseEndsNothingButItsLink) {
  LinkGroup group = make_group(2, std::make_shared<MemoryStore>());
  std::vector<Descriptor> sockets;
  std::thread peer([&, own = group]() mutable {
    own.node = 1;
    for (const char* prefix : {"", "priority/"}) {
      LinkGroup channel = own;
      channel.prefix += prefix;
      auto made = connect_peers({"gloo", "lo", "127.0.0.2"}, channel, "gloo");
      ASSERT_TRUE(made) << made.error().message();
      sockets.push_back(std::move(made->sockets[0]));
    }
  });
  const auto link = open_link({"gloo", "lo", "127.0.0.1"}, group);
  peer.join();
  ASSERT_TRUE(link) << link.error().message();
  const std::uint64_t to_no_slot[6] = {48 + 16, 0,  99'999,
                                       0,       16, 0};  // a preamble of gloo's: data for a buffer that is not there
  for (const Descriptor& socket : sockets) {
    const auto preamble = std::as_bytes(std::span(to_no_slot));
    say(socket, Bytes(preamble.begin(), preamble.end()));
    say(socket, Bytes(4800, std::byte{0xFF}));
  }
  std::thread ender([&] { (*link)->abort("enough"); });  // now or while the operation waits
  Bytes data(1 << 20);
  const auto done = all_reduce(**link, data.data(), data.size() / 4, model::DType::kFloat32, model::ReduceOp::kSum);
  ender.join();
  EXPECT_FALSE(done);
}

}  // namespace
}  // namespace deft::link::testing
