// Connections that bring more than any message has are ended, and no others.
#include "core/link/curve/unfinished_messages.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <string>

#include "tests/link/tcp_pair.h"

namespace deft::link {
namespace {

using testing::tcp_pair;
using testing::TcpPair;

std::uint16_t port_of_own_end(const Descriptor& socket) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  EXPECT_EQ(getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return ntohs(address.sin_port);
}

// The second end has got as much from the first one.
void bring(const TcpPair& pair, std::size_t bytes) {
  std::string text(bytes, 'x');
  ASSERT_EQ(send(pair.first.get(), text.data(), text.size(), 0), static_cast<ssize_t>(bytes));
  ASSERT_EQ(fcntl(pair.second.get(), F_SETFL, 0), 0);
  ASSERT_EQ(recv(pair.second.get(), text.data(), text.size(), MSG_WAITALL), static_cast<ssize_t>(bytes));
}

// Whether the second end has ended the connection.
bool is_ended(const TcpPair& pair) {
  char byte = 0;
  return recv(pair.first.get(), &byte, 1, MSG_DONTWAIT) == 0;
}

// How many the first look ends.
unsigned ended_by(UnfinishedMessages& unfinished, const UnfinishedMessages::Limits& limits) {
  return unfinished.look(limits, UnfinishedMessages::kLookUs);
}

TEST(UnfinishedMessages, WhoBringsTooMuchIsEnded) {
  const std::array<TcpPair, 2> pairs{tcp_pair(), tcp_pair()};
  UnfinishedMessages unfinished;
  for (const TcpPair& pair : pairs) unfinished.connected(pair.second.get(), port_of_own_end(pair.second));
  bring(pairs[0], 1000);
  bring(pairs[1], 1001);
  EXPECT_EQ(ended_by(unfinished, {.of_one = 1000, .of_all = 9000}), 1u);
  EXPECT_FALSE(is_ended(pairs[0]));
  EXPECT_TRUE(is_ended(pairs[1]));
  EXPECT_FALSE(unfinished.empty());
}

TEST(UnfinishedMessages, WhereAllBringTooMuchTogetherTheLargestIsEnded) {
  const std::array<TcpPair, 3> pairs{tcp_pair(), tcp_pair(), tcp_pair()};
  UnfinishedMessages unfinished;
  for (const TcpPair& pair : pairs) unfinished.connected(pair.second.get(), port_of_own_end(pair.second));
  for (std::size_t i = 0; i < pairs.size(); ++i) bring(pairs[i], 500 + i);
  EXPECT_EQ(ended_by(unfinished, {.of_one = 1000, .of_all = 1400}), 1u);
  EXPECT_TRUE(is_ended(pairs[2]) && !is_ended(pairs[1]) && !is_ended(pairs[0]));
}

TEST(UnfinishedMessages, StrangersHaveALimitOfTheirOwnAtEveryLook) {
  const std::array<TcpPair, 3> pairs{tcp_pair(), tcp_pair(), tcp_pair()};
  UnfinishedMessages unfinished;
  for (const TcpPair& pair : pairs) unfinished.connected(pair.second.get(), port_of_own_end(pair.second));
  for (std::size_t i = 0; i < pairs.size(); ++i) bring(pairs[i], 500 + i);
  constexpr UnfinishedMessages::Limits kLimits{.of_one = 9000, .of_all = 9000, .of_strangers = 1400};
  EXPECT_EQ(unfinished.look(kLimits, UnfinishedMessages::kLookUs, true), 1u);
  EXPECT_TRUE(is_ended(pairs[2]) && !is_ended(pairs[1]) && !is_ended(pairs[0]));
  EXPECT_EQ(unfinished.bytes(), 1001u);
}

TEST(UnfinishedMessages, WhatItsOwnerHasNotReadCountsForNobody) {
  const TcpPair pair = tcp_pair();
  UnfinishedMessages unfinished;
  unfinished.connected(pair.second.get(), port_of_own_end(pair.second));
  bring(pair, 1000);
  ASSERT_EQ(send(pair.first.get(), "unread", 6, 0), 6);
  EXPECT_EQ(ended_by(unfinished, {.of_one = 1000, .of_all = 1000}), 0u);
  EXPECT_EQ(unfinished.bytes(), 1000u);
}

TEST(UnfinishedMessages, AThreadThatHadNoTimeTakesWhatWaitsBeforeItEndsAnybody) {
  constexpr UnfinishedMessages::Limits kLimits{.of_one = 1000, .of_all = 1000};
  const TcpPair pair = tcp_pair();
  UnfinishedMessages unfinished;
  unfinished.connected(pair.second.get(), port_of_own_end(pair.second));
  TimeUs now_us = 1'000'000'000;
  for (int i = 0; i < 2; ++i) EXPECT_EQ(unfinished.look(kLimits, now_us += UnfinishedMessages::kLookUs), 0u);
  bring(pair, 1001);
  EXPECT_EQ(unfinished.look(kLimits, now_us += UnfinishedMessages::kLookUs - 1), 0u) << "no look is due";
  EXPECT_EQ(unfinished.look(kLimits, now_us += 5 * UnfinishedMessages::kLookUs), 0u) << "it had no time";
  EXPECT_EQ(unfinished.look(kLimits, now_us += 5 * UnfinishedMessages::kLookUs), 1u) << "it skips one look";
  EXPECT_TRUE(is_ended(pair));
}

TEST(UnfinishedMessages, WhileWholeMessagesWaitSomeLooksAreSkippedAndNotAll) {
  constexpr UnfinishedMessages::Limits kLimits{.of_one = 1000, .of_all = 1000};
  const TcpPair pair = tcp_pair();
  UnfinishedMessages unfinished;
  unfinished.connected(pair.second.get(), port_of_own_end(pair.second));
  bring(pair, 1001);
  TimeUs now_us = 0;
  for (unsigned i = 0; i < UnfinishedMessages::kMostSkipped; ++i)
    EXPECT_EQ(unfinished.look(kLimits, now_us += UnfinishedMessages::kLookUs, true), 0u) << i;
  EXPECT_EQ(unfinished.look(kLimits, now_us += UnfinishedMessages::kLookUs, true), 1u);
}

TEST(UnfinishedMessages, OtherConnectionsAreLeftAlone) {
  TcpPair pair = tcp_pair(), other = tcp_pair();
  UnfinishedMessages unfinished;
  const std::uint16_t port = port_of_own_end(pair.second);
  unfinished.connected(other.second.get(), port);
  EXPECT_TRUE(unfinished.empty()) << "it is none of this port";
  unfinished.connected(pair.second.get(), port);
  const int number = pair.second.get();
  pair.second.reset();
  ASSERT_EQ(dup2(other.second.get(), number), number);
  bring(other, 1000);
  EXPECT_EQ(ended_by(unfinished, {.of_one = 10, .of_all = 10}), 0u) << "its number is another's now";
  EXPECT_TRUE(unfinished.empty());
  EXPECT_FALSE(is_ended(other));
  close(number);
}

}  // namespace
}  // namespace deft::link
