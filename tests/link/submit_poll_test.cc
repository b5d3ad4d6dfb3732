// Submit and poll: several requests in flight on one link, how they complete, and how they fail.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <latch>
#include <random>
#include <thread>

#include "core/model/buckets.h"
#include "tests/link/backends.h"

namespace deft::link::testing {
namespace {

using model::DType;
using model::ReduceOp;

constexpr std::size_t kPeriod = 1000;  // elements; then the values come again

// The value of each element of `node` in operation `i`; small whole numbers, so that sums are exact in any order.
std::int32_t value(std::uint32_t node, std::size_t i, std::size_t at) {
  return static_cast<std::int32_t>((node + 1) * (i % 50 + 1) + at % kPeriod);
}

// `count` elements, of which each is the sum of the values of the nodes `first` to `last`.
std::vector<std::int32_t> values(std::uint32_t first, std::uint32_t last, std::size_t i, std::size_t count) {
  std::vector<std::int32_t> data(count);
  for (std::size_t at = 0; at < std::min(count, kPeriod); ++at)
    for (std::uint32_t node = first; node <= last; ++node) data[at] += value(node, i, at);
  repeat(reinterpret_cast<std::byte*>(data.data()), count * sizeof(data[0]), kPeriod * sizeof(data[0]));
  return data;
}

struct Started {
  std::uint64_t i;
  std::vector<std::int32_t> data;
  std::uint32_t priority = 0;
};

Started make(std::uint32_t node, std::size_t i, std::size_t count) { return {i, values(node, node, i, count), 0}; }

Result<void> submit(Link& link, Started& started, std::uint32_t priority = 0) {
  return link.submit(WorkRequest::all_reduce(reinterpret_cast<std::byte*>(started.data.data()), started.data.size(),
                                             DType::kInt32, ReduceOp::kSum, started.i, priority));
}

// The id of the next request that completes.
Result<std::uint64_t> next(Link& link) {
  while (true) {
    const auto done = link.poll();
    if (!done) return tl::unexpected(done.error());
    if (*done) return (*done)->id;
  }
}

void check(const Started& started, std::uint32_t nodes) {
  const auto sums = values(0, nodes - 1, started.i, started.data.size());
  if (started.data == sums) return;
  const auto wrong = std::ranges::mismatch(started.data, sums).in1;
  FAIL() << "operation " << started.i << ", element " << wrong - started.data.begin() << ": " << *wrong;
}

// Requests in flight. Checks each that completes. It may overtake older ones if it is more urgent, or if one of both is small.
class Flights {
 public:
  Flights(Link& link, std::uint32_t node, std::uint32_t nodes, bool small_overtake)
      : link_(link), node_(node), nodes_(nodes), small_overtake_(small_overtake) {}

  [[nodiscard]] std::size_t size() const { return started_.size(); }
  void submit(std::size_t i, std::size_t count, std::uint32_t priority) {
    started_.push_back(make(node_, i, count));
    started_.back().priority = priority;
    ASSERT_OK(testing::submit(link_, started_.back(), priority));
  }
  void complete_one() {
    const auto id = next(link_);
    ASSERT_TRUE(id) << id.error().message();
    const auto ended = std::ranges::find(started_, *id, &Started::i);
    ASSERT_NE(ended, started_.end()) << *id;
    for (auto older = started_.begin(); older != ended; ++older)
      ASSERT_TRUE(older->priority > ended->priority || is_small(*ended) || is_small(*older))
          << *id << " overtook " << older->i;
    check(*ended, nodes_);
    started_.erase(ended);
  }

 private:
  // Without elements there is nothing to wait for.
  [[nodiscard]] bool is_small(const Started& started) const {
    return started.data.empty() || (small_overtake_ && model::is_small(started.data.size() * 4));
  }

