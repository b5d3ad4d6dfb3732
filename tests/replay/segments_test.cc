#include "core/replay/segments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/replay/job_timeline.h"
#include "core/replay/job_trace.h"

namespace deft::replay {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using trace::NodeTrace;
using trace::SegmentTrace;

constexpr TimeUs kAhead = 70'000'000;  // node 1's clock is so far ahead of the leader's
constexpr std::uint8_t kSegment = 1, kResult = 2;

// Of node 0 or 1; the peer is the other one.
struct Nodes {
  Nodes() {
    for (const std::uint32_t number : {0U, 1U}) {
      NodeTrace& node = number == 0 ? leader : other;
      node.header = {.job = "j", .node = number, .nodes = 2, .host = "h", .links = {"gloo:eth0"}};
      node.complete = true;
    }
  }
  // Node `from` sent data that the other one had at `received_us`, for which that had waited since `waited_us`. By the leader's clock.
  void send(std::uint32_t from, TimeUs sent_us, TimeUs waited_us, TimeUs received_us, SegmentTrace segment) {
    segment.peer = 1 - from, segment.is_sent = 1;
    add(from, sent_us, sent_us + 5, segment);
    segment.peer = from, segment.is_sent = 0;
    add(1 - from, waited_us, received_us, segment);
  }
  template <typename Payload>
  void add(std::uint32_t node, TimeUs begin_us, TimeUs end_us, const Payload& payload) {
    const TimeUs ahead_us = node == 1 ? kAhead : 0;
    (node == 0 ? leader : other).records.emplace_back(begin_us + ahead_us, end_us + ahead_us, payload);
  }
  // Both nodes push a segment to server 5 of the link, by the leader's clock, and have its answer at `answered_us`.
  void push(std::array<TimeUs, 2> pushed_us, TimeUs answered_us, SegmentTrace segment) {
    segment.peer = 5, segment.is_server = 1;
    for (const std::uint32_t node : {0U, 1U}) {
      segment.is_sent = 1, segment.part = kSegment;
      add(node, pushed_us[node], pushed_us[node] + 5, segment);
      segment.is_sent = 0, segment.part = kResult;
      add(node, pushed_us[node] + 5, answered_us, segment);
    }
  }
  // The other node asked the leader's clock.
  void ask(TimeUs asked_us, TimeUs leader_us, TimeUs answered_us) {
    add(1, asked_us, answered_us, trace::ClockTrace{leader_us});
  }
  [[nodiscard]] JobTrace joined() const {
    auto job = join_nodes({leader, other}, {"a", "b"});
    EXPECT_TRUE(job) << job.error().message();
    return job ? *std::move(job) : JobTrace{};
  }

