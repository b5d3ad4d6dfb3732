// Nodes whose link fails at another operation on each of them, after it has destroyed what they brought: what they kept, run
// again over another link, gives every node every result once, with the same bits.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "daemon/channel/daemon_driver.h"
#include "daemon/channel/link_queue.h"

namespace deft::daemon {
namespace {

using ipc::Collective;
using Values = std::vector<float>;

constexpr std::size_t kCount = 8;    // elements of a launch, or of a node's block
constexpr std::size_t kWorkers = 2;  // of each node
constexpr float kSpoilt = -1e9F;

// Where the links of all nodes meet. From `fails_at` on a node sees every operation fail, even if others have the result.
struct Hub {
  explicit Hub(std::size_t nodes) : fails_at(nodes, ~std::size_t{0}) {}
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::vector<Values>> brought;  // of each operation, by node
  std::vector<std::size_t> fails_at;
  bool aborted = false;
};

class FaultyLink final : public link::Link {
 public:
  FaultyLink(Hub& hub, std::size_t node)
      : Link("faulty",
             link::LinkGroup{.node = static_cast<std::uint32_t>(node),
                             .nodes = static_cast<std::uint32_t>(hub.fails_at.size()),
                             .prefix = {},
                             .store = {}},
             3),
        hub_(hub),
        node_(node) {}

 protected:
  // Takes what this node brings, and spoils it.
  Result<void> start(const link::WorkRequest& request) override {
    float* const values = reinterpret_cast<float*>(request.data);
    const bool gathers = request.kind == link::WorkRequest::Kind::kAllGather;
    float* const own = gathers ? values + node_ * kCount : values;
    bring({own, own + kCount});
    const bool keeps =
        gathers || (request.kind == link::WorkRequest::Kind::kBroadcast && request.block_of.root == node_);
    if (!keeps) std::fill(own, own + kCount, kSpoilt);
    in_flight_.push_back(request);
    return {};
  }
  Result<std::optional<std::uint64_t>> await() override {
    const link::WorkRequest request = in_flight_.front();
    const auto brought = await(started_ - in_flight_.size());
    if (!brought) return tl::unexpected(brought.error());
    give(request, *brought);
    in_flight_.pop_front();
    return request.id;
  }
  void settle() override { in_flight_.clear(); }
  void stop(const Error&) override {
    const std::lock_guard lock(hub_.mutex);
    hub_.aborted = true;
    hub_.changed.notify_all();
  }

 private:
  static void give(const link::WorkRequest& request, const std::vector<Values>& brought) {
    float* const values = reinterpret_cast<float*>(request.data);
    if (request.kind == link::WorkRequest::Kind::kBroadcast) {
      std::ranges::copy(brought[request.block_of.root], values);
    } else if (request.kind == link::WorkRequest::Kind::kAllGather) {
      for (std::size_t node = 0; node < brought.size(); ++node)
        std::ranges::copy(brought[node], values + node * kCount);
    } else {
      std::fill(values, values + kCount, 0.0F);
      for (const Values& one : brought)
        for (std::size_t i = 0; i < kCount; ++i) values[i] += one[i];
    }
  }
  void bring(Values values) {
    const std::lock_guard lock(hub_.mutex);
    if (hub_.brought.size() <= started_) hub_.brought.resize(started_ + 1);
    auto& brought = hub_.brought[started_++];
    brought.resize(hub_.fails_at.size());
    brought[node_] = std::move(values);
    hub_.changed.notify_all();
  }
  Result<std::vector<Values>> await(std::size_t number) {
    std::unique_lock lock(hub_.mutex);
    if (number >= hub_.fails_at[node_]) return fail(ErrorKind::kLost, "the wire was cut");
    const auto& all = hub_.brought;
    hub_.changed.wait(lock, [&] {
      return hub_.aborted || std::ranges::none_of(all[number], [](const Values& v) { return v.empty(); });
    });
    if (hub_.aborted) return fail(ErrorKind::kLost, "aborted");
    return all[number];
  }

