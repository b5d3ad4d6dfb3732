// What a link tells of each segment: nodes agree about it, and nothing is sent that is not told.
#include "core/link/segment_observer.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "tests/link/backends.h"

namespace deft::link::testing {
namespace {

using model::SegmentPart;

constexpr std::uint32_t kNodes = 3;
constexpr std::size_t kLarge = 1'500'000, kSmall = 5'000;  // elements: many rounds, and sent whole to everyone

class Log final : public SegmentObserver {
 public:
  void moved(const SegmentMove& move) noexcept override {
    const std::lock_guard lock(mutex_);
    moves_.push_back(move);
  }
  [[nodiscard]] std::vector<SegmentMove> moves(bool sent) {
    const std::lock_guard lock(mutex_);
    std::vector<SegmentMove> found;
    std::ranges::copy_if(moves_, std::back_inserter(found),
                         [&](const SegmentMove& move) { return move.is_sent == sent; });
    return found;
  }

 private:
  std::mutex mutex_;
  std::vector<SegmentMove> moves_;
};

using Logs = std::vector<std::shared_ptr<Log>>;  // by node

// Each node's request, by the elements that it brings.
using MakeRequest = std::function<WorkRequest(std::vector<std::int32_t>& data)>;

std::byte* bytes_of(std::vector<std::int32_t>& data) { return reinterpret_cast<std::byte*>(data.data()); }

// Runs a request on all nodes, and gives what each was told.
Logs observed(const Backend& backend, std::size_t count, const MakeRequest& make) {
  Logs logs;
  for (std::uint32_t node = 0; node < kNodes; ++node) logs.push_back(std::make_shared<Log>());
  on_nodes(backend, kNodes, [&](std::uint32_t node, Link& link) {
    std::vector<std::int32_t> data(count, static_cast<std::int32_t>(node + 1));
    std::vector<std::int32_t> unobserved = data;
    WorkRequest request = make(data);
    ASSERT_OK(link.run(make(unobserved)));
    request.id = 40 + node;
    request.observer = logs[node];
    ASSERT_OK(link.run(request));
    const Range owned = request.kind == WorkRequest::Kind::kReduceScatter ? link.owned(request) : Range{0, count};
    for (std::size_t i = owned.first; i < owned.first + owned.count; ++i) ASSERT_EQ(data[i], unobserved[i]);
  });
  return logs;
}

WorkRequest all_reduce_of(std::vector<std::int32_t>& data) {
  return WorkRequest::all_reduce(bytes_of(data), data.size(), model::DType::kInt32, model::ReduceOp::kSum);
}
WorkRequest reduce_scatter_of(std::vector<std::int32_t>& data) {
  return WorkRequest::reduce_scatter(bytes_of(data), data.size(), model::DType::kInt32, model::ReduceOp::kSum);
}
WorkRequest by_all_of(std::vector<std::int32_t>& data) {
  return WorkRequest::reduce_by_all(bytes_of(data), data.size() * 4, [](const OwnedSegment&) {});
}
WorkRequest broadcast_of(std::vector<std::int32_t>& data) {
  return WorkRequest::broadcast(bytes_of(data), data.size() * 4, 1);
}
WorkRequest all_gather_of(std::vector<std::int32_t>& data) {
  const std::size_t third = data.size() * 4 / 3;
  return WorkRequest::all_gather(bytes_of(data), {third, third / 2, data.size() * 4 - third - third / 2});
}

using Way = std::tuple<std::uint32_t, std::uint32_t, SegmentPart, std::uint32_t>;  // from, to, part, round

// Each send has the receive that it fed, with the same bytes, and there are no others. Gives the bytes of each part.
std::map<SegmentPart, std::uint64_t> matched(const Logs& logs) {
  std::map<Way, SegmentMove> sends;
  std::map<SegmentPart, std::uint64_t> bytes;
  for (std::uint32_t node = 0; node < kNodes; ++node)
    for (const SegmentMove& move : logs[node]->moves(true)) {
      EXPECT_EQ(move.request, 40 + node);
      EXPECT_LE(move.began_us, move.ended_us);
      EXPECT_FALSE(move.is_server);
      EXPECT_TRUE(sends.emplace(Way{node, move.peer, move.part, move.round}, move).second) << "sent twice";
      bytes[move.part] += move.bytes;
    }
  for (std::uint32_t node = 0; node < kNodes; ++node)
    for (const SegmentMove& move : logs[node]->moves(false)) {
      EXPECT_EQ(move.request, 40 + node);
      EXPECT_LE(move.began_us, move.ended_us);
      const auto send = sends.find(Way{move.peer, node, move.part, move.round});
      if (send == sends.end()) {
        ADD_FAILURE() << "node " << node << " received what node " << move.peer << " has not sent";
        continue;
      }
      EXPECT_EQ(move.bytes, send->second.bytes);
      EXPECT_GE(move.ended_us, send->second.began_us) << "nothing comes before it was sent";
      sends.erase(send);
    }
  EXPECT_TRUE(sends.empty()) << sends.size() << " sends without a receive";
  return bytes;
}

class ObservedLinks : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Links, ObservedLinks,
                         ::testing::Values(Backend{"gloo"}, Backend{"gloo", true}, Backend{"mpi"}, Backend{"tcp"},
                                           Backend{"tcp", true}),
                         name_of);

// The links that send small data whole to everyone.
class ObservedWholes : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Links, ObservedWholes,
                         ::testing::Values(Backend{"gloo"}, Backend{"gloo", true}, Backend{"mpi"}), name_of);