  NodeTrace leader, other;
};

SegmentTrace segment_of(std::uint64_t launch, std::uint32_t round, std::uint8_t part = kSegment) {
  return {.number = launch, .bytes = 4096, .round = round, .part = part};
}

TEST(Segments, AReceiveHasTheSendOfTheSameDataAndNoOther) {
  Nodes nodes;
  nodes.send(0, 1000, 900, 1100, segment_of(4, 0));
  nodes.send(0, 2000, 900, 2100, segment_of(4, 1));
  SentSegments sent;
  sent.add(nodes.leader);
  sent.index();
  SegmentTrace received = segment_of(4, 1);
  received.peer = 0;
  ASSERT_NE(sent.that_fed(1, received), nullptr);
  EXPECT_EQ(sent.that_fed(1, received)->begin_us, 2000);
  EXPECT_EQ(sent.that_fed(2, received), nullptr) << "it went to node 1";
  for (auto change : {+[](SegmentTrace& s) { s.number = 5; }, +[](SegmentTrace& s) { s.round = 2; },
                      +[](SegmentTrace& s) { s.part = kResult; }, +[](SegmentTrace& s) { s.request = 1; },
                      +[](SegmentTrace& s) { s.peer = 1; }, +[](SegmentTrace& s) { s.is_server = 1, s.peer = 1; }}) {
    SegmentTrace another = received;
    change(another);
    EXPECT_EQ(sent.that_fed(1, another), nullptr);
  }
}

// The answer took 40 ms, so the clocks may differ by 20 ms either way. Data took 100 us in each direction.
TEST(Segments, DataTightensWhatAFewSlowAnswersTell) {
  Nodes nodes;
  nodes.ask(1'000'000, 1'035'000, 1'040'000);
  const auto alone = nodes.joined();
  nodes.send(0, 1'010'000, 1'000'000, 1'010'100, segment_of(0, 0));
  nodes.send(1, 1'012'000, 1'000'000, 1'012'100, segment_of(0, 0, kResult));
  const auto job = nodes.joined();
  ASSERT_EQ(job.nodes.size(), 2U);
  EXPECT_GT(alone.nodes[1].clock.error_us, 19'000);
  EXPECT_GT(std::abs(alone.nodes[1].clock.to_leader(1'020'000 + kAhead) - 1'020'000), 10'000);
  EXPECT_LT(job.nodes[1].clock.error_us, 150);
  EXPECT_EQ(job.nodes[1].clock.bounds, 2U);
  EXPECT_LT(std::abs(job.nodes[1].clock.to_leader(1'020'000 + kAhead) - 1'020'000), 150);
}

TEST(Segments, DataThatContradictsTheAnswersDoesNotCount) {
  Nodes nodes;
  nodes.ask(1'000'000, 1'000'100, 1'000'200);
  for (const std::uint32_t node : {0U, 1U}) nodes.add(node, 1'000'000, 1'020'000, trace::StageTrace{.stage = 1});
  const auto alone = nodes.joined();
  nodes.send(0, 1'010'000, 1'000'000, 1'005'000, segment_of(0, 0));
  const auto job = nodes.joined();
  ASSERT_EQ(job.nodes.size(), 2U);
  EXPECT_EQ(job.nodes[1].clock.bounds, 0U);
  EXPECT_EQ(job.nodes[1].clock.to_leader(1'020'000 + kAhead), alone.nodes[1].clock.to_leader(1'020'000 + kAhead));
}

// No server has answered before it had all pushes.
TEST(Segments, WhatGoesOverServersBoundsClocksToo) {
  Nodes nodes;
  nodes.push({1'010'000, 1'000'000}, 1'010'100, segment_of(0, 0));
  nodes.push({1'020'000, 1'030'000}, 1'030'100, segment_of(0, 1));
  std::set<std::tuple<TimeUs, TimeUs, bool>> bounds;
  for (const auto& bound : clock_bounds(nodes.other, nodes.leader))
    bounds.insert({bound.node_us - kAhead, bound.leader_us, bound.is_least});
  EXPECT_THAT(bounds, ElementsAre(std::tuple(1'000'000, 1'010'100, false), std::tuple(1'010'100, 1'010'000, true),
                                  std::tuple(1'030'000, 1'030'100, false), std::tuple(1'030'100, 1'020'000, true)));
}

TEST(Segments, APushThatBringsNothingBoundsNothing) {
  Nodes nodes;
  SegmentTrace asked = segment_of(0, 0);
  asked.bytes = 0;
  nodes.push({1'010'000, 1'000'000}, 1'010'100, asked);
  EXPECT_THAT(clock_bounds(nodes.other, nodes.leader), IsEmpty());
}

std::map<std::string, TrackSlice> slices_by_track(const JobTimeline& timeline) {
  std::map<std::string, TrackSlice> slices;
  for (const auto& slice : timeline.slices) {
    const Track& track = timeline.tracks[slice.track];
    if (slice.category == "send" || slice.category == "receive")
      slices[std::to_string(track.node) + " " + track.name] = slice;
  }
  return slices;
}

TEST(Segments, AReceiveIsDrawnFromItsSendOnAndAnArrowJoinsThem) {
  Nodes nodes;
  for (const TimeUs at_us : {1'000'000, 1'100'000}) nodes.ask(at_us, at_us + 50, at_us + 100);
  nodes.send(0, 1'010'000, 1'000'000, 1'010'300, segment_of(7, 3));
  nodes.send(1, 1'020'000, 1'020'100, 1'020'300, segment_of(7, 2, kResult));
  const auto job = nodes.joined();
  EXPECT_THAT(slices_by_track(make_timeline(job)), IsEmpty()) << "only on request";
  const auto slices = slices_by_track(make_timeline(job, Detail::kSegments));
  ASSERT_EQ(slices.size(), 4U);
  const auto &sent = slices.at("0 gloo:eth0 sends"), &received = slices.at("1 gloo:eth0 receives");
  EXPECT_EQ(sent.name, "segment 3 to node 1");
  EXPECT_EQ(received.name, "segment 3 of node 0");
  EXPECT_EQ(received.begin_us, sent.begin_us) << "node 1 has waited for long";
  EXPECT_NEAR(static_cast<double>(received.end_us - received.begin_us), 300, 60);
  EXPECT_EQ(sent.flows, received.flows);
  ASSERT_THAT(sent.flows, SizeIs(1));
  EXPECT_GE(sent.flows.front(), kFirstSegmentFlow);
  const auto &back = slices.at("1 gloo:eth0 sends"), &result = slices.at("0 gloo:eth0 receives");
  EXPECT_EQ(result.name, "result 2 of node 1");
  EXPECT_NEAR(static_cast<double>(result.begin_us - back.begin_us), 100, 60) << "node 0 began to wait later";
  EXPECT_EQ(back.flows, result.flows);
  EXPECT_NE(back.flows, sent.flows);
}

TEST(Segments, TheLastPushFedTheAnswersOfAServer) {
  Nodes nodes;
  for (const TimeUs at_us : {1'000'000, 1'100'000}) nodes.ask(at_us, at_us + 50, at_us + 100);
  nodes.push({1'010'000, 1'040'000}, 1'040'500, segment_of(7, 3));
  const auto slices = slices_by_track(make_timeline(nodes.joined(), Detail::kSegments));
  ASSERT_EQ(slices.size(), 4U);
  const auto &early = slices.at("0 gloo:eth0 sends"), &last = slices.at("1 gloo:eth0 sends");
  const auto &first = slices.at("0 gloo:eth0 receives"), &second = slices.at("1 gloo:eth0 receives");
  EXPECT_THAT(early.flows, IsEmpty());
  ASSERT_THAT(last.flows, SizeIs(2));
  EXPECT_THAT(first.flows, ElementsAre(last.flows[0]));
  EXPECT_THAT(second.flows, ElementsAre(last.flows[1]));
  EXPECT_NE(last.flows[0], last.flows[1]);
  EXPECT_EQ(first.begin_us, last.begin_us) << "node 0 has waited for node 1's push";
  EXPECT_EQ(first.name, "result 3 of server 5");
}

TEST(Segments, WithoutTheOtherSideThereIsNoArrow) {
  Nodes nodes;
  SegmentTrace over_server = segment_of(0, 5);
  over_server.is_server = 1, over_server.is_sent = 1, over_server.peer = 2;
  nodes.add(0, 1'000'000, 1'000'010, over_server);
  SegmentTrace received = segment_of(0, 6);
  received.peer = 9;
  nodes.add(0, 1'000'000, 1'000'010, received);
  const auto job = join_nodes({nodes.leader}, {"a"});
  ASSERT_TRUE(job);
  const auto slices = slices_by_track(make_timeline(*job, Detail::kSegments));
  ASSERT_EQ(slices.size(), 2U);
  EXPECT_EQ(slices.at("0 gloo:eth0 sends").name, "segment 5 to server 2");
  for (const auto& [track, slice] : slices) EXPECT_THAT(slice.flows, IsEmpty()) << track;
}

}  // namespace
}  // namespace deft::replay
