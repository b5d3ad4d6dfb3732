// What only the ps link promises: its servers are named when they are missing or lost, and share the work by size.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <thread>
#include <zmq.hpp>

#include "core/link/ps/segmenter.h"
#include "core/link/ps/wire.h"
#include "tests/link/backends.h"
#include "tests/link/server_process.h"

namespace deft::link::testing {
namespace {

using model::DType;
using model::ReduceOp;
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
  group.connect_deadline_us = seconds_from_now(0.4);
  on_links(group, here.address() + "+127.0.0.1:1", [](std::uint32_t, const Result<std::unique_ptr<Link>>& link) {
    ASSERT_FALSE(link);
    EXPECT_EQ(link.error().kind, ErrorKind::kTimeout);
    EXPECT_THAT(link.error().message(), HasSubstr("the parameter server 127.0.0.1:1 does not answer"));
  });
  EXPECT_LT(MonotonicClock::now(), group.connect_deadline_us + 1'000'000);
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
    group.silence_us = 400'000;
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
      EXPECT_LT(MonotonicClock::now() - began, 2'500'000);
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

// A client that says what it likes.
class Hostile {
 public:
  explicit Hostile(const std::string& server) : socket_(context_, zmq::socket_type::dealer) {
    socket_.set(zmq::sockopt::linger, 100);
    socket_.set(zmq::sockopt::rcvtimeo, 2000);
    socket_.connect("tcp://" + server);
  }
  void say(const ps_backend::PsHeader& header, const std::string& payload) {
    say(std::string(reinterpret_cast<const char*>(&header), sizeof header), payload);
  }
  void say(const std::string& first, const std::string& payload) {
    socket_.send(zmq::buffer(first), zmq::send_flags::sndmore);
    socket_.send(zmq::buffer(payload), zmq::send_flags::none);
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
      hostile.say(std::string(), std::string(500'000, 'x'));
      PsHeader push;
      push.kind = Kind::kPush;
      push.bytes = 8;
      hostile.say(push, "12345678");  // without a hello
      PsHeader hello;
      hello.kind = Kind::kHello;
      hello.node = 7;
      hello.nodes = 3;
      hostile.say(hello, "a channel");
      EXPECT_THAT(hostile.failure(), HasSubstr("a hello that cannot be"));
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
      second.say(hello, group.prefix);
      EXPECT_THAT(second.failure(), HasSubstr("two links are node 1"));
    }
    for (int i = 0; i < 20; ++i) ASSERT_OK(sum(**link, 300'000));
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
