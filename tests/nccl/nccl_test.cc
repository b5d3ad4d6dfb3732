// The NCCL link's own promises, over fakes of NCCL and CUDA; what it shares with other links is in tests/link.
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <latch>
#include <thread>
#include <vector>

#include "core/link/rendezvous.h"
#include "tests/link/backends.h"
#include "tests/nccl/fake_cuda.h"

namespace deft::link::testing {
namespace {

using model::DType;
using model::ReduceOp;

const Backend kNccl{"nccl"};

Result<void> sum(Link& link, std::byte* data, std::size_t bytes) {
  return all_reduce(link, data, bytes / 4, DType::kFloat32, ReduceOp::kSum);
}

// A function of the fake runtime, which the link has loaded.
template <typename Function>
Function* from_fake(const char* name) {
  void* const library = dlopen("libcudart.so.13", RTLD_NOW);
  return reinterpret_cast<Function*>(library == nullptr ? nullptr : dlsym(library, name));
}

// Memory of the GPU that is current.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes) {
    from_fake<cudaError_t(void**, std::size_t)>("cudaMalloc")(&memory_, bytes);
  }
  ~DeviceMemory() { from_fake<cudaError_t(void*)>("cudaFree")(memory_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(memory_); }

 private:
  void* memory_ = nullptr;
};

void choose_gpu(int device) { ASSERT_EQ(from_fake<cudaError_t(int)>("cudaSetDevice")(device), cudaSuccess); }

int chosen_gpu() {
  int device = -1;
  from_fake<cudaError_t(int*)>("cudaGetDevice")(&device);
  return device;
}

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

TEST(Nccl, DeviceMemoryIsReducedInPlaceWithoutACopy) {
  on_nodes(kNccl, 2, [](std::uint32_t node, Link& link) {
    const DeviceMemory memory(4096);
    auto* const values = reinterpret_cast<float*>(memory.data());
    for (int i = 0; i < 1024; ++i) values[i] = static_cast<float>(i + static_cast<int>(node));
    auto* const copies = from_fake<unsigned long()>("fake_cuda_copies");
    const unsigned long before = (*copies)();
    ASSERT_OK(sum(link, memory.data(), 4096));
    EXPECT_EQ((*copies)(), before);
    for (int i = 0; i < 1024; ++i) ASSERT_EQ(values[i], static_cast<float>(2 * i + 1));
  });
}

// Opens the link of each rank, which has made `chosen[rank]` its GPU, and gives it to `body`.
void on_gpus(const std::vector<int>& chosen,
             const std::function<void(std::uint32_t, Result<std::unique_ptr<Link>>&)>& body, double seconds = 60) {
  LinkGroup group = make_group(static_cast<std::uint32_t>(chosen.size()), std::make_shared<MemoryStore>());
  group.connect_deadline_us = seconds_from_now(seconds);
  std::vector<std::thread> ranks;
  for (std::uint32_t rank = 0; rank < chosen.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      choose_gpu(chosen[rank]);
      LinkGroup own = group;
      own.node = rank;
      auto link = open_link(spec_for(kNccl, rank), own);
      EXPECT_EQ(chosen_gpu(), chosen[rank]);
      EXPECT_EQ(from_fake<cudaError_t()>("cudaGetLastError")(), cudaSuccess);
      body(rank, link);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(Nccl, RanksThatHaveChosenNoGpuTakeOneEach) {
  const Variable gpus("FAKE_CUDA_DEVICES", "3"), strict("FAKE_NCCL_ONE_RANK_A_GPU", "1");
  on_gpus({0, 0, 0}, [](std::uint32_t rank, Result<std::unique_ptr<Link>>& link) {
    ASSERT_TRUE(link) << link.error().message();
    choose_gpu(static_cast<int>(rank));
    const DeviceMemory memory(4096);
    ASSERT_OK(sum(**link, memory.data(), 4096));
  });
}

TEST(Nccl, RanksKeepTheGpusThatTheyHaveChosen) {
  const Variable gpus("FAKE_CUDA_DEVICES", "3"), strict("FAKE_NCCL_ONE_RANK_A_GPU", "1");
  on_gpus({2, 0}, [](std::uint32_t rank, Result<std::unique_ptr<Link>>& link) {
    ASSERT_TRUE(link) << link.error().message();
    const DeviceMemory own(4096);
    ASSERT_OK(sum(**link, own.data(), 4096));
    choose_gpu(1);
    const DeviceMemory other(4096);
    const auto result = sum(**link, other.data(), 4096);
    ASSERT_FALSE(result);
    const std::string expected = "link is on GPU " + std::to_string(rank == 0 ? 2 : 0) + ", and the data on GPU 1";
    EXPECT_NE(result.error().message().find(expected), std::string::npos) << result.error().message();
  });
}

TEST(Nccl, RanksThatMustShareAGpuAreRefusedByNccl) {
  const Variable strict("FAKE_NCCL_ONE_RANK_A_GPU", "1");
  std::atomic<int> refused{0};
  const TimeUs began = MonotonicClock::now();
  constexpr double kSeconds = 4;  // for which one of them waits
  on_gpus(
      {0, 0},
      [&](std::uint32_t, Result<std::unique_ptr<Link>>& link) {
        if (!link && link.error().kind == ErrorKind::kInvalid) ++refused;
      },
      kSeconds);
  EXPECT_GE(refused, 1);
  EXPECT_LT(MonotonicClock::now() - began, static_cast<TimeUs>(kSeconds * 1e6) + kPromptly);
}

TEST(Nccl, VersionsThatDifferAreNamedOnBothSides) {
  const auto store = std::make_shared<MemoryStore>();
  LinkGroup group = make_group(2, store);
  group.connect_deadline_us = seconds_from_now(60);
  group.member = "rank";
  std::vector<std::thread> ranks;
  std::atomic<int> turn{0};
  for (const std::uint32_t rank : {0U, 1U}) {
    ranks.emplace_back([&, rank] {
      LinkGroup own = group;
      own.node = rank;
      while (turn != static_cast<int>(rank)) std::this_thread::yield();
      setenv("FAKE_NCCL_VERSION", rank == 0 ? "22703" : "22803", 1);
      // The other one goes on once this one has published its version.
      std::thread next([&] {
        const std::string key = meeting_key(own, "nccl", rank);
        static_cast<void>(store->get({&key, 1}, seconds_from_now(60)));
        turn = static_cast<int>(rank) + 1;
      });
      const auto link = open_link(spec_for(kNccl, rank), own);
      next.join();
      ASSERT_FALSE(link);
      EXPECT_EQ(link.error().kind, ErrorKind::kMismatch);
      const std::string message = link.error().message();
      EXPECT_NE(message.find("rank 0 has NCCL 2.27.3"), std::string::npos) << message;
      EXPECT_NE(message.find("rank 1 has NCCL 2.28.3"), std::string::npos) << message;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  unsetenv("FAKE_NCCL_VERSION");
}

TEST(Nccl, AWorkerWithoutAGpuSaysSo) {
  const Variable none("FAKE_CUDA_DEVICES", "0");
  const auto link = open_link(spec_for(kNccl, 0), make_group(2, std::make_shared<MemoryStore>()));
  ASSERT_FALSE(link);
  EXPECT_EQ(link.error().kind, ErrorKind::kUnavailable);
  EXPECT_NE(link.error().message().find("cudaGetDeviceCount"), std::string::npos) << link.error().message();
}

TEST(Nccl, OpeningEndsAtTheDeadlineAndNamesTheRanksThatDidNotCome) {
  LinkGroup group = make_group(3, std::make_shared<MemoryStore>());
  group.connect_deadline_us = seconds_from_now(0.2);
  const auto link = open_link(spec_for(kNccl, 0), group);
  ASSERT_FALSE(link);
  EXPECT_NE(link.error().message().find("2 nodes of 3 did not come before the deadline: 1, 2"), std::string::npos);
}

TEST(Nccl, ConnectingEndsAtTheDeadlineWhenARankCameAndDied) {
  for (const std::uint32_t dead : {0U, 1U}) {
    LinkGroup group = make_group(2, std::make_shared<MemoryStore>());
    group.node = dead;
    group.connect_deadline_us = seconds_from_now(0.1);
    ASSERT_FALSE(open_link(spec_for(kNccl, dead), group));
    group.node = 1 - dead;
    group.connect_deadline_us = seconds_from_now(0.4);
    const auto link = open_link(spec_for(kNccl, group.node), group);
    ASSERT_FALSE(link);
    EXPECT_EQ(link.error().kind, ErrorKind::kTimeout);
    EXPECT_NE(link.error().message().find("node " + std::to_string(dead)), std::string::npos) << link.error().message();
    EXPECT_LT(MonotonicClock::now(), group.connect_deadline_us + kPromptly);
  }
}

TEST(Nccl, NonsenseInTheStoreIsRefused) {
  LinkGroup group = make_group(2, std::make_shared<MemoryStore>());
  ASSERT_OK(group.store->set(meeting_key(group, "nccl", 1), Bytes(100, std::byte{0x7F})));
  const auto link = open_link(spec_for(kNccl, 0), group);
  ASSERT_FALSE(link);
  EXPECT_EQ(link.error().kind, ErrorKind::kViolation);
}

// A failed operation has given its data back: nobody may write to it any more.
void expect_untouched(const std::byte* data, std::size_t bytes) {
  const Bytes then(data, data + bytes);
  std::this_thread::sleep_for(std::chrono::milliseconds(120));
  EXPECT_EQ(std::memcmp(then.data(), data, bytes), 0);
}

TEST(Nccl, AFailedOperationGivesItsDataBackWhenNoKernelOrCopyTouchesIt) {
  const Variable lingers("FAKE_NCCL_LINGER_MS", "100");
  constexpr std::size_t kBytes = 1 << 20;
  for (const bool aborted : {true, false}) {
    for (const bool device : {true, false}) {
      std::latch failed(1);
      on_nodes(kNccl, 2, [&](std::uint32_t node, Link& link) {
        if (node == 1) {
          if (aborted) failed.wait();
          return;
        }
        DeviceMemory memory(kBytes);
        Bytes host(kBytes);
        std::byte* const data = device ? memory.data() : host.data();
        std::thread aborter([&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          if (aborted) link.abort("enough");
        });
        EXPECT_FALSE(sum(link, data, kBytes));
        failed.count_down();
        expect_untouched(data, kBytes);
        aborter.join();
      });
    }
  }
}

TEST(Nccl, AbortEndsABlockedOperationPromptlyWithItsReason) {
  std::latch failed(1);
  on_nodes(kNccl, 2, [&](std::uint32_t node, Link& link) {
    if (node == 1) return failed.wait();
    Bytes data(1 << 20);
    std::thread aborter([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      link.abort("job failed: rank 1 is gone");
    });
    const TimeUs began = MonotonicClock::now();
    const auto result = sum(link, data.data(), data.size());
    EXPECT_LT(MonotonicClock::now() - began, kPromptly);
    failed.count_down();
    aborter.join();
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().message().find("job failed: rank 1 is gone"), std::string::npos);
    EXPECT_EQ(sum(link, data.data(), data.size()).error().message(), result.error().message());
  });
}

TEST(Nccl, AbortOfAnIdleLinkFailsTheNextOperationOfAllRanks) {
  std::atomic<bool> noticed{false};
  on_nodes(kNccl, 2, [&](std::uint32_t node, Link& link) {
    Bytes data(4096);
    ASSERT_OK(sum(link, data.data(), data.size()));
    if (node == 0) {
      link.abort("first");
      link.abort("second");
    }
    const auto result = sum(link, data.data(), data.size());
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().kind, ErrorKind::kLost);
    const std::string expected = node == 0 ? "first" : "remote error";
    EXPECT_NE(result.error().message().find(expected), std::string::npos) << result.error().message();
    if (node == 1) noticed = true;
    while (!noticed) std::this_thread::yield();  // node 0's link has not gone yet
  });
}

TEST(Nccl, AbortAtAnyMomentOfRunningOperationsIsSafe) {
  for (int round = 0; round < 20; ++round) {
    on_nodes(kNccl, 2, [&](std::uint32_t node, Link& link) {
      std::thread aborter([&] {
        std::this_thread::sleep_for(std::chrono::microseconds(700 * (round + 1)));
        if (node == 0) link.abort("stop");
      });
      while (true) {
        Bytes data(round % 2 == 0 ? 200'000 : 2000);  // freed as soon as the operation has failed
        if (!sum(link, data.data(), data.size())) break;
      }
      aborter.join();
    });
  }
}

TEST(Nccl, APeerThatClosesIsAnErrorWithNcclsOwnWords) {
  on_nodes(kNccl, 2, [](std::uint32_t node, Link& link) {
    if (node == 1) return;  // closes its link
    Bytes data(1 << 20);
    const auto result = sum(link, data.data(), data.size());
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().kind, ErrorKind::kLost);
    EXPECT_NE(result.error().message().find("ncclAllReduce: remote error"), std::string::npos)
        << result.error().message();
  });
}

// NCCL says nothing of a network that is lost, so whoever watches the job has to hear that the ranks wait.
TEST(Nccl, ARankSaysAgainAndAgainThatItWaitsForOthersUntilItIsAborted) {
  const Variable lost("FAKE_NCCL_SILENT_AFTER", "1");
  LinkGroup group = make_group(2, std::make_shared<MemoryStore>());
  group.connect_deadline_us = seconds_from_now(60);
  std::array<std::atomic<int>, 2> told{};
  std::vector<std::thread> ranks;
  for (const std::uint32_t rank : {0U, 1U}) {
    ranks.emplace_back([&, rank] {
      LinkGroup own = group;
      own.node = rank;
      Link* opened = nullptr;
      own.on_waiting = [&, rank] {
        if (++told[rank] == 3) opened->abort("enough");
      };
      auto link = open_link(spec_for(kNccl, rank), own);
      ASSERT_TRUE(link) << link.error().message();
      opened = link->get();
      Bytes data(4096);
      ASSERT_OK(sum(**link, data.data(), data.size()));
      const int before = told[rank];
      EXPECT_FALSE(sum(**link, data.data(), data.size()));
      EXPECT_EQ(told[rank] - before, 3);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(Nccl, NothingIsLeftBehindAfterClosingOrAborting) {
  const std::size_t descriptors_before = open_descriptors(), threads_before = threads();
  for (int round = 0; round < 4; ++round) {
    on_nodes(kNccl, 2, [&](std::uint32_t node, Link& link) {
      Bytes data(100'000);
      const bool aborts = round % 2 == 1;
      EXPECT_TRUE(sum(link, data.data(), data.size()) || aborts);
      if (aborts && node == 0) link.abort("enough");
    });
  }
  EXPECT_EQ(open_descriptors(), descriptors_before);
  EXPECT_EQ(threads(), threads_before);
}

TEST(Nccl, TheNicsAreNamedToNcclUnlessTheUserHasNamedThem) {
  unsetenv("NCCL_SOCKET_IFNAME");
  LinkGroup group = make_group(1, std::make_shared<MemoryStore>());
  ASSERT_TRUE(open_link({"nccl", "eth0+eth1", "10.0.0.1"}, group));
  EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "=eth0,eth1");
  const Variable given("NCCL_SOCKET_IFNAME", "ib0");
  ASSERT_TRUE(open_link({"nccl", "eth0+eth1", "10.0.0.1"}, group));
  EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "ib0");
}

}  // namespace
}  // namespace deft::link::testing
