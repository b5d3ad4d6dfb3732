// Several all-reduces under way on one link: as many as its depth says.
#include <atomic>
#include <cstring>
#include <deque>
#include <random>
#include <thread>

#include "core/reduce/reduce.h"
#include "tests/link/backends.h"

namespace deft::link::testing {
namespace {

using model::DType;
using model::ReduceOp;

constexpr TimeUs kPromptly = 1'000'000;  // generous: the machine may be busy

// The value of each element of `node` in operation `i`; small whole numbers, so that sums are exact in any order.
std::int32_t value(std::uint32_t node, std::size_t i, std::size_t at) {
  return static_cast<std::int32_t>((node + 1) * (i % 50 + 1) + at % 1000);
}

struct Started {
  std::size_t i;
  std::vector<std::int32_t> data;
};

Started make(std::uint32_t node, std::size_t i, std::size_t count) {
  Started started{i, std::vector<std::int32_t>(count)};
  for (std::size_t at = 0; at < count; ++at) started.data[at] = value(node, i, at);
  return started;
}

Result<void> start(Link& link, Started& started, std::uint32_t urgency = 0) {
  return link.start_all_reduce(reinterpret_cast<std::byte*>(started.data.data()), started.data.size(), DType::kInt32,
                               ReduceOp::kSum, urgency);
}

void check(const Started& started, std::uint32_t nodes) {
  for (std::size_t at = 0; at < started.data.size(); ++at) {
    std::int32_t sum = 0;
    for (std::uint32_t node = 0; node < nodes; ++node) sum += value(node, started.i, at);
    ASSERT_EQ(started.data[at], sum) << "operation " << started.i << ", element " << at;
  }
}

class UnderWay : public ::testing::TestWithParam<Backend> {};
INSTANTIATE_TEST_SUITE_P(Links, UnderWay, ::testing::ValuesIn(backends()), name_of);

// Each node starts and finishes in a rhythm of its own; what is small goes another way than what is large.
TEST_P(UnderWay, EachOperationGetsItsOwnSumsHoweverNodesInterleaveThem) {
  for (const std::uint32_t nodes : {2U, 3U, 4U}) {
    on_nodes(GetParam(), nodes, [&](std::uint32_t node, Link& link) {
      std::mt19937_64 sizes(11);
      std::mt19937_64 rhythm(node);
      std::deque<Started> under_way;
      for (std::size_t i = 0; i < 120 || !under_way.empty();) {
        const bool room = i < 120 && under_way.size() < link.depth();
        if (under_way.empty() || (room && rhythm() % 3 != 0)) {
          const std::size_t most = std::size_t{1} << (sizes() % 19);
          under_way.push_back(make(node, i++, sizes() % most));
          ASSERT_OK(start(link, under_way.back()));
          continue;
        }
        if (rhythm() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(rhythm() % 1500));
        ASSERT_OK(link.finish_all_reduce());
        check(under_way.front(), nodes);
        under_way.pop_front();
      }
    });
  }
}

// Ends them as they come, whatever their urgency; those of the same one in their order.
TEST_P(UnderWay, EachOperationGetsItsOwnSumsInWhateverOrderTheyEnd) {
  struct Urgent {
    Started started;
    std::uint32_t urgency;
  };
  for (const std::uint32_t nodes : {2U, 3U}) {
    on_nodes(GetParam(), nodes, [&](std::uint32_t node, Link& link) {
      std::mt19937_64 choices(5);
      std::mt19937_64 rhythm(node);
      std::deque<Urgent> under_way;
      for (std::size_t i = 0; i < 120 || !under_way.empty();) {
        if (i < 120 && under_way.size() < link.depth() && (under_way.empty() || rhythm() % 3 != 0)) {
          const std::size_t most = std::size_t{1} << (choices() % 20);
          under_way.push_back({make(node, i++, choices() % most), static_cast<std::uint32_t>(choices() % 4)});
          ASSERT_OK(start(link, under_way.back().started, under_way.back().urgency));
          continue;
        }
        const auto place = link.finish_next();
        ASSERT_TRUE(place) << place.error().message();
        ASSERT_TRUE(*place && **place < under_way.size());
        const auto ended = under_way.begin() + static_cast<std::ptrdiff_t>(**place);
        for (auto older = under_way.begin(); older != ended; ++older) ASSERT_GT(older->urgency, ended->urgency);
        check(ended->started, nodes);
        under_way.erase(ended);
      }
    });
  }
}

TEST_P(UnderWay, OneBeginsWhileThePeerHasNotFinishedTheOneBefore) {
  on_nodes(GetParam(), 2, [](std::uint32_t node, Link& link) {
    std::deque<Started> under_way;
    for (std::size_t i = 0; i < link.depth(); ++i) {
      under_way.push_back(make(node, i, 700'001));
      ASSERT_OK(start(link, under_way.back()));
      if (node == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    for (const Started& started : under_way) {
      ASSERT_OK(link.finish_all_reduce());
      check(started, 2);
    }
  });
}

TEST_P(UnderWay, OtherCollectivesFollowWhenAllAreFinished) {
  on_nodes(GetParam(), 3, [](std::uint32_t node, Link& link) {
    for (std::size_t i = 0; i < 20; ++i) {
      std::deque<Started> under_way;
      for (std::size_t n = 0; n < link.depth(); ++n) {
        under_way.push_back(make(node, i + n, 1000 << (3 * n)));
        ASSERT_OK(start(link, under_way.back()));
      }
      for (const Started& started : under_way) {
        ASSERT_OK(link.finish_all_reduce());
        check(started, 3);
      }
      std::uint64_t word = node == i % 3 ? i : 0;
      ASSERT_OK(link.broadcast(reinterpret_cast<std::byte*>(&word), sizeof word, i % 3));
      ASSERT_EQ(word, i);
    }
  });
}

TEST_P(UnderWay, ARefusedOneLeavesTheOthersAsTheyWere) {
  on_nodes(GetParam(), 2, [](std::uint32_t node, Link& link) {
    std::deque<Started> under_way;
    for (std::size_t i = 0; i + 1 < link.depth(); ++i) {
      under_way.push_back(make(node, i, 50'000));
      ASSERT_OK(start(link, under_way.back()));
    }
    std::byte data{};
    const auto refused = link.start_all_reduce(&data, 1, static_cast<DType>(99), ReduceOp::kSum, 0);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::kInvalid);
    under_way.push_back(make(node, 9, 50'000));
    ASSERT_OK(start(link, under_way.back()));
    for (const Started& started : under_way) {
      ASSERT_OK(link.finish_all_reduce());
      check(started, 2);
    }
  });
}

// Starts as many as there may be, and finishes them until an error; the data goes as soon as there is one.
Result<void> run_into_an_error(Link& link, std::uint32_t node, std::size_t count) {
  std::deque<Started> under_way;
  for (std::size_t i = 0;; ++i) {
    under_way.push_back(make(node, i, count));
    if (auto ok = start(link, under_way.back()); !ok) return ok;
    if (under_way.size() < link.depth()) continue;
    if (auto ok = link.finish_all_reduce(); !ok) return ok;
    under_way.pop_front();
  }
}

TEST_P(UnderWay, AbortFailsAllOfThemWithItsReason) {
  for (const std::size_t count : {std::size_t{100}, std::size_t{2} << 20}) {
    on_nodes(GetParam(), 3, [&](std::uint32_t node, Link& link) {
      if (node == 1) return std::this_thread::sleep_for(std::chrono::milliseconds(300));  // takes no part
      std::atomic<TimeUs> aborted_at{0};
      std::thread aborter([&] {
        if (node != 0) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(60));
        aborted_at = MonotonicClock::now();
        link.abort("job failed: node 1 is gone");
      });
      const auto result = run_into_an_error(link, node, count);
      const TimeUs ended = MonotonicClock::now();
      aborter.join();
      ASSERT_FALSE(result);
      EXPECT_EQ(result.error().kind, ErrorKind::kLost);
      if (node != 0) return;
      EXPECT_NE(result.error().message().find("job failed: node 1 is gone"), std::string::npos);
      EXPECT_LT(ended - aborted_at, kPromptly);
      Started late = make(node, 0, count);
      EXPECT_FALSE(start(link, late) && link.finish_all_reduce());
    });
  }
}

TEST_P(UnderWay, AbortAtAnyMomentIsSafe) {
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

TEST_P(UnderWay, APeerThatClosesInTheMiddleIsNamed) {
  on_nodes(GetParam(), 2, [](std::uint32_t node, Link& link) {
    if (node == 1) {
      Started only = make(node, 0, 1'000'000);
      ASSERT_OK(start(link, only));
      ASSERT_OK(link.finish_all_reduce());
      return;  // closes its link
    }
    const auto result = run_into_an_error(link, node, 1'000'000);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().kind, ErrorKind::kLost);
    EXPECT_NE(result.error().message().find("node 1"), std::string::npos) << result.error().message();
  });
}

TEST_P(UnderWay, ALinkClosesWithWhatWasNeverFinished) {
  Started started = make(0, 0, 1 << 20);  // outlives the link
  on_nodes(GetParam(), 2, [&](std::uint32_t node, Link& link) {
    if (node == 0 && link.depth() > 1) ASSERT_OK(start(link, started));
  });
}

}  // namespace
}  // namespace deft::link::testing
