#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <latch>
#include <thread>

#include "core/link/rendezvous.h"
#include "tests/link/backends.h"

namespace deft::link::testing {
namespace {

using model::DType;
using model::ReduceOp;
using std::chrono::milliseconds;

Result<void> sum(Link& link, Bytes& data) {
  return all_reduce(link, data.data(), data.size() / 4, DType::kFloat32, ReduceOp::kSum);
}

// A deadline that a test waits for. An MPI process starts before it.
double short_time(const Backend& backend) { return backend.name == "mpi" ? 2 : 0.3; }

class Lifecycle : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Links, Lifecycle, ::testing::ValuesIn(backends_with_encryption()), name_of);

TEST_P(Lifecycle, OpeningEndsAtTheDeadlineAndNamesTheNodesThatDidNotCome) {
  const LinkGroup group = make_group(4, std::make_shared<MemoryStore>(), GetParam());
  const auto error_of = [&](std::uint32_t node, double seconds) {
    LinkGroup own = group;
    own.node = node;
    own.connect_deadline_us = seconds_from_now(seconds);
    const auto link = open_link(spec_for(GetParam(), node), own);
    EXPECT_LT(MonotonicClock::now(), own.connect_deadline_us + kPromptly);
    EXPECT_FALSE(link);
    return link ? Error{} : link.error();
  };
  std::thread other([&] { EXPECT_EQ(error_of(2, short_time(GetParam())).kind, ErrorKind::kTimeout); });
  const std::vector<std::string> key = {meeting_key(group, GetParam().name, 2)};
  ASSERT_TRUE(group.store->get(key, seconds_from_now(60)));  // node 2 has come
  const Error error = error_of(0, short_time(GetParam()));
  other.join();
  EXPECT_EQ(error.kind, ErrorKind::kTimeout);
  EXPECT_NE(error.message().find("2 nodes of 4 did not come before the deadline: 1, 3"), std::string::npos)
      << error.message();
  EXPECT_NE(error.message().find(spec_for(GetParam(), 0).name()), std::string::npos);
}

TEST_P(Lifecycle, OpeningEndsAtTheDeadlineWhenANodeCameAndDied) {
  for (const std::uint32_t dead : {0U, 1U}) {  // once the one that connects, once the one that accepts
    LinkGroup group = make_group(2, std::make_shared<MemoryStore>(), GetParam());
    group.node = dead;
    group.connect_deadline_us = seconds_from_now(0.1);
    ASSERT_FALSE(open_link(spec_for(GetParam(), dead), group));
    group.node = 1 - dead;
    group.connect_deadline_us = seconds_from_now(short_time(GetParam()));
    const auto link = open_link(spec_for(GetParam(), group.node), group);
    ASSERT_FALSE(link);
    EXPECT_NE(link.error().message().find("node " + std::to_string(dead)), std::string::npos) << link.error().message();
    EXPECT_LT(MonotonicClock::now(), group.connect_deadline_us + kPromptly);
  }
}

TEST_P(Lifecycle, ANodeThatPublishesNonsenseIsRefused) {
  for (const std::size_t size : {0, 3, 4, 9, 100}) {
    LinkGroup group = make_group(2, std::make_shared<MemoryStore>(), GetParam());
    ASSERT_OK(group.store->set(meeting_key(group, GetParam().name, 1), Bytes(size, std::byte{0x7F})));
    const auto link = open_link(spec_for(GetParam(), 0), group);
    ASSERT_FALSE(link);
    EXPECT_EQ(link.error().kind, ErrorKind::kViolation) << link.error().message();
  }
}

TEST_P(Lifecycle, AnUnknownBackendIsSaid) {
  const auto link =
      open_link({"quantum", "lo", "127.0.0.1"}, make_group(2, std::make_shared<MemoryStore>(), GetParam()));
  ASSERT_FALSE(link);
  EXPECT_EQ(link.error().kind, ErrorKind::kInvalid);
  EXPECT_NE(link.error().message().find(GetParam().name), std::string::npos) << link.error().message();
}

// Each way in which node 0 can be blocked by a node that does not take part.
enum class Blocked { kSmall, kLarge, kReduceScatter, kBroadcast, kAllGather };

Result<void> block(Link& link, Blocked how) {
  Bytes data(how == Blocked::kSmall ? 400 : 8 << 20);
  const std::vector<std::size_t> blocks = {data.size() / 4, data.size() / 4, data.size() / 2};
  switch (how) {
    case Blocked::kReduceScatter:
      return link.run(WorkRequest::reduce_scatter(data.data(), data.size() / 4, DType::kFloat32, ReduceOp::kSum));
    case Blocked::kBroadcast: return broadcast(link, data.data(), data.size(), 1);
    case Blocked::kAllGather: return all_gather(link, data.data(), blocks);
    default: return sum(link, data);
  }
}

TEST_P(Lifecycle, AbortEndsABlockedOperationPromptlyWithItsReason) {
  for (const Blocked how :
       {Blocked::kSmall, Blocked::kLarge, Blocked::kReduceScatter, Blocked::kBroadcast, Blocked::kAllGather}) {
    std::latch aborted(1);
    on_nodes(GetParam(), 3, [&](std::uint32_t node, Link& link) {
      if (node == 1) return aborted.wait();  // takes no part, and is not gone
      std::atomic<TimeUs> aborted_at{0};
      std::thread aborter([&] {
        if (node != 0) return;
        std::this_thread::sleep_for(milliseconds(60));
        aborted_at = MonotonicClock::now();
        link.abort("job failed: node 1 is gone");
      });
      const auto result = block(link, how);
      const TimeUs ended = MonotonicClock::now();
      if (node == 0) aborted.count_down();
      aborter.join();
      ASSERT_FALSE(result);
      EXPECT_EQ(result.error().kind, ErrorKind::kLost);
      if (node != 0) return;
      EXPECT_NE(result.error().message().find("job failed: node 1 is gone"), std::string::npos);
      EXPECT_GE(ended, aborted_at.load());
      EXPECT_LT(ended - aborted_at, kPromptly);
      const auto later = block(link, how);
      ASSERT_FALSE(later);
      EXPECT_EQ(later.error().message(), result.error().message());
    });
  }
}

TEST_P(Lifecycle, AbortOfAnIdleLinkFailsTheNextOperationOfAllNodes) {
  on_nodes(GetParam(), 2, [](std::uint32_t node, Link& link) {
    if (node == 0) {
      link.abort("first");
      link.abort("second");
    }
    Bytes data(4096);
    const auto result = sum(link, data);
    ASSERT_FALSE(result);
    const std::string expected = node == 0 ? "first" : "node 0";
    EXPECT_NE(result.error().message().find(expected), std::string::npos) << result.error().message();
  });
}

TEST_P(Lifecycle, AbortAtAnyMomentOfRunningOperationsIsSafe) {
  constexpr std::array<std::size_t, 3> kSizes{2 << 20, 80'000, 2000};  // many rounds, one round, sent whole
  for (std::size_t trial = 0; trial < 24; ++trial) {
    on_nodes(GetParam(), 3, [&](std::uint32_t node, Link& link) {
      std::thread aborter([&] {
        if (node == 2) return;  // it learns from the others
        std::this_thread::sleep_for(std::chrono::microseconds(350 * (trial + 1)));
        link.abort("stop");
      });
      while (true) {
        Bytes data(kSizes[trial % kSizes.size()]);  // freed as soon as the operation has failed
        if (!sum(link, data)) break;
      }
      aborter.join();
    });
  }
}

TEST_P(Lifecycle, NodesThatDisagreeAboutAnOperationGetAnErrorOrWaitUntilTheyAreAborted) {
  for (const std::size_t other : {std::size_t{4} << 20, (std::size_t{8} << 20) + 4}) {
    on_nodes(GetParam(), 2, [&](std::uint32_t node, Link& link) {
      std::thread aborter([&] {
        std::this_thread::sleep_for(milliseconds(300));
        link.abort("they disagree");
      });
      Bytes data(node == 0 ? std::size_t{8} << 20 : other, std::byte{1});
      EXPECT_FALSE(sum(link, data));
      aborter.join();
    });
  }
}

TEST_P(Lifecycle, APeerThatClosesIsAnErrorThatNamesIt) {
  on_nodes(GetParam(), 2, [](std::uint32_t node, Link& link) {
    if (node == 1) return;  // closes its link
    Bytes data(8 << 20);
    const auto result = sum(link, data);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().kind, ErrorKind::kLost);
    EXPECT_NE(result.error().message().find("node 1"), std::string::npos) << result.error().message();
  });
}

TEST_P(Lifecycle, ClosingRightAfterTheLastOperationLosesNothingOfIt) {
  for (int round = 0; round < 40; ++round) {
    on_nodes(GetParam(), 2, [&](std::uint32_t, Link& link) {
      Bytes data(round % 2 == 0 ? 4 : 1 << 20);
      ASSERT_OK(sum(link, data));
    });
  }
}

TEST_P(Lifecycle, NothingIsLeftBehindAfterClosingOrAborting) {
  const std::size_t descriptors_before = open_descriptors();
  const std::size_t threads_before = threads();
  for (int round = 0; round < 6; ++round) {
    on_nodes(GetParam(), 3, [&](std::uint32_t node, Link& link) {
      Bytes data(100'000);
      const bool aborts = round % 2 == 1;  // which may cut off a slower node's end of the operation
      EXPECT_TRUE(sum(link, data) || aborts);
      if (aborts && node == 0) link.abort("enough");
    });
  }
  EXPECT_EQ(open_descriptors(), descriptors_before);
  EXPECT_EQ(threads(), threads_before);
}

TEST_P(Lifecycle, ALinkOpensAgainUnderAnotherPrefixWithTheSameStore) {
  const auto store = std::make_shared<MemoryStore>();
  for (int round = 0; round < 3; ++round) {
    const LinkGroup group = make_group(2, store, GetParam());
    std::vector<std::thread> nodes;
    for (std::uint32_t node = 0; node < 2; ++node) {
      nodes.emplace_back([&, node] {
        const auto link = open_or_fail(GetParam(), group, node);
        Bytes data(64);
        ASSERT_OK(sum(*link, data));
      });
    }
    for (std::thread& node : nodes) node.join();
  }
}

}  // namespace
}  // namespace deft::link::testing