  Link& link_;
  const std::uint32_t node_, nodes_;
  const bool small_overtake_;
  std::deque<Started> started_;
};

class SubmitPoll : public BackendTest {
 protected:
  [[nodiscard]] static bool small_overtake() { return GetParam().name == "gloo"; }
};
INSTANTIATE_TEST_SUITE_P(Links, SubmitPoll, ::testing::ValuesIn(backends()), name_of);

// Each node submits and polls in a rhythm of its own; small and large requests, of several priorities.
TEST_P(SubmitPoll, EachRequestGetsItsOwnSumsHoweverNodesInterleaveThem) {
  for (const std::uint32_t nodes : {2U, 3U, 4U}) {
    on_nodes(GetParam(), nodes, [&](std::uint32_t node, Link& link) {
      std::mt19937_64 choices(11);
      std::mt19937_64 rhythm(node);
      Flights flights(link, node, nodes, small_overtake());
      for (std::size_t i = 0; i < 120 || flights.size() > 0;) {
        if (i < 120 && flights.size() < 8 && (flights.size() == 0 || rhythm() % 3 != 0)) {
          const std::size_t most = std::size_t{1} << (choices() % 20);
          const std::size_t count = choices() % most;
          ASSERT_NO_FATAL_FAILURE(flights.submit(i++, count, static_cast<std::uint32_t>(choices() % 4)));
          continue;
        }
        if (rhythm() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(rhythm() % 1500));
        ASSERT_NO_FATAL_FAILURE(flights.complete_one());
      }
    });
  }
}

TEST_P(SubmitPoll, RequestsOfOnePriorityCompleteInTheirOrder) {
  on_nodes(GetParam(), 2, [](std::uint32_t node, Link& link) {
    std::vector<Started> all;
    for (std::size_t i = 0; i < 20; ++i) all.push_back(make(node, i, 9000 + 7777 * i));
    for (Started& started : all) ASSERT_OK(submit(link, started));
    for (const Started& started : all) {
      const auto id = next(link);
      ASSERT_TRUE(id) << id.error().message();
      EXPECT_EQ(*id, started.i);
      check(started, 2);
    }
  });
}

// The count of each request makes up for its place in the order: no number may be made of both alone.
TEST_P(SubmitPoll, NeighboursOfAlmostTheSameCountAreKeptApart) {
  on_nodes(GetParam(), 2, [](std::uint32_t node, Link& link) {
    Flights flights(link, node, 2, false);
    for (std::size_t i = 0; i < 32; ++i) {
      ASSERT_NO_FATAL_FAILURE(flights.submit(i, std::size_t{20'480} ^ i, 0));
      while (flights.size() >= 3) ASSERT_NO_FATAL_FAILURE(flights.complete_one());
    }
    while (flights.size() > 0) ASSERT_NO_FATAL_FAILURE(flights.complete_one());
  });
}

TEST_P(SubmitPoll, OneBeginsWhileThePeerHasNotFinishedTheOneBefore) {
  on_nodes(GetParam(), 2, [](std::uint32_t node, Link& link) {
    Flights flights(link, node, 2, false);
    for (std::size_t i = 0; i < 6; ++i) {
      ASSERT_NO_FATAL_FAILURE(flights.submit(i, 700'001, 0));
      if (node == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    while (flights.size() > 0) ASSERT_NO_FATAL_FAILURE(flights.complete_one());
  });
}

// Every kind in one sequence, all submitted before the first completes.
TEST_P(SubmitPoll, KindsMixInFlight) {
  constexpr std::uint32_t kNodes = 3;
  on_nodes(GetParam(), kNodes, [](std::uint32_t node, Link& link) {
    for (std::uint32_t round = 0; round < 12; ++round) {
      Started large = make(node, 1, 200'000), small = make(node, 2, 100), middle = make(node, 3, 9000);
      std::uint64_t word = node == round % kNodes ? round : 0;
      std::vector<std::uint8_t> blocks(0 + 70'000 + 3, 0);  // node 0 brings nothing
      if (node == 1) std::fill_n(blocks.begin(), 70'000, std::uint8_t{1});
      if (node == 2) std::fill_n(blocks.begin() + 70'000, 3, std::uint8_t{2});
      ASSERT_OK(submit(link, large));
      ASSERT_OK(
          link.submit(WorkRequest::broadcast(reinterpret_cast<std::byte*>(&word), sizeof word, round % kNodes, 10)));
      ASSERT_OK(submit(link, small));
      ASSERT_OK(link.submit(WorkRequest::all_gather(reinterpret_cast<std::byte*>(blocks.data()), {0, 70'000, 3}, 11)));
      ASSERT_OK(submit(link, middle));
      Started scattered = make(node, 12, 250'000);
      auto* const data = reinterpret_cast<std::byte*>(scattered.data.data());
      ASSERT_OK(link.submit(WorkRequest::reduce_scatter(data, 250'000, DType::kInt32, ReduceOp::kSum, 12)));
      Started last = make(node, 13, 300'000);
      ASSERT_OK(submit(link, last));
      std::vector<std::uint64_t> ids;
      for (int i = 0; i < 7; ++i) {
        const auto id = next(link);
        ASSERT_TRUE(id) << id.error().message();
        ids.push_back(*id);
      }
      EXPECT_TRUE(link.idle());
      std::erase(ids, 2U);  // the small one may overtake
      EXPECT_EQ(ids, (std::vector<std::uint64_t>{1, 10, 11, 3, 12, 13}));
      for (const auto* started : {&large, &small, &middle, &last}) check(*started, kNodes);
      const Range owned = link.owned(WorkRequest::reduce_scatter(nullptr, 250'000, DType::kInt32, ReduceOp::kSum));
      for (std::size_t at = owned.first; at < owned.first + owned.count; ++at)
        ASSERT_EQ(scattered.data[at], value(0, 12, at) + value(1, 12, at) + value(2, 12, at));
      EXPECT_EQ(word, round);
      EXPECT_EQ(std::ranges::count(blocks, 1), 70'000);
      EXPECT_EQ(std::ranges::count(blocks, 2), 3);
    }
  });
}

TEST_P(SubmitPoll, ARefusedRequestLeavesTheOthersAsTheyWere) {
  on_nodes(GetParam(), 2, [](std::uint32_t node, Link& link) {
    Flights flights(link, node, 2, false);
    for (std::size_t i = 0; i < 2; ++i) ASSERT_NO_FATAL_FAILURE(flights.submit(i, 50'000, 0));
    std::byte data[8] = {};
    for (const WorkRequest& request : {WorkRequest::all_reduce(data, 1, static_cast<DType>(99), ReduceOp::kSum),
                                       WorkRequest::all_reduce(data, 1, DType::kInt8, static_cast<ReduceOp>(99)),
                                       WorkRequest::reduce_scatter(data, 1, static_cast<DType>(99), ReduceOp::kSum),
                                       WorkRequest::broadcast(data, 8, 2), WorkRequest::all_gather(data, {1, 1, 1})}) {
      const auto refused = link.submit(request);
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().kind, ErrorKind::kInvalid);
    }
    const auto not_alone = link.run(WorkRequest::broadcast(data, 8, 0));
    ASSERT_FALSE(not_alone);
    EXPECT_EQ(not_alone.error().kind, ErrorKind::kInvalid);
    ASSERT_NO_FATAL_FAILURE(flights.submit(9, 50'000, 0));
    while (flights.size() > 0) ASSERT_NO_FATAL_FAILURE(flights.complete_one());
  });
}

TEST_P(SubmitPoll, ANodeThatIsAloneCompletesEverythingAtOnceWithItsOwnData) {
  on_nodes(GetParam(), 1, [](std::uint32_t, Link& link) {
    EXPECT_EQ(*link.poll(), std::nullopt) << "nothing is in flight";
    std::int32_t value = 3;
    auto* const data = reinterpret_cast<std::byte*>(&value);
    ASSERT_OK(link.submit(WorkRequest::all_reduce(data, 1, DType::kInt32, ReduceOp::kSum, 5)));
    ASSERT_OK(link.submit(WorkRequest::reduce_scatter(data, 1, DType::kInt32, ReduceOp::kSum, 6)));
    ASSERT_OK(link.submit(WorkRequest::all_gather(data, {4}, 7)));
    ASSERT_OK(link.submit(WorkRequest::broadcast(data, 4, 0, 8)));
    EXPECT_FALSE(link.submit(WorkRequest::broadcast(data, 4, 1, 9)));
    for (const std::uint64_t id : {5U, 6U, 7U, 8U}) EXPECT_EQ(*next(link), id);
    EXPECT_EQ(*link.poll(), std::nullopt);
    EXPECT_EQ(value, 3);
    link.abort("enough");
    EXPECT_EQ(link.submit(WorkRequest::broadcast(data, 4, 0)).error().kind, ErrorKind::kLost);
  });
}

// Submits without an end, and polls, until an error; the data goes as soon as there is one.
Result<void> run_into_an_error(Link& link, std::uint32_t node, std::size_t count) {
  std::deque<Started> in_flight;
  for (std::size_t i = 0;; ++i) {
    in_flight.push_back(make(node, i, count));
    if (auto ok = submit(link, in_flight.back()); !ok) return ok;
    if (in_flight.size() < 5) continue;
    const auto id = next(link);
    if (!id) return tl::unexpected(id.error());
    std::erase_if(in_flight, [&](const Started& started) { return started.i == *id; });
  }
}

TEST_P(SubmitPoll, AbortFailsAllInFlightWithItsReason) {
  for (const std::size_t count : {std::size_t{100}, std::size_t{2} << 20}) {
    std::latch aborted(1);
    on_nodes(GetParam(), 3, [&](std::uint32_t node, Link& link) {
      if (node == 1) return aborted.wait();  // takes no part
      std::atomic<TimeUs> aborted_at{0};
      std::thread aborter([&] {
        if (node != 0) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(60));
        aborted_at = MonotonicClock::now();
        link.abort("job failed: node 1 is gone");
      });
      const auto result = run_into_an_error(link, node, count);
      const TimeUs ended = MonotonicClock::now();
      if (node == 0) aborted.count_down();
      aborter.join();
      ASSERT_FALSE(result);
      EXPECT_EQ(result.error().kind, ErrorKind::kLost);
      EXPECT_TRUE(link.idle());
      if (node != 0) return;
      EXPECT_NE(result.error().message().find("job failed: node 1 is gone"), std::string::npos);
      EXPECT_LT(ended - aborted_at, kPromptly);
      Started late = make(node, 0, count);
      EXPECT_EQ(submit(link, late).error().message(), result.error().message());
      EXPECT_EQ(link.poll().error().message(), result.error().message());
    });
  }
}

TEST_P(SubmitPoll, AbortAtAnyMomentIsSafe) {
  for (int round = 0; round < 12; ++round) {
    on_nodes(GetParam(), 3, [&](std::uint32_t node, Link& link) {
      std::thread aborter([&] {
        if (node == 2) return;  // it learns from the others
        std::this_thread::sleep_for(std::chrono::microseconds(600 * (round + 1)));
        link.abort("stop");
      });
      EXPECT_FALSE(run_into_an_error(link, node, round % 2 == 0 ? 300'000 : 500));
      aborter.join();
    });
  }
}

TEST_P(SubmitPoll, APeerThatClosesInTheMiddleIsNamed) {
  on_nodes(GetParam(), 2, [](std::uint32_t node, Link& link) {
    if (node == 1) {
      Started only = make(node, 0, 1'000'000);
      ASSERT_OK(submit(link, only));
      ASSERT_TRUE(next(link));
      return;  // closes its link
    }
    const auto result = run_into_an_error(link, node, 1'000'000);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().kind, ErrorKind::kLost);
    EXPECT_NE(result.error().message().find("node 1"), std::string::npos) << result.error().message();
  });
}

TEST_P(SubmitPoll, ALinkClosesWithRequestsInFlight) {
  std::vector<Started> started;  // outlive the link
  for (std::size_t i = 0; i < 5; ++i) started.push_back(make(0, i, 1 << 20));
  std::latch submitted(1);
  on_nodes(GetParam(), 2, [&](std::uint32_t node, Link& link) {
    if (node == 1) return submitted.wait();  // before it closes its link, too: then node 0 could submit nothing more
    for (Started& each : started) {
      const auto ok = submit(link, each);
      EXPECT_TRUE(ok) << ok.error().message();
    }
    submitted.count_down();
  });
}

}  // namespace
}  // namespace deft::link::testing