TEST_P(ObservedLinks, EachSendOfAnAllReduceHasItsReceive) {
  const auto bytes = matched(observed(GetParam(), kLarge, all_reduce_of));
  // Each node sends the slices of the others, and its own result to the others.
  EXPECT_EQ(bytes.at(SegmentPart::kSegment), 4 * kLarge * (kNodes - 1));
  EXPECT_EQ(bytes.at(SegmentPart::kResult), 4 * kLarge * (kNodes - 1));
}

TEST_P(ObservedWholes, HaveNoResults) {
  const auto bytes = matched(observed(GetParam(), kSmall, all_reduce_of));
  EXPECT_EQ(bytes.size(), 1U);
  EXPECT_EQ(bytes.at(SegmentPart::kSegment), 4 * kSmall * kNodes * (kNodes - 1));
}

TEST_P(ObservedLinks, EachSendOfTheOtherCollectivesHasItsReceive) {
  const auto scattered = matched(observed(GetParam(), kLarge, reduce_scatter_of));
  EXPECT_EQ(scattered.at(SegmentPart::kSegment), 4 * kLarge * (kNodes - 1));
  const auto by_all = matched(observed(GetParam(), kLarge / 3, by_all_of));
  EXPECT_EQ(by_all.at(SegmentPart::kSegment), 4 * (kLarge / 3) * kNodes * (kNodes - 1));
  const auto gathered = matched(observed(GetParam(), kLarge, all_gather_of));
  EXPECT_EQ(gathered.at(SegmentPart::kBlock), 4 * kLarge * (kNodes - 1));
  const auto broadcast = matched(observed(GetParam(), kLarge, broadcast_of));
  EXPECT_EQ(broadcast.at(SegmentPart::kBlock), 4 * kLarge * (kNodes - 1));
}

// Each of the others gets a part of it, and passes it on.
TEST(ObservedGloo, ALargeBroadcastLeavesItsRootOnce) {
  for (const std::size_t count : {kLarge, std::size_t{20} << 20}) {
    const Logs logs = observed(Backend{"gloo"}, count, broadcast_of);
    std::uint64_t bytes = 0;
    for (const SegmentMove& move : logs[1]->moves(true)) bytes += move.bytes;
    EXPECT_EQ(bytes, 4 * count);
    matched(logs);
  }
}

class ObservedServers : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Links, ObservedServers, ::testing::Values(Backend{"ps"}), name_of);

// A node hears of each segment that it has pushed, from the server that it has pushed it to.
TEST_P(ObservedServers, EachSegmentThatANodePushesIsAnswered) {
  for (const MakeRequest& make : {MakeRequest(all_reduce_of), MakeRequest(broadcast_of)}) {
    const Logs logs = observed(GetParam(), kLarge, make);
    for (std::uint32_t node = 0; node < kNodes; ++node) {
      const auto sent = logs[node]->moves(true), received = logs[node]->moves(false);
      std::map<std::uint32_t, SegmentMove> pushes;  // by segment
      for (const SegmentMove& move : sent) pushes.emplace(move.round, move);
      EXPECT_EQ(pushes.size(), sent.size());
      EXPECT_EQ(received.size(), sent.size());
      for (const SegmentMove& move : received) {
        ASSERT_TRUE(pushes.contains(move.round));
        const SegmentMove& push = pushes.at(move.round);
        EXPECT_TRUE(move.is_server && push.is_server);
        EXPECT_EQ(move.peer, push.peer);
        EXPECT_GE(move.began_us, push.ended_us);
        EXPECT_GE(move.ended_us, move.began_us);
      }
    }
  }
}

TEST_P(ObservedServers, ThePartsAndBytesAreThoseOfTheRequest) {
  const auto sum_of = [](const std::vector<SegmentMove>& moves, SegmentPart part) {
    std::uint64_t bytes = 0;
    for (const SegmentMove& move : moves) bytes += move.part == part ? move.bytes : 0;
    return bytes;
  };
  const Logs reduced = observed(GetParam(), kLarge, all_reduce_of);
  const Logs broadcast = observed(GetParam(), kLarge, broadcast_of);
  for (std::uint32_t node = 0; node < kNodes; ++node) {
    EXPECT_EQ(sum_of(reduced[node]->moves(true), SegmentPart::kSegment), 4 * kLarge);
    EXPECT_EQ(sum_of(reduced[node]->moves(false), SegmentPart::kResult), 4 * kLarge);
    const bool is_root = node == 1;
    EXPECT_EQ(sum_of(broadcast[node]->moves(true), SegmentPart::kBlock), is_root ? 4 * kLarge : 0);
    EXPECT_EQ(sum_of(broadcast[node]->moves(false), SegmentPart::kBlock), is_root ? 0 : 4 * kLarge);
  }
}

}  // namespace
}  // namespace deft::link::testing
