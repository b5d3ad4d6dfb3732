// Who goes first on a ps link, without a network: the sender's pushes, the server's answers, and which operations end.
#include "core/link/ps/priority.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <deque>

#include "core/link/ps/server_load.h"

namespace deft::link::ps_backend {
namespace {

Share share_of(std::uint32_t priority, std::size_t segments) {
  Share share{.priority = priority};
  for (std::uint32_t i = 0; i < segments; ++i) share.segments.push_back(i);
  return share;
}

std::size_t on_the_way(const std::vector<Share>& shares) {
  std::size_t pushes = 0;
  for (const Share& share : shares) pushes += share.unanswered();
  return pushes;
}

TEST(ServerLoad, CountsTheTimeInWhichTheServerOwesResults) {
  ServerLoad load;
  EXPECT_EQ(load.owed_us(500), 0);
  load.pushed(100);
  load.pushed(150);
  load.answered(1000, 180);
  EXPECT_EQ(load.owed_us(200), 100) << "it still owes one";
  load.answered(500, 300);
  EXPECT_EQ(load.owed_us(1000), 200) << "then it owed nothing";
  load.pushed(1000);
  EXPECT_EQ(load.owed_us(1050), 250);
  EXPECT_EQ(load.bytes(), 1500U);
}

TEST(NextToPush, AnUrgentOperationPassesWhatWasNotPushedYet) {
  std::vector<Share> shares = {share_of(9, 20)};
  for (std::size_t i = 0; i < kWindow; ++i) {
    ASSERT_EQ(next_to_push(shares), 0U);
    ++shares[0].pushed;
  }
  EXPECT_EQ(next_to_push(shares), std::nullopt);
  shares.push_back(share_of(1, 2));
  EXPECT_EQ(next_to_push(shares), std::nullopt);
  ++shares[0].answered;
  EXPECT_EQ(next_to_push(shares), 1U);
}

TEST(NextToPush, TheOldestMovesOnBesideAnUrgentOneThatFillsTheWindow) {
  std::vector<Share> shares = {share_of(9, 20), share_of(1, 20)};
  shares[1].pushed = kWindow;
  EXPECT_EQ(next_to_push(shares), 0U);
  ++shares[0].pushed;
  EXPECT_EQ(next_to_push(shares), 0U);
  ++shares[0].pushed;
  EXPECT_EQ(next_to_push(shares), std::nullopt);
}

// Whatever comes when: what is pushed is the most urgent of what is left, unless it is the oldest's small share.
RC_GTEST_PROP(NextToPush, TakesTheMostUrgentOfEqualsTheOldestAndLosesNothing, ()) {
  std::vector<Share> shares;
  for (const auto priority : *rc::gen::container<std::vector<std::uint32_t>>(4, rc::gen::inRange(0U, 3U)))
    shares.push_back(share_of(priority, *rc::gen::inRange<std::size_t>(0, 30)));
  const auto left = [&](const Share& share) { return share.pushed < share.segments.size(); };
  while (!std::ranges::all_of(shares, &Share::done)) {
    const auto next = next_to_push(shares);
    if (next) {
      RC_ASSERT(left(shares[*next]));
      const bool oldest = std::all_of(shares.begin(), shares.begin() + static_cast<std::ptrdiff_t>(*next),
                                      [](const Share& share) { return share.done(); });
      for (std::size_t other = 0; other < shares.size(); ++other) {
        if (!left(shares[other]) || on_the_way(shares) >= kWindow) continue;
        RC_ASSERT(shares[*next].priority < shares[other].priority ||
                  (shares[*next].priority == shares[other].priority && *next <= other));
      }
      RC_ASSERT(on_the_way(shares) < kWindow || (oldest && shares[*next].unanswered() < 2));
      ++shares[*next].pushed;
    }
    std::vector<std::size_t> unanswered;
    for (std::size_t i = 0; i < shares.size(); ++i)
      if (shares[i].unanswered() > 0) unanswered.push_back(i);
    RC_ASSERT(next || !unanswered.empty());
    if (!unanswered.empty() && (!next || *rc::gen::inRange(0, 3) == 0))
      ++shares[unanswered[*rc::gen::inRange<std::size_t>(0, unanswered.size())]].answered;
  }
  for (const Share& share : shares) RC_ASSERT(share.pushed == share.segments.size());
}

// A node of a job on one server.
struct Node {
  std::deque<std::size_t> under_way;  // rounds, oldest first
  std::vector<Share> shares;          // of these
  std::size_t started = 0;
  std::size_t depth = 1;  // how many it ever has under way: the other nodes cannot know
};

// Two nodes start the same operations in the same order, each when it likes; a segment is answered when both have pushed it.
RC_GTEST_PROP(NextToPush, NoUrgencyMakesNodesWaitForEachOther, ()) {
  const auto priorities = *rc::gen::container<std::vector<std::uint32_t>>(8, rc::gen::inRange(0U, 4U));
  const auto sizes = *rc::gen::container<std::vector<std::size_t>>(8, rc::gen::inRange<std::size_t>(1, 25));
  std::array<Node, 2> nodes;
  std::array<std::vector<std::size_t>, 2> pushed = {std::vector<std::size_t>(8), std::vector<std::size_t>(8)};
  for (Node& node : nodes) node.depth = *rc::gen::inRange<std::size_t>(1, 5);
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t n = 0; n < 2; ++n) {
      Node& node = nodes[n];
      if (node.started < 8 && node.under_way.size() < node.depth) {
        node.shares.push_back(share_of(priorities[node.started], sizes[node.started]));
        node.under_way.push_back(node.started++);
        moved = true;
      }
      while (const auto next = next_to_push(node.shares)) {
        ++node.shares[*next].pushed;
        ++pushed[n][node.under_way[*next]];
        moved = true;
      }
    }
    for (Node& node : nodes) {
      for (std::size_t i = node.shares.size(); i-- > 0;) {
        Share& share = node.shares[i];
        const std::size_t round = node.under_way[i];
        const std::size_t answered = std::min(pushed[0][round], pushed[1][round]);
        moved = moved || answered > share.answered;
        share.answered = answered;
        if (!share.done()) continue;
        node.shares.erase(node.shares.begin() + static_cast<std::ptrdiff_t>(i));
        node.under_way.erase(node.under_way.begin() + static_cast<std::ptrdiff_t>(i));
        moved = true;
      }
    }
  }
  for (const Node& node : nodes) RC_ASSERT(node.started == 8U && node.under_way.empty());
}

