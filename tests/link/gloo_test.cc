// What only the gloo link promises.
#include <atomic>
#include <cstring>
#include <latch>
#include <set>
#include <thread>

#include "core/link/rendezvous.h"
#include "tests/link/backends.h"
#include "tests/link/socket_priorities.h"

namespace deft::link::testing {
namespace {

TEST(Gloo, AnAddressThatIsNotOursIsSaid) {
  const auto link = open_link({"gloo", "eth0", "198.51.100.7"}, make_group(2, std::make_shared<MemoryStore>()));
  ASSERT_FALSE(link);
  EXPECT_EQ(link.error().kind, ErrorKind::kUnavailable);
  EXPECT_NE(link.error().message().find("198.51.100.7"), std::string::npos) << link.error().message();
}

TEST(Gloo, AnAddressOfAnotherLengthIsAnError) {
  const auto store = std::make_shared<MemoryStore>();
  const Group group = make_group(2, store);
  Bytes published(12);  // as node 1: the length of the address for node 0, and eight bytes
  published[0] = std::byte{8};
  ASSERT_OK(store->set(meeting_key(group, "gloo", 1), published));
  const auto link = open_link(spec_for({"gloo"}, 0), group);
  ASSERT_FALSE(link);
  EXPECT_NE(link.error().message().find("node 1"), std::string::npos) << link.error().message();
}

const Backend kGloo{"gloo"};

std::vector<std::int32_t> numbers(std::uint32_t node, std::size_t count) {
  std::vector<std::int32_t> data(count);
  for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<std::int32_t>((node + 1) * (i % 997));
  return data;
}

Result<void> sum(Link& link, std::vector<std::int32_t>& data) {
  return link.all_reduce(reinterpret_cast<std::byte*>(data.data()), data.size(), model::DType::kInt32,
                         model::ReduceOp::kSum);
}

Result<void> start(Link& link, std::vector<std::int32_t>& data) {
  return link.start_all_reduce(reinterpret_cast<std::byte*>(data.data()), data.size(), model::DType::kInt32,
                               model::ReduceOp::kSum, 0);
}

void expect_sum(const std::vector<std::int32_t>& data) {
  for (std::size_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i], static_cast<std::int32_t>(3 * (i % 997)));
}

// What a node owes its peers goes on without its caller, which is busy with something else.
TEST(Gloo, NoNodeWaitsForAnotherOnesCaller) {
  std::atomic<bool> finished{false};
  on_nodes(kGloo, 2, [&](std::uint32_t node, Link& link) {
    std::vector<std::vector<std::int32_t>> data;
    for (const std::size_t count : {1'500'000, 100, 300'000}) data.push_back(numbers(node, count));  // many rounds
    for (auto& each : data) ASSERT_OK(start(link, each));
    while (node == 1 && !finished) std::this_thread::yield();
    for (auto& each : data) {
      ASSERT_OK(link.finish_all_reduce());
      expect_sum(each);
    }
    finished = true;
  });
}

TEST(Gloo, AWakeEndsTheWaitAndAnotherOneCanStart) {
  std::atomic<bool> started{false};
  on_nodes(kGloo, 2, [&](std::uint32_t node, Link& link) {
    std::vector<std::int32_t> first = numbers(node, 700'000);
    std::vector<std::int32_t> second = numbers(node, 50'000);
    while (node == 1 && !started) std::this_thread::yield();
    ASSERT_OK(start(link, first));
    if (node == 0) {
      std::thread waker([&] { link.wake(); });
      const auto nothing = link.finish_next();
      waker.join();
      ASSERT_OK(nothing);
      EXPECT_EQ(*nothing, std::nullopt);
    }
    ASSERT_OK(start(link, second));
    started = true;
    for (const auto* each : {&first, &second}) {
      const auto place = link.finish_next();
      ASSERT_OK(place);
      EXPECT_EQ(*place, 0U);
      expect_sum(*each);
    }
  });
}

TEST(Gloo, TheExpressWayWaitsForNothingOfTheLink) {
  on_nodes(kGloo, 2, [](std::uint32_t node, Link& link) {
    Link* const express = link.express();
    ASSERT_NE(express, nullptr);
    std::vector<std::int32_t> large = numbers(node, 1 << 20);
    // Node 1 begins the large one only when all small ones are through, which node 0 has begun before them.
    if (node == 0) ASSERT_OK(start(link, large));
    for (std::size_t i = 0; i < 50; ++i) {
      std::vector<std::int32_t> small = numbers(node, 1 + i * 80);
      ASSERT_OK(sum(*express, small));
      expect_sum(small);
    }
    if (node == 1) ASSERT_OK(start(link, large));
    ASSERT_OK(link.finish_all_reduce());
    expect_sum(large);
  });
}

TEST(Gloo, AnAbortReachesTheExpressWay) {
  std::atomic<bool> ended = false;
  on_nodes(kGloo, 2, [&](std::uint32_t node, Link& link) {
    std::vector<std::int32_t> small = numbers(node, 10);
    if (node == 0) {
      std::thread waits([&] { EXPECT_FALSE(sum(*link.express(), small)); });
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      link.abort("enough");
      waits.join();
      ended = true;
      ended.notify_all();
    } else {
      ended.wait(false);
      EXPECT_FALSE(sum(*link.express(), small));
    }
  });
}

TEST(Gloo, OnlyTheExpressWaysConnectionsGoFirstAtTheNic) {
  const auto before = socket_priorities();
  std::latch looked(2);
  std::multiset<int> seen;
  on_nodes(kGloo, 2, [&](std::uint32_t node, Link&) {
    if (node == 0) seen = socket_priorities();
    looked.arrive_and_wait();  // both links are open until it has looked
  });
  EXPECT_EQ(seen.count(0) - before.count(0), 2U);  // an end of the one connection on each node
  EXPECT_EQ(seen.count(6) - before.count(6), 2U);
}

}  // namespace
}  // namespace deft::link::testing