  Hub& hub_;
  const std::size_t node_;
  std::size_t started_ = 0;
  std::deque<link::WorkRequest> in_flight_;
};

Collective kind_of(std::uint64_t number) {
  return number % 5 == 3 ? Collective::kBroadcast : number % 5 == 4 ? Collective::kAllGather : Collective::kAllReduce;
}

float brings(std::size_t node, std::size_t worker, std::uint64_t number) {
  return 0.1F * static_cast<float>(1 + node * kWorkers + worker) + static_cast<float>(number);
}

// One node: its workers' memory, and what the job does with the queue.
class Node {
 public:
  Node(Reactor& reactor, std::size_t node, std::size_t nodes, std::uint64_t launches)
      : reactor_(reactor), node_(node), nodes_(nodes), launches_(launches), results_(launches) {
    for (std::uint64_t number = 0; number < launches; ++number) {
      memory_.emplace_back(kWorkers, Values(kCount * nodes * kWorkers, kSpoilt));
      for (std::size_t worker = 0; worker < kWorkers; ++worker) {
        const std::size_t at = kind_of(number) == Collective::kAllGather ? block(worker) : 0;
        const std::size_t size = kind_of(number) == Collective::kAllGather ? kCount / kWorkers : kCount;
        std::fill_n(memory_[number][worker].begin() + static_cast<std::ptrdiff_t>(at), size,
                    brings(node, worker, number));
      }
      SubCommTask launch;
      launch.number = number;
      queue.waiting.push_back(std::move(launch));
    }
  }

  void open(Hub& hub) {
    failed_ = false;
    queue.driver = std::make_unique<DaemonDriver>(
        reactor_, "faulty", static_cast<std::uint32_t>(node_),
        [&hub, node = node_]() -> Result<std::unique_ptr<link::Link>> {
          return std::make_unique<FaultyLink>(hub, node);
        },
        [this](const SubCommTask& launch) { return transfer_of(launch); }, [](const Result<void>&) {},
        [this](TransferDone done) { on_done(std::move(done)); });
    while (!queue.waiting.empty()) {
      SubCommTask launch = std::move(queue.waiting.front());
      queue.waiting.pop_front();
      if (!launch.replay_buffer) launch.replay_buffer = queue.spare.take(0);
      const std::uint64_t number = launch.number;
      queue.driver->start(queue.running.emplace(number, std::move(launch)).first->second);
    }
  }

  [[nodiscard]] bool failed() const { return failed_; }
  [[nodiscard]] bool done() const { return queue.running.empty(); }
  [[nodiscard]] std::uint64_t finished_below() const { return queue.finished_below(launches_); }
  [[nodiscard]] const std::vector<std::vector<Values>>& results() const { return results_; }

  LinkQueue queue;

 private:
  [[nodiscard]] std::size_t block(std::size_t worker) const { return node_ * kCount + worker * kCount / kWorkers; }

  Transfer transfer_of(const SubCommTask& launch) {
    Transfer transfer;
    if (launch.replay) {
      transfer = *launch.replay;
    } else {
      transfer.collective = kind_of(launch.number);
      for (auto& values : memory_[launch.number])
        transfer.buffers.push_back(reinterpret_cast<std::byte*>(values.data()));
      transfer.count = kCount;
      transfer.root_node = static_cast<std::uint32_t>(launch.number % nodes_);
      transfer.root_local = 1;
      transfer.node_bytes.assign(nodes_, kCount * sizeof(float));
      transfer.local_bytes.assign(kWorkers, kCount / kWorkers * sizeof(float));
    }
    transfer.token = launch.number;
    transfer.replay_buffer = launch.replay_buffer;
    return transfer;
  }

  void on_done(TransferDone done) {
    if (!done.result) {
      failed_ = true;
      return;
    }
    SubCommTask launch = std::move(queue.running.at(done.token));
    queue.running.erase(done.token);
    const bool had_it = launch.replay.has_value();
    launch.replay = transfer_of(launch);
    launch.replay->buffers.clear();
    const std::uint64_t number = launch.number;
    queue.finished(std::move(launch), done.bytes);
    if (had_it) return;
    for (auto& values : memory_[number]) {
      results_[number].push_back(values);
      std::ranges::fill(values, kSpoilt);  // the worker goes on
    }
  }