TEST(NextToFinish, OnlyMoreUrgentOnesEndBeforeOlderOnes) {
  const auto next = [](const std::vector<Ending>& rounds) { return next_to_finish(rounds, rounds.size() - 1); };
  EXPECT_EQ(next({{5, false}, {5, true}}), std::nullopt);
  EXPECT_EQ(next({{5, false}, {6, true}}), std::nullopt);
  EXPECT_EQ(next({{5, false}, {4, true}}), 1U);
  EXPECT_EQ(next({{5, false}, {5, true}, {4, true}}), 2U);
  EXPECT_EQ(next({{5, false}, {3, false}, {4, true}}), std::nullopt);
  EXPECT_EQ(next({{5, true}, {4, true}}), 0U);
}

TEST(NextToFinish, TheOldestIsNotOvertakenForEver) {
  const std::vector<Ending> rounds = {{5, false}, {4, true}};
  EXPECT_EQ(next_to_finish(rounds, kOvertakes), 1U);
  EXPECT_EQ(next_to_finish(rounds, kOvertakes + 1), std::nullopt);
}

RC_GTEST_PROP(AnswerQueue, GivesTheMostUrgentOfEqualsTheFirstAndLosesNothing, ()) {
  AnswerQueue outbox;
  std::vector<PsHeader> waiting;
  std::uint64_t added = 0, sent = 0, taken = 0;
  const auto add = [&] {
    PsHeader header;
    header.round = added++;
    header.priority = *rc::gen::inRange(0U, 4U);
    outbox.add(header, zmq::message_t(header.round));
    waiting.push_back(header);
  };
  const auto give = [&] {
    const auto answer = outbox.next();
    RC_ASSERT(answer.has_value() == (!waiting.empty() && sent - taken < kAnswersAhead));
    if (!answer) return;
    const auto first = std::ranges::min_element(waiting, {}, &PsHeader::priority);  // the first of equals
    RC_ASSERT(answer->header.round == first->round);
    RC_ASSERT(answer->payload.size() == first->round);
    waiting.erase(first);
    ++sent;
  };
  for (const int what : *rc::gen::container<std::vector<int>>(60, rc::gen::inRange(0, 3))) {
    if (what == 0) add();
    if (what == 1) give();
    if (what == 2) {
      taken = *rc::gen::inRange(taken, sent + 1);
      RC_ASSERT(outbox.taken(taken));
    }
  }
  for (std::size_t left = waiting.size(); left > 0; --left) RC_ASSERT(outbox.next_of_all().has_value());
  RC_ASSERT(!outbox.next_of_all());
}

TEST(AnswerQueue, TakesNoWordOfAnswersThatItDidNotGive) {
  AnswerQueue outbox;
  EXPECT_FALSE(outbox.taken(1));
  outbox.add({}, {});
  EXPECT_FALSE(outbox.taken(1));
  ASSERT_TRUE(outbox.next());
  EXPECT_TRUE(outbox.taken(1));
  EXPECT_FALSE(outbox.taken(0));
}

}  // namespace
}  // namespace deft::link::ps_backend
