// What only the gloo link promises.
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <latch>
#include <set>
#include <string>
#include <string_view>
#include <thread>

#include "core/link/rendezvous.h"
#include "core/link/thread_clocks.h"
#include "core/link/traffic.h"
#include "tests/link/backends.h"
#include "tests/link/socket_priorities.h"

namespace deft::link::testing {
namespace {

TEST(GlooOpening, AnAddressThatIsNotOursIsSaid) {
  const auto link = open_link({"gloo", "eth0", "198.51.100.7"}, make_group(2, std::make_shared<MemoryStore>()));
  ASSERT_FALSE(link);
  EXPECT_EQ(link.error().kind, ErrorKind::kUnavailable);
  EXPECT_NE(link.error().message().find("198.51.100.7"), std::string::npos) << link.error().message();
}

TEST(GlooOpening, AnAddressOfAnotherLengthIsAnError) {
  const auto store = std::make_shared<MemoryStore>();
  const LinkGroup group = make_group(2, store);
  Bytes published(12);  // as node 1: the length of the address for node 0, and eight bytes
  published[0] = std::byte{8};
  ASSERT_OK(store->set(meeting_key(group, "gloo", 1), published));
  const auto link = open_link(spec_for({"gloo"}, 0), group);
  ASSERT_FALSE(link);
  EXPECT_NE(link.error().message().find("node 1"), std::string::npos) << link.error().message();
}

class GlooLinks : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Links, GlooLinks, ::testing::Values(Backend{"gloo"}, Backend{"gloo", true}), name_of);

std::vector<std::int32_t> numbers(std::uint32_t node, std::size_t count) {
  std::vector<std::int32_t> data(count);
  for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<std::int32_t>((node + 1) * (i % 997));
  return data;
}

Result<void> sum(Link& link, std::vector<std::int32_t>& data) {
  return all_reduce(link, reinterpret_cast<std::byte*>(data.data()), data.size(), model::DType::kInt32,
                    model::ReduceOp::kSum);
}

Result<void> submit(Link& link, std::vector<std::int32_t>& data, std::uint64_t id = 0) {
  return link.submit(WorkRequest::all_reduce(reinterpret_cast<std::byte*>(data.data()), data.size(),
                                             model::DType::kInt32, model::ReduceOp::kSum, id));
}

// The id of the next request that completes.
std::optional<std::uint64_t> completed(Link& link) {
  const auto done = link.poll();
  EXPECT_TRUE(done) << done.error().message();
  return done && *done ? std::optional((*done)->id) : std::nullopt;
}

void expect_sum(const std::vector<std::int32_t>& data) {
  for (std::size_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i], static_cast<std::int32_t>(3 * (i % 997)));
}

