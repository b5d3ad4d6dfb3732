// What only the gloo link promises.
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <latch>
#include <set>
#include <thread>

#include "core/link/rendezvous.h"
#include "tests/link/backends.h"

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

TEST(Gloo, TheExpressWayWaitsForNothingOfTheLink) {
  on_nodes(kGloo, 2, [](std::uint32_t node, Link& link) {
    Link* const express = link.express();
    ASSERT_NE(express, nullptr);
    std::vector<std::int32_t> large = numbers(node, 1 << 20);
    // Node 1 begins the large one only when all small ones are through, which node 0 has begun before them.
    const auto start_large = [&] {
      ASSERT_OK(link.start_all_reduce(reinterpret_cast<std::byte*>(large.data()), large.size(), model::DType::kInt32,
                                      model::ReduceOp::kSum, 0));
    };
    if (node == 0) start_large();
    for (std::size_t i = 0; i < 50; ++i) {
      std::vector<std::int32_t> small = numbers(node, 1 + i * 80);
      ASSERT_OK(sum(*express, small));
      for (std::size_t k = 0; k < small.size(); ++k) ASSERT_EQ(small[k], static_cast<std::int32_t>(3 * (k % 997)));
    }
    if (node == 1) start_large();
    ASSERT_OK(link.finish_all_reduce());
    for (std::size_t k = 0; k < large.size(); k += 101) ASSERT_EQ(large[k], static_cast<std::int32_t>(3 * (k % 997)));
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

// Of this process's connected TCP sockets.
std::multiset<int> priorities() {
  std::multiset<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0 || peer.ss_family != AF_INET) continue;
    int priority = -1;
    size = sizeof priority;
    if (getsockopt(fd, SOL_SOCKET, SO_PRIORITY, &priority, &size) == 0) found.insert(priority);
  }
  return found;
}

TEST(Gloo, OnlyTheExpressWaysConnectionsGoFirstAtTheNic) {
  const auto before = priorities();
  std::latch looked(2);
  std::multiset<int> seen;
  on_nodes(kGloo, 2, [&](std::uint32_t node, Link&) {
    if (node == 0) seen = priorities();
    looked.arrive_and_wait();  // both links are open until it has looked
  });
  EXPECT_EQ(seen.count(0) - before.count(0), 2U);  // an end of the one connection on each node
  EXPECT_EQ(seen.count(6) - before.count(6), 2U);
}

}  // namespace
}  // namespace deft::link::testing