  Reactor& reactor_;
  const std::size_t node_, nodes_;
  const std::uint64_t launches_;
  std::vector<std::vector<Values>> memory_;   // of each launch, by worker
  std::vector<std::vector<Values>> results_;  // of each launch, of each worker, as often as it was told
  bool failed_ = false;
};

template <typename Condition>
void run_until(Reactor& reactor, Condition condition) {
  for (int looks = 0; looks < 60'000 && !condition(); ++looks) {
    reactor.after(1000, [&] { reactor.stop(); });
    reactor.run();
  }
  RC_ASSERT(condition());
}

void check_results(const std::vector<std::unique_ptr<Node>>& nodes, std::uint64_t launches) {
  for (std::uint64_t number = 0; number < launches; ++number) {
    const std::size_t size = kind_of(number) == Collective::kAllGather ? kCount * nodes.size() : kCount;
    for (const auto& node : nodes) {
      RC_ASSERT(node->results()[number].size() == kWorkers);
      for (const auto& values : node->results()[number]) {
        for (std::size_t i = 0; i < size; ++i) {
          float expected = 0;
          if (kind_of(number) == Collective::kAllReduce) {
            for (std::size_t n = 0; n < nodes.size(); ++n) expected += brings(n, 0, number) + brings(n, 1, number);
          } else if (kind_of(number) == Collective::kBroadcast) {
            expected = brings(number % nodes.size(), 1, number);
          } else {
            expected = brings(i / kCount, i % kCount / (kCount / kWorkers), number);
          }
          RC_ASSERT(values[i] == expected);
        }
      }
    }
  }
}

RC_GTEST_PROP(LostLinks, EveryNodeGetsEveryResultOnceWithTheSameBits, ()) {
  const auto count = *rc::gen::inRange<std::size_t>(2, 5);
  const auto launches = *rc::gen::inRange<std::uint64_t>(1, 14);
  Reactor reactor;
  std::vector<std::unique_ptr<Node>> nodes;
  for (std::size_t node = 0; node < count; ++node)
    nodes.push_back(std::make_unique<Node>(reactor, node, count, launches));
  std::vector<std::unique_ptr<Hub>> hubs;
  const auto losses = *rc::gen::inRange(1, 4);
  for (int loss = 0; loss < losses; ++loss) {
    auto& hub = *hubs.emplace_back(std::make_unique<Hub>(count));
    for (auto& at : hub.fails_at) at = *rc::gen::inRange<std::size_t>(0, launches + 1);
    const auto at = *rc::gen::inRange<std::size_t>(0, count);
    hub.fails_at[at] = std::min<std::size_t>(hub.fails_at[at], launches - 1);
    for (auto& node : nodes) node->open(hub);
    const bool over = std::ranges::all_of(nodes, [](const auto& node) { return node->done(); });
    if (!over)
      run_until(reactor, [&] {
        return std::ranges::any_of(nodes, [](const auto& node) { return node->failed(); }) ||
               std::ranges::all_of(nodes, [](const auto& node) { return node->done(); });
      });
    std::uint64_t from = launches;
    const auto known = *rc::gen::inRange<std::uint64_t>(0, launches + 1);  // how much of it the leader has told
    for (auto& node : nodes) {
      node->queue.driver->abort("lost");
      run_until(reactor, [&] { return node->queue.driver->finished(); });
      from = std::min(from, node->finished_below());
    }
    for (auto& node : nodes) {
      node->queue.release(std::min(from, known));
      const auto again = node->queue.replay(from);
      RC_ASSERT(again.has_value());
    }
  }
  Hub sound(count);
  for (auto& node : nodes) node->open(sound);
  run_until(reactor, [&] { return std::ranges::all_of(nodes, [](const auto& node) { return node->done(); }); });
  check_results(nodes, launches);
  for (auto& node : nodes) {
    node->queue.release(launches);
    RC_ASSERT(node->queue.kept.empty());
    node->queue.driver.reset();
  }
}

void finish(LinkQueue& queue, std::uint64_t number, std::shared_ptr<ReplayBuffer> buffer) {
  SubCommTask launch;
  launch.number = number;
  launch.replay_buffer = buffer;
  launch.replay.emplace().replay_buffer = std::move(buffer);
  queue.finished(std::move(launch), 1);
}

// Launch `number` takes a buffer, fills it, and is finished here.
void run(LinkQueue& queue, std::uint64_t number, std::size_t bytes) {
  auto buffer = queue.spare.take(bytes);
  buffer->make_room(bytes);
  finish(queue, number, std::move(buffer));
}

std::size_t kept_bytes(const LinkQueue& queue) {
  std::size_t bytes = 0;
  for (const auto& [number, launch] : queue.kept) bytes += launch.replay_buffer->capacity;
  return bytes;
}

TEST(LostLinks, ALaterLaunchTakesABufferThatNobodyUses) {
  LinkQueue queue;
  auto first = queue.spare.take(1000);
  std::byte* const memory = first->make_room(1000);
  first->filled = true;
  finish(queue, 1, first);
  queue.release(2);
  EXPECT_NE(queue.spare.take(1000), first) << "somebody still uses it";

  finish(queue, 2, std::move(first));
  queue.release(3);
  const auto again = queue.spare.take(900);
  EXPECT_FALSE(again->filled);
  EXPECT_EQ(again->make_room(900), memory);
  EXPECT_EQ(again->bytes, 900u);
}

// With a large launch among small ones each buffer meets a large one in the end.
TEST(LostLinks, ALargeLaunchAmongSmallOnesDoesNotMakeEachBufferLarge) {
  constexpr std::uint64_t kUnderWay = 8;
  LinkQueue queue;
  for (std::uint64_t number = 0; number < 400; ++number) {
    if (number >= kUnderWay) queue.release(number + 1 - kUnderWay);
    run(queue, number, number % 10 == number / 10 % 10 ? 1'000'000 : 1000);
    ASSERT_LT(queue.spare.bytes() + kept_bytes(queue), 4'000'000u) << number;
  }
}

TEST(LostLinks, TheMemoryOfOneHugeLaunchIsGivenBackSoon) {
  constexpr std::size_t kHuge = 10 * SpareBuffers::kAlwaysBytes;
  LinkQueue queue;
  run(queue, 0, kHuge);
  for (std::uint64_t number = 1; number < 100; ++number) {
    run(queue, number, 1000);
    queue.release(number);
    if (number < 2) continue;
    ASSERT_LT(queue.spare.bytes() + kept_bytes(queue), SpareBuffers::kAlwaysBytes) << number;
  }
  run(queue, 100, kHuge);
  for (int report = 0; report < 2; ++report) queue.release(101);
  EXPECT_LT(queue.spare.bytes(), SpareBuffers::kAlwaysBytes) << "also if the link carries nothing any more";
}

TEST(LostLinks, WhatEachStepNeedsStaysBetweenSteps) {
  constexpr std::size_t kBytes = SpareBuffers::kAlwaysBytes;
  LinkQueue queue;
  std::uint64_t number = 0;
  for (int step = 0; step < 3; ++step) {
    for (int launch = 0; launch < 4; ++launch) run(queue, number++, kBytes);
    queue.release(number);
    EXPECT_EQ(queue.spare.bytes(), 4 * kBytes);
  }
}

TEST(LostLinks, ManySmallBuffersDoNotDriveOutLargerOnes) {
  LinkQueue queue;
  run(queue, 0, 1'000'000);
  for (std::uint64_t number = 1; number < 100; ++number) run(queue, number, 1 + number % 2);
  queue.release(100);
  EXPECT_GE(queue.spare.bytes(), 1'000'000u);
  EXPECT_EQ(queue.spare.take(900'000)->capacity, 1'000'000u);
}

TEST(LostLinks, WhatRunsAgainIsToldFromWhatHasNotBegun) {
  LinkQueue queue;
  for (const std::uint64_t number : {0, 1}) {
    SubCommTask launch;
    launch.number = number;
    launch.replay_buffer = std::make_shared<ReplayBuffer>();
    if (number == 0)
      queue.running.emplace(number, std::move(launch));
    else
      queue.waiting.push_back(std::move(launch));
  }
  ASSERT_TRUE(queue.replay(0));
  ASSERT_EQ(queue.waiting.size(), 2U);
  EXPECT_TRUE(queue.waiting[0].runs_again);
  EXPECT_FALSE(queue.waiting[1].runs_again);
}

TEST(LostLinks, WhatWasNotKeptIsNotRunAgain) {
  LinkQueue queue;
  SubCommTask launch;
  launch.number = 3;
  queue.running.emplace(3, std::move(launch));
  EXPECT_EQ(queue.finished_below(9), 3u);
  EXPECT_FALSE(queue.replay(3));
}

}  // namespace
}  // namespace deft::daemon