// What a node owes its peers goes on without its caller, which is busy with something else.
TEST_P(GlooLinks, NoNodeWaitsForAnotherOnesCaller) {
  std::atomic<bool> finished{false};
  on_nodes(GetParam(), 2, [&](std::uint32_t node, Link& link) {
    std::vector<std::vector<std::int32_t>> data;
    for (const std::size_t count : {1'500'000, 100, 300'000}) data.push_back(numbers(node, count));  // many rounds
    for (auto& each : data) ASSERT_OK(submit(link, each));
    while (node == 1 && !finished) std::this_thread::yield();
    while (!link.idle()) ASSERT_TRUE(completed(link));
    for (auto& each : data) expect_sum(each);
    finished = true;
  });
}

// How often the threads of this process have gone to sleep so far.
std::uint64_t sleeps() {
  constexpr std::string_view kCount = "voluntary_ctxt_switches:";
  std::uint64_t sum = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(thread.path() / "status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with(kCount)) sum += std::stoull(line.substr(kCount.size()));
  }
  return sum;
}

// gloo's own loops would wake two hundred times: each of two nodes has two.
TEST_P(GlooLinks, NoThreadWakesWhileNothingIsUnderWay) {
  using namespace std::chrono_literals;
  std::barrier together(2);
  on_nodes(GetParam(), 2, [&](std::uint32_t node, Link& link) {
    auto data = numbers(node, 100'000);
    ASSERT_OK(sum(link, data));
    together.arrive_and_wait();
    if (node == 0) {
      std::this_thread::sleep_for(100ms);  // the threads end their work for the sum meanwhile
      const std::uint64_t before = sleeps();
      std::this_thread::sleep_for(500ms);
      EXPECT_LT(sleeps() - before, 40u);
    }
    together.arrive_and_wait();
    data = numbers(node, 100'000);
    ASSERT_OK(sum(link, data));
    expect_sum(data);
  });
}

TEST_P(GlooLinks, AnInterruptEndsTheWaitAndAnotherRequestCanStart) {
  std::atomic<bool> started{false};
  on_nodes(GetParam(), 2, [&](std::uint32_t node, Link& link) {
    std::vector<std::int32_t> first = numbers(node, 700'000);
    std::vector<std::int32_t> second = numbers(node, 50'000);
    while (node == 1 && !started) std::this_thread::yield();
    ASSERT_OK(submit(link, first, 1));
    if (node == 0) {
      std::thread interrupter([&] { link.interrupt(); });
      EXPECT_EQ(completed(link), std::nullopt);
      interrupter.join();
    }
    ASSERT_OK(submit(link, second, 2));
    started = true;
    EXPECT_EQ(completed(link), 1U);
    expect_sum(first);
    EXPECT_EQ(completed(link), 2U);
    expect_sum(second);
  });
}

TEST_P(GlooLinks, SmallAllReducesTakeThePriorityChannelAndWaitForNothingElse) {
  std::latch small_ones_are_through(2);
  on_nodes(GetParam(), 2, [&](std::uint32_t node, Link& link) {
    std::vector<std::int32_t> large = numbers(node, 1 << 20);
    std::uint64_t word = node == 0 ? 7 : 0;
    const auto submit_large = [&] {
      ASSERT_OK(submit(link, large, 100));
      ASSERT_OK(link.submit(WorkRequest::broadcast(reinterpret_cast<std::byte*>(&word), sizeof word, 0, 101)));
    };
    // Node 1 submits the large one only when all small ones are through on both. Node 0 has submitted it before them.
    if (node == 0) submit_large();
    for (std::size_t i = 0; i < 50; ++i) {
      std::vector<std::int32_t> small = numbers(node, i == 49 ? 4096 : 1 + i * 80);  // 16 KiB are small still
      ASSERT_OK(submit(link, small, i));
      EXPECT_EQ(completed(link), i);
      expect_sum(small);
    }
    small_ones_are_through.arrive_and_wait();
    if (node == 1) submit_large();
    EXPECT_EQ(completed(link), 100U);
    expect_sum(large);
    EXPECT_EQ(completed(link), 101U);
    EXPECT_EQ(word, 7U);
  });
}

TEST_P(GlooLinks, OnlySmallAllReducesOvertake) {
  on_nodes(GetParam(), 2, [](std::uint32_t node, Link& link) {
    std::vector<std::int32_t> large = numbers(node, 1 << 20), middle = numbers(node, 4097);
    ASSERT_OK(submit(link, large, 1));
    ASSERT_OK(submit(link, middle, 2));
    EXPECT_EQ(completed(link), 1U);
    EXPECT_EQ(completed(link), 2U);
    expect_sum(middle);
  });
}

TEST_P(GlooLinks, AnAbortReachesThePriorityChannel) {
  std::atomic<bool> ended = false;
  on_nodes(GetParam(), 2, [&](std::uint32_t node, Link& link) {
    std::vector<std::int32_t> small = numbers(node, 10);
    if (node == 1) {
      ended.wait(false);
      static_cast<void>(sum(link, small));  // node 0 has sent its part, so this one may end well
      EXPECT_FALSE(sum(link, small));
      return;
    }
    std::thread aborter([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      link.abort("enough");
    });
    EXPECT_FALSE(sum(link, small));
    aborter.join();
    ended = true;
    ended.notify_all();
  });
}

// Node 0 goes when a part of its block is at node 1. On a busy machine all of it may be there before: that round shows nothing.
TEST_P(GlooLinks, APeerThatGoesInTheMiddleOfAMessageEndsTheWait) {
  bool was_in_the_middle = false;
  for (int round = 0; round < 20 && !was_in_the_middle; ++round)
    on_nodes(GetParam(), 2, [&](std::uint32_t node, Link& link) {
      constexpr std::size_t kBlock = 64 << 20;
      Bytes data(2 * kBlock);
      ASSERT_OK(link.submit(WorkRequest::all_gather(data.data(), {kBlock, kBlock})));
      if (node == 0) {
        const auto* const counters = dynamic_cast<const TrafficCounters*>(&link);
        ASSERT_NE(counters, nullptr);
        const auto sent = [&] { return counters->traffic().empty() ? 0 : counters->traffic()[0].sent_bytes; };
        while (sent() < 1 << 20) std::this_thread::yield();
        link.abort("enough");
      }
      const auto done = link.poll();
      if (node == 1 && done) return;
      ASSERT_FALSE(done);
      EXPECT_EQ(done.error().kind, ErrorKind::kLost);
      if (node == 1) was_in_the_middle = true;
    });
  EXPECT_TRUE(was_in_the_middle);
}

TEST_P(GlooLinks, OnlyThePriorityChannelsConnectionsGoFirstAtTheNic) {
  const auto before = socket_priorities();
  std::latch opened(2), looked(2);
  std::multiset<int> seen;
  on_nodes(GetParam(), 2, [&](std::uint32_t node, Link&) {
    opened.arrive_and_wait();  // each node sees to its own end
    if (node == 0) seen = socket_priorities();
    looked.arrive_and_wait();  // both links are open until it has looked
  });
  EXPECT_EQ(seen.count(0) - before.count(0), 2U);  // an end of the one connection on each node
  EXPECT_EQ(seen.count(6) - before.count(6), 2U);
}

TEST_P(GlooLinks, AllItsThreadsTellTheirProcessorTime) {
  constexpr std::size_t kCount = 1'000'000;
  on_nodes(GetParam(), 2, [&](std::uint32_t node, Link& link) {
    std::vector<std::int32_t> data = numbers(node, kCount), small = numbers(node, 100);
    ASSERT_OK(sum(link, data));
    ASSERT_OK(sum(link, small));
    const auto* const threads = dynamic_cast<const ThreadClocks*>(&link);
    ASSERT_NE(threads, nullptr);
    std::multiset<model::DaemonThread> found;
    for (const ThreadClock& thread : threads->thread_clocks()) {
      timespec used{};
      ASSERT_EQ(clock_gettime(thread.clock, &used), 0);
      EXPECT_GT(used.tv_sec * 1'000'000'000 + used.tv_nsec, 0);
      found.insert(thread.thread);
    }
    using enum model::DaemonThread;
    std::multiset<model::DaemonThread> expected = {kReceives, kReceives, kAdds, kAdds, kCollects, kCollects};
    if (GetParam().encrypts) expected.insert({kEncrypts, kEncrypts});
    EXPECT_EQ(found, expected) << "of the main and of the priority channel";
  });
}

// An all-reduce of two nodes: each sends half of the data as segments, and half as results.
TEST_P(GlooLinks, TheKernelsCountersTellWhatWentToEachPeer) {
  constexpr std::size_t kCount = 1'500'000,
                        kSums = 12;  // longer than a few ticks, by which the kernel counts busy time
  constexpr std::size_t kBytes = kSums * kCount * sizeof(std::int32_t);
  std::latch looked(2);
  on_nodes(GetParam(), 2, [&](std::uint32_t node, Link& link) {
    const auto* const counters = dynamic_cast<const TrafficCounters*>(&link);
    ASSERT_NE(counters, nullptr);
    std::vector<std::int32_t> data = numbers(node, kCount);
    for (std::size_t i = 0; i < kSums; ++i) ASSERT_OK(sum(link, data));
    std::vector<PeerTraffic> traffic = counters->traffic();
    // What the peer has is acknowledged a moment later.
    while (traffic.size() == 1 && traffic[0].sent_bytes < kBytes) traffic = counters->traffic();
    ASSERT_EQ(traffic.size(), 1U);
    EXPECT_EQ(traffic[0].peer, 1 - node);
    EXPECT_LT(traffic[0].sent_bytes, kBytes * 11 / 10);
    EXPECT_GT(traffic[0].busy_us, 0);
    looked.arrive_and_wait();
  });
}

}  // namespace
}  // namespace deft::link::testing
