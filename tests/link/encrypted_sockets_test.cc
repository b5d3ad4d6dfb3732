// Encrypted connections over real TCP sockets, with somebody in between who reads all and changes what he likes.
#include "core/link/encryption/encrypted_sockets.h"
#include "core/base/descriptor.h"

#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <functional>
#include <latch>
#include <random>
#include <thread>

#include "core/link/encryption/records.h"
#include "core/link/peer_sockets.h"
#include "tests/link/backends.h"
#include "tests/link/tcp_pair.h"

namespace deft::link::testing {
namespace {

Bytes random_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; i += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(&bytes[i], &word, std::min(sizeof word, count - i));
  }
  return bytes;
}

void wait_for(const Descriptor& socket, short events) {
  pollfd entry{socket.get(), events, 0};
  poll(&entry, 1, -1);
}

// False if the connection does not take it all.
bool write_all(const Descriptor& socket, std::span<const std::byte> bytes, std::size_t piece = 1 << 20) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket.get(), bytes.data(), std::min(piece, bytes.size()), MSG_NOSIGNAL);
    if (sent >= 0)
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    else if (errno == EAGAIN)
      wait_for(socket, POLLOUT);
    else
      return false;
  }
  return true;
}

// All that comes until the end.
Bytes read_to_end(const Descriptor& socket) {
  Bytes all;
  Bytes some(1 << 20);
  while (true) {
    const ssize_t got = recv(socket.get(), some.data(), some.size(), 0);
    if (got > 0)
      all.insert(all.end(), some.begin(), some.begin() + got);
    else if (got < 0 && errno == EAGAIN)
      wait_for(socket, POLLIN);
    else
      return all;
  }
}

Bytes read_exactly(const Descriptor& socket, std::size_t count) {
  Bytes all(count);
  for (std::size_t have = 0; have < count;) {
    const ssize_t got = recv(socket.get(), &all[have], count - have, 0);
    if (got > 0)
      have += static_cast<std::size_t>(got);
    else if (got < 0 && errno == EAGAIN)
      wait_for(socket, POLLIN);
    else
      return Bytes(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(have));
  }
  return all;
}

// The two ends of an encrypted connection, as members 0 and 1 have them.
struct Ends {
  std::unique_ptr<EncryptedSockets> encryption[2];
  Descriptor plain[2];

  // `wires`: the TCP sockets of both, which need not be of one connection.
  explicit Ends(TcpPair wires) {
    const auto first = KeyPair::make(), second = KeyPair::make();
    open(0, std::move(wires.first), first->agree(second->public_key(), {.calls = false, .about = "test"}));
    open(1, std::move(wires.second), second->agree(first->public_key(), {.calls = true, .about = "test"}));
  }

 private:
  void open(std::uint32_t own, Descriptor wire, Result<ConnectionKeys> keys) {
    std::vector<EncryptedConnection::Wire> wires;
    wires.push_back({1 - own, std::move(wire), *std::move(keys)});
    auto made = EncryptedSockets::start(std::move(wires));
    EXPECT_TRUE(made) << made.error().message();
    encryption[own] = *std::move(made);
    plain[own] = encryption[own]->take_plain(1 - own);
  }
};

