// What only the ps link promises: its servers are named when they are missing or lost, and share the work by size.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>
#include <zmq.hpp>

#include "core/base/descriptor.h"
#include "core/link/address.h"
#include "core/link/curve/curve_key.h"
#include "core/link/peer_sockets.h"
#include "core/link/ps/segmenter.h"
#include "core/link/ps/wire.h"
#include "core/link/rendezvous.h"
#include "core/link/secret.h"
#include "core/link/traffic.h"
#include "tests/link/backends.h"
#include "tests/link/server_process.h"

namespace deft::link::testing {
namespace {

using model::DType;
using model::ReduceOp;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

LinkSpec through(const std::string& servers) { return {"ps", servers, ""}; }

// Opens the link of each of `nodes` nodes and runs `body` with what came of it.
void on_links(LinkGroup group, const std::string& servers,
              const std::function<void(std::uint32_t, Result<std::unique_ptr<Link>>)>& body) {
  std::vector<std::thread> threads;
  for (std::uint32_t node = 0; node < group.nodes; ++node) {
    threads.emplace_back([&, node] {
      LinkGroup own = group;
      own.node = node;
      body(node, open_link(through(servers), own));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

Result<void> sum(Link& link, std::size_t bytes) {
  Bytes data(bytes);
  return all_reduce(link, data.data(), bytes, DType::kUInt8, ReduceOp::kSum);
}

TEST(ParameterServer, OneThatIsNotThereIsNamedByTheDeadlineOnAllNodes) {
  const ServerProcess here;
  LinkGroup group = make_group(2, std::make_shared<MemoryStore>());
  group.connect_deadline_us = seconds_from_now(1.5);
  on_links(group, here.address() + "+127.0.0.1:1", [](std::uint32_t, const Result<std::unique_ptr<Link>>& link) {
    ASSERT_FALSE(link);
    EXPECT_EQ(link.error().kind, ErrorKind::kTimeout);
    EXPECT_THAT(link.error().message(), HasSubstr("the parameter server 127.0.0.1:1 does not answer"));
  });
  EXPECT_LT(MonotonicClock::now(), group.connect_deadline_us + kPromptly);
}

constexpr int kOtherError = 1, kOpened = 2;

// Opens a link of node 0 while `free` descriptors are left. Node 1 and the server never come.
int opened_with(rlim_t free) {
  LinkGroup group = make_group(2, std::make_shared<MemoryStore>());
  if (!group.store->set(meeting_key(group, "ps", 1), with_text(Secret{}, "127.0.0.1:1"))) return kOtherError;
  group.connect_deadline_us = MonotonicClock::now();
  const auto next = static_cast<rlim_t>(Descriptor(dup(STDERR_FILENO)).get());
  const rlimit few{next + free, next + free};
  setrlimit(RLIMIT_NOFILE, &few);
  const auto link = open_link(through("127.0.0.1:1"), group);
  if (link || link.error().kind == ErrorKind::kTimeout) return kOpened;
  if (link.error().kind == ErrorKind::kExhausted && link.error().fix.find("ulimit -n") != std::string::npos) return 0;
  std::cerr << link.error().message() << "\n";
  return kOtherError;
}

TEST(ParameterServer, ALinkWithoutDescriptorsSaysSoAndNotThatTheAddressesAreWrong) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UBSan looks at memory through a pipe, which takes two descriptors";
#endif
  constexpr rlim_t kEnough = 64;
  rlim_t free = 0;
  for (; free < kEnough; ++free) {
    const pid_t child = fork();
    if (child == 0) _exit(opened_with(free));
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << "with " << free << " descriptors: signal " << WTERMSIG(status);
    if (WEXITSTATUS(status) == kOpened) break;
    EXPECT_EQ(WEXITSTATUS(status), 0) << "with " << free << " descriptors";
  }
  EXPECT_GT(free, 0);
  EXPECT_LT(free, kEnough);
}

TEST(ParameterServer, NodesThatNameOtherServersAreTold) {
  const ServerProcess first;
  const ServerProcess second;
  const LinkGroup group = make_group(2, std::make_shared<MemoryStore>());
  std::vector<std::thread> threads;
  for (std::uint32_t node = 0; node < 2; ++node) {
    threads.emplace_back([&, node] {
      LinkGroup own = group;
      own.node = node;
      const auto link = open_link(through(node == 0 ? first.address() : second.address()), own);
      ASSERT_FALSE(link);
      EXPECT_EQ(link.error().kind, ErrorKind::kMismatch);
      EXPECT_THAT(link.error().message(), HasSubstr(first.address()));
      EXPECT_THAT(link.error().message(), HasSubstr(second.address()));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ParameterServer, OneThatDiesOrFallsSilentIsNamedOnAllNodes) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    const ServerProcess healthy;
    const ServerProcess victim;
    LinkGroup group = make_group(3, std::make_shared<MemoryStore>());
    group.silence_us = 2'500'000;  // a server that gets no processor for so long counts as lost, too
    std::atomic<int> running{0};
    on_links(group, healthy.address() + "+" + victim.address(), [&](std::uint32_t node, auto link) {
      ASSERT_TRUE(link) << link.error().message();
      ASSERT_OK(sum(**link, 1'000'000));
      ++running;
      if (node == 0) {
        while (running < 3) std::this_thread::yield();
        victim.send(signal);
      }
      const TimeUs began = MonotonicClock::now();
      Result<void> result;
      while (result) result = sum(**link, 1'000'000);
      EXPECT_EQ(result.error().kind, ErrorKind::kLost);
      // A node may hear of the others' trouble first, from the server that still lives.
      EXPECT_THAT(result.error().message(),
                  ::testing::AnyOf(HasSubstr("the parameter server " + victim.address() + " was lost"),
                                   HasSubstr("has closed its link or died")));
      EXPECT_LT(MonotonicClock::now() - began, kPromptly);
    });
  }
}

TEST(ParameterServer, NodesThatDisagreeAreBothNamedAtOnce) {
  on_links(make_group(2, std::make_shared<MemoryStore>()), shared_servers(), [](std::uint32_t node, auto link) {
    ASSERT_TRUE(link) << link.error().message();
    const auto result = sum(**link, 1000 + node);
    ASSERT_FALSE(result);
    EXPECT_THAT(result.error().message(), HasSubstr("1000 bytes of 1000 of uint8"));
    EXPECT_THAT(result.error().message(), HasSubstr("1001 bytes of 1001 of uint8"));
  });
}

// An all-reduce of many segments, or of one, that two nodes start.
struct Sum {
  explicit Sum(std::size_t count) : data(count, 1) {}
  // Its id is its priority.
  Result<void> submit(Link& link, std::uint32_t priority) {
    return link.submit(WorkRequest::all_reduce(reinterpret_cast<std::byte*>(data.data()), data.size(), DType::kInt32,
                                               ReduceOp::kSum, priority, priority));
  }
  [[nodiscard]] bool is(std::int32_t value) const {
    return std::ranges::all_of(data, [value](std::int32_t v) { return v == value; });
  }
  std::vector<std::int32_t> data;
};
// The id of the next request that completes.
std::optional<std::uint64_t> completed(Link& link) {
  const auto done = link.poll();
  EXPECT_TRUE(done) << done.error().message();
  return done && *done ? std::optional((*done)->id) : std::nullopt;
}

constexpr std::size_t kMany = 4 << 20;  // 16 MiB, where 2 MiB are on their way to two servers

TEST(Priority, ASmallUrgentOperationEndsWhileALargeOneIsUnderWay) {
  on_links(make_group(2, std::make_shared<MemoryStore>()), shared_servers(), [](std::uint32_t, auto link) {
    ASSERT_TRUE(link) << link.error().message();
    for (int i = 0; i < 5; ++i) {
      Sum large(kMany);
      Sum small(1000);
      ASSERT_OK(large.submit(**link, 7));
      ASSERT_OK(small.submit(**link, 0));
      EXPECT_EQ(completed(**link), 0U);
      EXPECT_TRUE(small.is(2));
      EXPECT_EQ(completed(**link), 7U);
      EXPECT_TRUE(large.is(2));
    }
  });
}

TEST(Priority, AnUrgentOperationThatThePeerStartsLastDoesNotHoldUpALargeOne) {
  on_links(make_group(2, std::make_shared<MemoryStore>()), shared_servers(), [](std::uint32_t node, auto link) {
    ASSERT_TRUE(link) << link.error().message();
    Sum large(kMany);
    Sum urgent(kMany);
    ASSERT_OK(large.submit(**link, 7));
    if (node == 0) ASSERT_OK(urgent.submit(**link, 0));
    EXPECT_EQ(completed(**link), 7U);
    EXPECT_TRUE(large.is(2));
    if (node == 1) ASSERT_OK(urgent.submit(**link, 0));
    EXPECT_EQ(completed(**link), 0U);
    EXPECT_TRUE(urgent.is(2));
  });
}

TEST(Priority, AnInterruptEndsTheWaitWithoutACompletion) {
  std::atomic<bool> interrupted{false};
  on_links(make_group(2, std::make_shared<MemoryStore>()), shared_servers(), [&](std::uint32_t node, auto link) {
    ASSERT_TRUE(link) << link.error().message();
    Sum sum(1000);
    if (node == 1) {
      while (!interrupted) std::this_thread::yield();
      ASSERT_OK(sum.submit(**link, 0));
      EXPECT_EQ(completed(**link), 0U);
      return;
    }
    ASSERT_OK(sum.submit(**link, 0));
    std::thread interrupter([&] { (*link)->interrupt(); });
    EXPECT_EQ(completed(**link), std::nullopt);
    interrupter.join();
    interrupted = true;
    EXPECT_EQ(completed(**link), 0U);
    EXPECT_TRUE(sum.is(2));
  });
}

// Both are given equal shares.
TEST(ParameterServer, TheLinkCountsWhatEachServerHasAnsweredAndHowLongItOwedThat) {
  constexpr std::size_t kBytes = 1 << 20, kSums = 4;
  on_links(make_group(2, std::make_shared<MemoryStore>()), shared_servers(), [](std::uint32_t, auto link) {
    ASSERT_TRUE(link) << link.error().message();
    const auto* const counters = dynamic_cast<const TrafficCounters*>(link->get());
    ASSERT_NE(counters, nullptr);
    for (std::size_t i = 0; i < kSums; ++i) ASSERT_OK(sum(**link, kBytes));
    const auto traffic = counters->traffic();
    ASSERT_EQ(traffic.size(), 2U);
    for (const PeerTraffic& server : traffic) {
      EXPECT_TRUE(server.is_server);
      EXPECT_EQ(server.peer, &server - traffic.data());
      EXPECT_EQ(server.sent_bytes, kSums * kBytes / 2);
      EXPECT_GT(server.busy_us, 0);
      EXPECT_GT(server.rtt_us, 0U) << "by the kernel";
      EXPECT_GE(server.pushed_bytes, kSums * kBytes / 2) << "both nodes bring all of it";
      EXPECT_LT(server.pushed_bytes, kSums * kBytes);
    }
    EXPECT_EQ(counters->traffic()[0].busy_us, traffic[0].busy_us) << "nothing is owed";
  });
}

// The secret that the nodes of the link have agreed on; the test sees their store.
Secret secret_of(const LinkGroup& group) {
  const std::string key = meeting_key(group, "ps", 0);
  const auto values = group.store->get({&key, 1}, seconds_from_now(20));
  EXPECT_TRUE(values);
  return values ? split_text(values->front())->secret : Secret{};
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A client that says what it likes.
class Hostile {
 public:
  explicit Hostile(const std::string& server, const std::string& key_file = "")
      : socket_(context_, zmq::socket_type::dealer) {
    socket_.set(zmq::sockopt::linger, 100);
    socket_.set(zmq::sockopt::rcvtimeo, 20'000);
    const auto key = CurveKey::read(key_file);
    EXPECT_TRUE(key);
    key->guard_caller(socket_);
    socket_.connect("tcp://" + server);
  }
  void say(const ps_backend::PsHeader& header, const std::string& payload) {
    say(std::string(reinterpret_cast<const char*>(&header), sizeof header), payload);
  }
  void say(const std::string& first, const std::string& payload) {
    socket_.send(zmq::buffer(first), zmq::send_flags::sndmore);
    socket_.send(zmq::buffer(payload), zmq::send_flags::none);
  }
  // Which nodes of its link are there, when it is told.
  std::vector<int> presence() {
    zmq::message_t first, payload;
    while (socket_.recv(first) && socket_.recv(payload)) {
      const auto header = ps_backend::header_of(first);
      const auto* nodes = payload.data<std::uint8_t>();
      if (header && header->kind == ps_backend::Kind::kPresent) return {nodes, nodes + payload.size()};
    }
    return {};
  }
  // The text of the failure that it is told.
  std::string failure() {
    while (true) {
      zmq::message_t first, payload;
      if (!socket_.recv(first) || !socket_.recv(payload)) return "(nothing)";
      const auto header = ps_backend::header_of(first);
      if (header && header->kind == ps_backend::Kind::kFailed) return payload.to_string();
    }
  }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
};

TEST(ParameterServer, ALinkThatBreaksTheProtocolHarmsNoOther) {
  using ps_backend::Kind;
  using ps_backend::PsHeader;
  const ServerProcess server;
  on_links(make_group(2, std::make_shared<MemoryStore>()), server.address(), [&](std::uint32_t node, auto link) {
    ASSERT_TRUE(link) << link.error().message();
    ASSERT_OK(sum(**link, 100'000));
    if (node == 0) {
      Hostile hostile(server.address());
      hostile.say(std::string(sizeof(PsHeader), '\x7f'), "rubbish");
      Hostile(server.address()).say(std::string(), std::string(500'000, 'x'));
      PsHeader push;
      push.kind = Kind::kPush;
      push.bytes = 8;
      hostile.say(push, "12345678");  // without a hello
      PsHeader hello;
      hello.kind = Kind::kHello;
      hello.node = 7;
      hello.nodes = 3;
      hostile.say(hello, std::string(16, '\0') + "a channel");
      EXPECT_THAT(hostile.failure(), HasSubstr("a hello that cannot be"));
      hello.node = 0;
      for (const std::string payload : {"", "short", "sixteen bytes...", "sixteen bytes...a\nE1125 all is lost"}) {
        hostile.say(hello, payload);
        EXPECT_THAT(hostile.failure(), HasSubstr("a hello that cannot be")) << payload;
      }
      hello.version = 99;
      hostile.say(hello, "a channel");
      EXPECT_THAT(hostile.failure(), HasSubstr("the link version 99"));
    }
    for (int i = 0; i < 20; ++i) ASSERT_OK(sum(**link, 300'000));
  });
}

TEST(ParameterServer, ANodeThatIsThereAlreadyIsRefusedAndTheOthersGoOn) {
  const ServerProcess server;
  const LinkGroup group = make_group(2, std::make_shared<MemoryStore>());
  on_links(group, server.address(), [&](std::uint32_t node, auto link) {
    ASSERT_TRUE(link) << link.error().message();
    if (node == 0) {
      Hostile second(server.address());
      ps_backend::PsHeader hello;
      hello.kind = ps_backend::Kind::kHello;
      hello.node = 1;
      hello.nodes = 2;
      second.say(hello, text_of(with_text(secret_of(group), group.prefix)));
      EXPECT_THAT(second.failure(), HasSubstr("two links are node 1"));
    }
    for (int i = 0; i < 20; ++i) ASSERT_OK(sum(**link, 300'000));
  });
}

// A stranger comes first, with the right name and all else, but for the secret.
TEST(ParameterServer, WhoDoesNotKnowTheSecretOfALinkGetsNotIntoIt) {
  const ServerProcess server;
  const LinkGroup group = make_group(2, std::make_shared<MemoryStore>());
  ps_backend::PsHeader hello;
  hello.kind = ps_backend::Kind::kHello;
  hello.nodes = 2;
  Hostile early(server.address());
  early.say(hello, text_of(with_text(Secret{}, group.prefix)));
  EXPECT_THAT(early.presence(), ElementsAre(1, 0));
  on_links(group, server.address(), [&](std::uint32_t node, auto link) {
    ASSERT_TRUE(link) << link.error().message();
    if (node == 0) {
      ps_backend::PsHeader push;
      push.kind = ps_backend::Kind::kPush;
      push.nodes = 2;
      push.bytes = push.total = 8;
      early.say(push, "12345678");
      EXPECT_THAT(early.failure(), HasSubstr("before all links were here"));
    }
    for (int i = 0; i < 20; ++i) ASSERT_OK(sum(**link, 300'000));
  });
}

// Connections that end in the middle of ZeroMQ's greeting, that say nothing, or that are of another protocol.
TEST(ParameterServer, ConnectionsThatDoNotGetThroughTheirGreetingHoldNobodyUp) {
  const ServerProcess server;
  const std::size_t colon = server.address().rfind(':');
  const auto address =
      make_address("127.0.0.1", static_cast<std::uint16_t>(std::stoi(server.address().substr(colon + 1))));
  ASSERT_TRUE(address);
  const std::string greeting = std::string("\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL", 16) + std::string(48, '\0');
  const std::string ready = std::string("\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x06", 23) + "DEALER";
  const std::string talks[] = {"",
                               greeting.substr(0, 11),
                               greeting,
                               greeting + ready.substr(0, 9),
                               greeting + std::string(300, '\xff'),
                               "GET / HTTP/1.1\r\n\r\n",
                               std::string(2000, '\xff')};
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 20; ++i)
    for (const std::string& talk : talks) {
      strangers.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      ASSERT_EQ(connect(strangers.back().get(), address->get(), address->bytes), 0);
      ASSERT_EQ(send(strangers.back().get(), talk.data(), talk.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(talk.size()));
    }
  on_links(make_group(2, std::make_shared<MemoryStore>()), server.address(), [&](std::uint32_t node, auto link) {
    ASSERT_TRUE(link) << link.error().message();
    if (node == 0) strangers.erase(strangers.begin(), strangers.begin() + 70);
    for (int i = 0; i < 20; ++i) ASSERT_OK(sum(**link, 300'000));
  });
}

// A file with a new key, as `deft keygen` makes one.
class KeyFile {
 public:
  explicit KeyFile(const std::string& name) : path_(::testing::TempDir() + name + std::to_string(getpid())) {
    std::array<char, 41> open{}, secret{};
    EXPECT_EQ(zmq_curve_keypair(open.data(), secret.data()), 0);
    std::ofstream(path_) << secret.data() << "\n";
  }
  ~KeyFile() { std::filesystem::remove(path_); }
  KeyFile(const KeyFile&) = delete;
  KeyFile& operator=(const KeyFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

TEST(ParameterServer, OnlyWhoHoldsTheKeyOfAServerSpeaksToIt) {
  const KeyFile key("deft-key"), other("deft-other-key");
  const ServerProcess server("127.0.0.1:*", key.path());
  LinkGroup group = make_group(2, std::make_shared<MemoryStore>());
  for (const std::string& wrong : {std::string(), other.path()}) {
    LinkGroup strangers = make_group(2, std::make_shared<MemoryStore>());
    strangers.key_file = wrong;
    strangers.connect_deadline_us = seconds_from_now(60);
    on_links(strangers, server.address(), [&](std::uint32_t, const auto& link) {
      ASSERT_FALSE(link);
      EXPECT_THAT(link.error().message(), HasSubstr(server.address()));
      EXPECT_THAT(link.error().message(), HasSubstr("--secret-file"));
    });
  }
  group.key_file = key.path();
  on_links(group, server.address(), [&](std::uint32_t, const auto& link) {
    ASSERT_TRUE(link) << link.error().message();
    for (int i = 0; i < 3; ++i) ASSERT_OK(sum(**link, 3'000'000));  // in segments of the largest size
  });
}

TEST(ParameterServer, AServerWithoutTheKeyOfTheDaemonsGetsNoGradients) {
  const KeyFile key("deft-key");
  const ServerProcess server;
  LinkGroup group = make_group(2, std::make_shared<MemoryStore>());
  group.key_file = key.path();
  on_links(group, server.address(), [&](std::uint32_t, const auto& link) {
    ASSERT_FALSE(link);
    EXPECT_THAT(link.error().message(), HasSubstr("has another key than this daemon, or none"));
  });
}

TEST(Segmenter, GivesAllServersEqualBytesAndKeepsSmallThingsWhole) {
  for (const std::size_t servers : {1, 2, 3, 5}) {
    ps_backend::Segmenter spread(servers);
    std::vector<std::size_t> load(servers);
    std::size_t total = 0;
    for (const std::size_t bytes :
         {std::size_t{100}, std::size_t{1} << 20, std::size_t{30'000}, std::size_t{17'500'000}, std::size_t{4},
          std::size_t{3'000'001}, std::size_t{64} << 20}) {
      std::vector<ps_backend::PsSegment> segments;
      spread.cut(1000, bytes, ps_backend::kNoOwner, segments);
      std::size_t next = 1000;
      for (const auto& segment : segments) {
        EXPECT_EQ(segment.offset, next);
        EXPECT_EQ((segment.offset - 1000) % 64, 0U);
        EXPECT_LE(segment.bytes, ps_backend::kMaxSegmentBytes);
        next += segment.bytes;
        load.at(segment.server) += segment.bytes;
      }
      EXPECT_EQ(next, 1000 + bytes);
      EXPECT_TRUE(bytes > 32'000 || segments.size() == 1);
      total += bytes;
    }
    for (const std::size_t bytes : load)
      EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(total) / servers, 256 << 10);
  }
}

}  // namespace
}  // namespace deft::link::testing