TEST(EncryptedSockets, CarryBytesOfAnySizesInBothDirectionsAtOnce) {
  Ends ends(tcp_pair());
  const Bytes sent[2] = {random_bytes(5'000'003, 1), random_bytes(3'000'001, 2)};
  Bytes received[2];
  std::vector<std::thread> threads;
  for (const std::size_t own : {0U, 1U}) {
    threads.emplace_back([&, own] {
      std::mt19937 random(static_cast<unsigned>(own));
      for (std::span<const std::byte> left = sent[own]; !left.empty();) {
        const std::size_t part = std::min<std::size_t>(left.size(), 1 + random() % (random() % 2 == 0 ? 100 : 300'000));
        ASSERT_TRUE(write_all(ends.plain[own], left.first(part)));
        left = left.subspan(part);
      }
      shutdown(ends.plain[own].get(), SHUT_WR);
    });
    threads.emplace_back([&, own] { received[own] = read_to_end(ends.plain[own]); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(received[0] == sent[1]);
  EXPECT_TRUE(received[1] == sent[0]);
  EXPECT_EQ(ends.encryption[0]->failure_of(1), "");
  EXPECT_EQ(ends.encryption[1]->failure_of(0), "");
}

TEST(EncryptedSockets, AWriterWaitsForAReaderAndNothingIsLost) {
  Ends ends(tcp_pair());
  const Bytes sent = random_bytes(32 << 20, 3);
  std::latch full(1);
  std::thread writer([&] {
    std::span<const std::byte> left = sent;
    while (!left.empty()) {
      const ssize_t done = send(ends.plain[0].get(), left.data(), left.size(), MSG_NOSIGNAL);
      if (done < 0) break;
      left = left.subspan(static_cast<std::size_t>(done));
    }
    full.count_down();
    EXPECT_TRUE(write_all(ends.plain[0], left));
    ends.plain[0] = Descriptor();
  });
  full.wait();
  EXPECT_TRUE(read_to_end(ends.plain[1]) == sent);
  writer.join();
}

TEST(EncryptedSockets, AHalfThatIsClosedLeavesTheOtherOpen) {
  Ends ends(tcp_pair());
  shutdown(ends.plain[0].get(), SHUT_WR);
  EXPECT_TRUE(read_to_end(ends.plain[1]).empty());
  const Bytes answer = random_bytes(100'000, 4);
  ASSERT_TRUE(write_all(ends.plain[1], answer));
  EXPECT_TRUE(read_exactly(ends.plain[0], answer.size()) == answer);
  ends.plain[1] = Descriptor();
  EXPECT_TRUE(read_to_end(ends.plain[0]).empty());
  EXPECT_EQ(ends.encryption[0]->failure_of(1), "");
  EXPECT_EQ(ends.encryption[1]->failure_of(0), "");
}

TEST(EncryptedSockets, WhatWasWrittenBeforeTheEndArrives) {
  Ends ends(tcp_pair());
  const Bytes last = random_bytes(10'000, 5);
  ASSERT_TRUE(write_all(ends.plain[0], last));
  ends.plain[0] = Descriptor();
  ends.encryption[0].reset();
  EXPECT_TRUE(read_to_end(ends.plain[1]) == last);
  EXPECT_EQ(ends.encryption[1]->failure_of(0), "");
}

// Also if a child process has a copy of the socket, so that it is never closed.
TEST(EncryptedSockets, TheEndComesWithoutTheSocketBeingClosed) {
  Ends ends(tcp_pair());
  const Bytes last = random_bytes(10'000, 6);
  ASSERT_TRUE(write_all(ends.plain[0], last));
  ends.encryption[0].reset();
  EXPECT_TRUE(read_to_end(ends.plain[1]) == last);
}

TEST(EncryptedSockets, WhoWritesToAPeerThatIsGoneHearsOfIt) {
  Ends ends(tcp_pair());
  ends.plain[1] = Descriptor();
  const Bytes much(1 << 20);
  while (write_all(ends.plain[0], much)) {
  }
  EXPECT_TRUE(read_to_end(ends.plain[0]).empty());
}

TEST(EncryptedSockets, AbandoningEndsBothSidesAtOnce) {
  Ends ends(tcp_pair());
  const Bytes much = random_bytes(32 << 20, 7);
  std::thread writer([&] { EXPECT_FALSE(write_all(ends.plain[0], much)); });  // nobody reads it
  wait_for(ends.plain[1], POLLIN);
  ends.encryption[0]->abandon();
  writer.join();
  const Bytes received = read_to_end(ends.plain[1]);
  ASSERT_LT(received.size(), much.size());
  EXPECT_TRUE(std::ranges::equal(received, std::span(much).first(received.size())));
  EXPECT_TRUE(read_to_end(ends.plain[0]).empty());
}

TEST(EncryptedSockets, APeerThatDiesIsNotOneThatCloses) {
  TcpPair wires = tcp_pair();
  const Descriptor dies = std::move(wires.second);
  Ends ends({std::move(wires.first), tcp_pair().second});
  shutdown(dies.get(), SHUT_WR);
  EXPECT_TRUE(read_to_end(ends.plain[0]).empty());
  EXPECT_NE(ends.encryption[0]->failure_of(1), "");
}

// Spinning would take the time of compute. On a busy machine this process gets less than it could take, and never more.
TEST(EncryptedSockets, SleepWhileNothingMoves) {
  Ends open(tcp_pair()), half(tcp_pair()), closed(tcp_pair());
  shutdown(half.plain[0].get(), SHUT_WR);
  EXPECT_TRUE(read_to_end(half.plain[1]).empty());
  closed.plain[0] = Descriptor();
  EXPECT_TRUE(read_to_end(closed.plain[1]).empty());
  const auto cpu_ms = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) / 1e6;
  };
  const double before = cpu_ms();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(cpu_ms() - before, 50);
}

TEST(EncryptedSockets, TheirWiresAreTcpSockets) {
  Ends ends(tcp_pair());
  tcp_info info{};
  socklen_t size = sizeof info;
  EXPECT_EQ(getsockopt(ends.encryption[0]->wire(1), IPPROTO_TCP, TCP_INFO, &info, &size), 0);
  EXPECT_EQ(ends.encryption[0]->wire(0), -1);
  EXPECT_FALSE(ends.encryption[0]->take_plain(1).valid());
}

// Stands between member 0 and member 1, and hands on what `change` makes of the records that member 0 sends.
class InBetween {
 public:
  // Changes the records that have come so far; the last one is new. Returns those that go on now; none: nothing goes on any more.
  using Change = std::function<std::optional<Bytes>(Bytes record)>;

  explicit InBetween(Change change) : change_(std::move(change)), left_(tcp_pair()), right_(tcp_pair()) {}
  ~InBetween() {
    for (std::thread* thread : {&forth_, &back_})
      if (thread->joinable()) thread->join();
  }
  InBetween(const InBetween&) = delete;
  InBetween& operator=(const InBetween&) = delete;

  // The wires of both members.
  TcpPair wires() { return {std::move(left_.first), std::move(right_.second)}; }
  void begin() {
    forth_ = std::thread([this] { hand_records_on(); });
    back_ = std::thread([this] {
      const Bytes all = read_to_end(right_.first);
      write_all(left_.second, all);
      shutdown(left_.second.get(), SHUT_WR);
    });
  }
  [[nodiscard]] const Bytes& seen() const { return seen_; }  // when all has ended
  void join() { forth_.join(); }

 private:
  void hand_records_on() {
    while (true) {
      Bytes record = read_exactly(left_.second, kRecordHeaderBytes);
      if (record.size() < kRecordHeaderBytes) break;
      const std::size_t text = std::to_integer<std::size_t>(record[0]) | std::to_integer<std::size_t>(record[1]) << 8 |
                               std::to_integer<std::size_t>(record[2]) << 16;
      const Bytes rest = read_exactly(left_.second, text + kProofBytes);
      record.insert(record.end(), rest.begin(), rest.end());
      seen_.insert(seen_.end(), record.begin(), record.end());
      const auto changed = change_(std::move(record));
      if (!changed || !write_all(right_.first, *changed)) break;
    }
    shutdown(right_.first.get(), SHUT_RDWR);
  }

  Change change_;
  TcpPair left_, right_;
  Bytes seen_;
  std::thread forth_, back_;
};

// What happens to the third record.
enum class Attack {
  kFlipText,
  kFlipLength,
  kFlipKind,
  kFlipProof,
  kRepeat,
  kSwap,
  kLeaveOut,
  kCut,
  kCutInside,
  kNoise
};

InBetween::Change make(Attack attack) {
  return [attack, count = 0, held = Bytes()](Bytes record) mutable -> std::optional<Bytes> {
    constexpr int kThird = 2;
    const int number = count++;
    if (number == kThird + 1 && attack == Attack::kSwap) {
      record.insert(record.end(), held.begin(), held.end());
      return record;
    }
    if (number != kThird) return record;
    switch (attack) {
      case Attack::kFlipText: record[kRecordHeaderBytes + 17] ^= std::byte{4}; return record;
      case Attack::kFlipLength: record[0] ^= std::byte{1}; return record;
      case Attack::kFlipKind: record[3] ^= std::byte{3}; return record;
      case Attack::kFlipProof: record.back() ^= std::byte{128}; return record;
      case Attack::kRepeat: {
        Bytes twice = record;
        twice.insert(twice.end(), record.begin(), record.end());
        return twice;
      }
      case Attack::kSwap: held = std::move(record); return Bytes();
      case Attack::kLeaveOut: return Bytes();
      case Attack::kCut: return std::nullopt;
      case Attack::kCutInside: record.resize(record.size() / 2); return record;
      case Attack::kNoise: return random_bytes(record.size(), 9);
    }
    return record;
  };
}

class ManInTheMiddle : public ::testing::TestWithParam<Attack> {};
INSTANTIATE_TEST_SUITE_P(Attacks, ManInTheMiddle,
                         ::testing::Values(Attack::kFlipText, Attack::kFlipLength, Attack::kFlipKind,
                                           Attack::kFlipProof, Attack::kRepeat, Attack::kSwap, Attack::kLeaveOut,
                                           Attack::kCut, Attack::kCutInside, Attack::kNoise));

// Each piece is written when the one before has arrived, so each is one record.
TEST_P(ManInTheMiddle, IsNoticedAndNothingThatHeMadeComesOut) {
  constexpr std::size_t kPiece = 1000, kPieces = 6;
  const Attack attack = GetParam();
  InBetween between(make(attack));
  Ends ends(between.wires());
  between.begin();
  const Bytes sent = random_bytes(kPiece * kPieces, 8);
  const auto piece = [&](std::size_t i) { return std::span(sent).subspan(i * kPiece, kPiece); };
  for (const std::size_t i : {0U, 1U}) {
    ASSERT_TRUE(write_all(ends.plain[0], piece(i)));
    ASSERT_TRUE(std::ranges::equal(read_exactly(ends.plain[1], kPiece), piece(i)));
  }
  for (std::size_t i = 2; i < kPieces; ++i) write_all(ends.plain[0], piece(i));
  shutdown(ends.plain[0].get(), SHUT_WR);
  const Bytes after = read_to_end(ends.plain[1]);
  if (attack == Attack::kRepeat)  // the first one was sound
    EXPECT_TRUE(std::ranges::equal(after, std::span(sent).subspan(2 * kPiece, after.size())));
  else
    EXPECT_TRUE(after.empty());
  EXPECT_NE(ends.encryption[1]->failure_of(0), "");
  const std::byte word{};
  EXPECT_FALSE(write_all(ends.plain[1], {&word, 1}));
  EXPECT_TRUE(read_to_end(ends.plain[0]).empty());
  EXPECT_NE(ends.encryption[0]->failure_of(1), "");  // it hears of it, too: its connection was cut
}

TEST(EncryptedSockets, NobodyInBetweenReadsWhatIsSent) {
  InBetween between([](Bytes record) { return record; });
  Ends ends(between.wires());
  between.begin();
  const Bytes pattern = random_bytes(64, 10);
  Bytes sent;
  while (sent.size() < 500'000) sent.insert(sent.end(), pattern.begin(), pattern.end());
  std::thread writer([&] {
    write_all(ends.plain[0], sent);
    ends.plain[0] = Descriptor();
  });
  EXPECT_TRUE(read_to_end(ends.plain[1]) == sent);
  writer.join();
  ends.plain[1] = Descriptor();
  between.join();
  ASSERT_GT(between.seen().size(), sent.size());
  const Bytes& seen = between.seen();
  for (auto piece = pattern.begin(); piece + 8 <= pattern.end(); ++piece)
    EXPECT_EQ(std::search(seen.begin(), seen.end(), piece, piece + 8), seen.end());
}

LinkGroup encrypting_group(std::uint32_t nodes) {
  LinkGroup group = make_group(nodes, std::make_shared<MemoryStore>());
  group.encrypts = true;
  return group;
}

TEST(EncryptedSockets, AreWhatMembersGetIfTheirGroupEncrypts) {
  const LinkGroup group = encrypting_group(3);
  std::vector<std::thread> threads;
  for (std::uint32_t own = 0; own < 3; ++own)
    threads.emplace_back([&, own] {
      LinkGroup member = group;
      member.node = own;
      auto made = connect_peers({"tcp", "lo", "127.0.0.1"}, member, "test");
      ASSERT_TRUE(made) << made.error().message();
      for (std::uint32_t peer = 0; peer < 3; ++peer) {
        if (peer == own) continue;
        EXPECT_NE(made->wire(peer), made->sockets[peer].get());
        EXPECT_TRUE(write_all(made->sockets[peer], Bytes(1000, static_cast<std::byte>(own))));
      }
      for (std::uint32_t peer = 0; peer < 3; ++peer) {
        if (peer == own) continue;
        EXPECT_EQ(read_exactly(made->sockets[peer], 1000), Bytes(1000, static_cast<std::byte>(peer)));
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(EncryptedSockets, AMemberThatDoesNotEncryptIsNamed) {
  const LinkGroup group = encrypting_group(2);
  std::vector<std::thread> threads;
  for (std::uint32_t own = 0; own < 2; ++own)
    threads.emplace_back([&, own] {
      LinkGroup member = group;
      member.node = own;
      member.encrypts = own == 0;
      const auto made = connect_peers({"tcp", "lo", "127.0.0.1"}, member, "test");
      ASSERT_FALSE(made);
      EXPECT_EQ(made.error().kind, ErrorKind::kMismatch);
      EXPECT_NE(made.error().what.find("node 1 does not encrypt"), std::string::npos) << made.error().message();
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace deft::link::testing
