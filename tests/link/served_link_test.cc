// A parameter server's channel without a network: when it sums, in which order it answers, and what it refuses.
#include "core/link/ps/served_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <tuple>

#include "core/compress/registry.h"
#include "core/model/dtype.h"

namespace deft::link::ps_backend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Told {
  std::uint32_t node;
  PsHeader header;
  std::string payload;
};

class ServedLinkTest : public ::testing::Test {
 protected:
  void begin(std::uint32_t nodes) {
    channel = std::make_unique<ServedLink>(nodes,
                                           [this](std::uint32_t node, const PsHeader& header, zmq::message_t& payload) {
                                             told.push_back({node, header, payload.to_string()});
                                           });
    for (std::uint32_t node = 0; node < nodes; ++node) ASSERT_TRUE(channel->join(node, nodes));
    told.clear();
  }
  static PsHeader shape(std::uint64_t round, std::uint32_t segment, std::size_t bytes) {
    PsHeader header;
    header.kind = Kind::kPush;
    header.round = round;
    header.segment = segment;
    header.bytes = header.total = bytes;
    header.dtype = static_cast<std::uint8_t>(model::DType::kFloat32);
    header.op = static_cast<std::uint8_t>(model::ReduceOp::kSum);
    return header;
  }
  void push(std::uint32_t node, std::uint64_t round, std::uint32_t segment, float value) {
    channel->push(node, shape(round, segment, 4), zmq::message_t(&value, sizeof value));
  }
  static float value_of(const Told& message) {
    float value = 0;
    std::memcpy(&value, message.payload.data(), sizeof value);
    return value;
  }
  std::vector<std::string> results() {  // "node: round.segment = value"
    std::vector<std::string> lines;
    for (const Told& message : told) {
      if (message.header.kind != Kind::kResult) continue;
      lines.push_back(std::to_string(message.node) + ": " + std::to_string(message.header.round) + "." +
                      std::to_string(message.header.segment) + " = " +
                      std::to_string(static_cast<int>(value_of(message))));
    }
    told.clear();
    return lines;
  }
  std::string failure() {
    for (const Told& message : told)
      if (message.header.kind == Kind::kFailed) return message.payload;
    return {};
  }

  std::unique_ptr<ServedLink> channel;
  std::vector<Told> told;
};

TEST_F(ServedLinkTest, WelcomesAllWhenTheLastOneComes) {
  std::vector<std::pair<std::uint32_t, Kind>> said;
  ServedLink meeting(
      2, [&](std::uint32_t node, const PsHeader& header, zmq::message_t&) { said.emplace_back(node, header.kind); });
  ASSERT_TRUE(meeting.join(1, 2));
  EXPECT_THAT(said, ElementsAre(std::pair{1U, Kind::kPresent}));
  ASSERT_TRUE(meeting.join(0, 2));
  EXPECT_THAT(said, ::testing::IsSupersetOf({std::pair{0U, Kind::kWelcome}, std::pair{1U, Kind::kWelcome}}));
  EXPECT_THAT(meeting.join(0, 2).error().message(), HasSubstr("two links are node 0"));
  EXPECT_THAT(meeting.join(0, 3).error().message(), HasSubstr("one of 3, the others of 2"));
}

TEST_F(ServedLinkTest, AnswersWhenTheLastNodeHasPushedWhateverTheOrder) {
  begin(3);
  push(2, 0, 0, 4);
  push(0, 0, 0, 1);
  EXPECT_THAT(results(), IsEmpty());
  push(1, 0, 0, 2);
  EXPECT_THAT(results(), ElementsAre("0: 0.0 = 7", "1: 0.0 = 7", "2: 0.0 = 7"));
}

// 1e8 + 1 + -1e8 is 0 in the order of the nodes, and 1 if node 2 is added before node 1.
TEST_F(ServedLinkTest, SumsInTheOrderOfTheNodesWhoeverIsFirst) {
  for (const auto& order : {std::vector{0, 1, 2}, {2, 1, 0}, {1, 2, 0}, {2, 0, 1}}) {
    begin(3);
    const float values[] = {1e8F, 1.F, -1e8F};
    for (const int node : order) push(static_cast<std::uint32_t>(node), 0, 0, values[node]);
    ASSERT_EQ(told.size(), 3U);
    EXPECT_EQ(value_of(told.front()), (1e8F + 1.F) - 1e8F);
  }
}

TEST_F(ServedLinkTest, AFastNodeMayBeAheadAndEveryRoundKeepsItsOwnSum) {
  begin(2);
  for (std::uint64_t round = 0; round < 3; ++round) {
    for (std::uint32_t segment = 0; segment < 2; ++segment)
      push(0, round, segment, static_cast<float>(10 * round + segment));
  }
  EXPECT_THAT(results(), IsEmpty());
  push(1, 0, 0, 100);
  EXPECT_THAT(results(), ElementsAre("0: 0.0 = 100", "1: 0.0 = 100"));
  push(1, 0, 1, 100);
  push(1, 1, 0, 100);
  EXPECT_THAT(results(), ElementsAre("0: 0.1 = 101", "1: 0.1 = 101", "0: 1.0 = 110", "1: 1.0 = 110"));
}

// Node 0 takes nothing for a while, node 1 takes everything at once.
TEST_F(ServedLinkTest, OfTheResultsThatWaitForALinkTheMostUrgentOneLeavesFirst) {
  begin(2);
  const auto push_urgent = [&](std::uint32_t node, std::uint64_t round, std::uint32_t priority, std::uint64_t taken) {
    PsHeader header = shape(round, 0, 4);
    header.priority = priority;
    header.taken = taken;
    const float value = 1;
    channel->push(node, header, zmq::message_t(&value, sizeof value));
  };
  for (std::uint64_t round = 0; round < kAnswersAhead; ++round) {
    push_urgent(0, round, 5, 0);
    push_urgent(1, round, 5, round);
  }
  EXPECT_EQ(results().size(), 2 * kAnswersAhead);
  const auto to = [](int node, std::uint64_t round) {
    return std::to_string(node) + ": " + std::to_string(round) + ".0 = 2";
  };
  const std::uint64_t next = kAnswersAhead;
  for (const std::uint64_t round : {next, next + 1, next + 2}) {
    push_urgent(0, round, round == next + 1 ? 1 : 5, 0);
    push_urgent(1, round, round == next + 1 ? 1 : 5, round);
  }
  EXPECT_THAT(results(), ElementsAre(to(1, next), to(1, next + 1), to(1, next + 2)));
  channel->taken(0, 1);
  EXPECT_THAT(results(), ElementsAre(to(0, next + 1)));
  channel->taken(0, 3);
  EXPECT_THAT(results(), ElementsAre(to(0, next), to(0, next + 2)));
}

TEST_F(ServedLinkTest, WhatWasFinishedBeforeANodeLeftStillArrives) {
  begin(2);
  for (std::uint64_t round = 0; round < kAnswersAhead + 2; ++round) {
    push(0, round, 0, 1);
    push(1, round, 0, 1);
  }
  told.clear();
  channel->leave(1);
  ASSERT_EQ(told.size(), 3U);
  EXPECT_EQ(told[1].header.round, kAnswersAhead + 1);
  EXPECT_EQ(told[2].header.kind, Kind::kFailed);
}

TEST_F(ServedLinkTest, ALinkThatTakesWhatItWasNotGivenIsNamed) {
  begin(2);
  channel->taken(1, 1);
  EXPECT_THAT(failure(), HasSubstr("node 1 took results that the parameter server did not give"));
}

TEST_F(ServedLinkTest, RoundsComeInAnyOrderButNotFromLongAgo) {
  begin(2);
  push(0, 9, 0, 1);
  push(0, 7, 0, 1);
  push(0, 9, 1, 1);
  EXPECT_EQ(failure(), "");
  push(0, 7 + kRoundsApart, 0, 1);
  push(0, 7, 1, 1);
  EXPECT_THAT(failure(), HasSubstr("node 0 pushed of a round long past"));
  begin(2);
  push(0, ~std::uint64_t{0}, 0, 1);
  push(0, 0, 0, 1);
  EXPECT_THAT(failure(), HasSubstr("of a round long past"));
}

TEST_F(ServedLinkTest, ALatePushOfAFinishedRoundIsRefused) {
  begin(2);
  push(0, 5, 0, 1);
  push(1, 5, 0, 1);
  EXPECT_EQ(results().size(), 2U);
  push(1, 5, 0, 1);
  EXPECT_THAT(failure(), HasSubstr("node 1 pushed a second time"));
}

TEST_F(ServedLinkTest, AnOwnersBytesGoToAllOthersOnceAllAreReady) {
  begin(3);
  PsHeader header = shape(0, 0, 4);
  header.owner = 1;
  const float value = 42;
  channel->push(0, header, {});
  channel->push(1, header, zmq::message_t(&value, sizeof value));
  EXPECT_THAT(told, IsEmpty());
  channel->push(2, header, {});
  ASSERT_EQ(told.size(), 3U);
  EXPECT_EQ(value_of(told[0]), 42);
  EXPECT_EQ(told[1].payload, "");
  EXPECT_EQ(value_of(told[2]), 42);
}

TEST_F(ServedLinkTest, WhoLeavesFailsTheOthersOnceAndByName) {
  begin(3);
  push(0, 0, 0, 1);
  channel->leave(1);
  ASSERT_EQ(told.size(), 2U);
  EXPECT_THAT(told[0].payload, HasSubstr("node 1 has closed its link or died"));
  channel->leave(2);
  EXPECT_EQ(told.size(), 2U);
  EXPECT_FALSE(channel->empty());
  channel->leave(0);
  EXPECT_TRUE(channel->empty());
}

TEST_F(ServedLinkTest, PushesThatCannotBeAreRefusedAndNamed) {
  const auto refusal = [&](const PsHeader& header, std::size_t payload) {
    begin(2);
    channel->push(1, header, zmq::message_t(payload));
    return failure();
  };
  EXPECT_THAT(refusal(shape(0, 0, 8), 4), HasSubstr("node 1 pushed 4 bytes for 8 bytes of 8 of float32"));
  EXPECT_THAT(refusal(shape(0, 0, 6), 6), HasSubstr("of an unknown type or operation"));
  EXPECT_THAT(refusal(shape(0, 0, 0), 0), HasSubstr("0 bytes at once"));
  EXPECT_THAT(refusal(shape(0, 0, kMaxSegmentBytes + 4), kMaxSegmentBytes + 4), HasSubstr("bytes at once"));
  PsHeader header = shape(0, 0, 4);
  header.owner = 2;
  EXPECT_THAT(refusal(header, 0), HasSubstr("for a node that does not exist"));
  header = shape(0, 0, 4);
  header.dtype = 77;
  EXPECT_THAT(refusal(header, 4), HasSubstr("of an unknown type or operation"));
}

class EncodedPushTest : public ServedLinkTest {
 protected:
  static std::vector<std::byte> recipe(const std::string& codec, std::uint32_t blocks = 1) {
    return compress::SumRecipe{.codec = codec, .job = 1, .generation = 2, .runs = {{256, blocks}}}.bytes();
  }
  static std::vector<std::byte> code(const std::string& codec, float value) {
    const auto made = compress::make_codec(codec).value();
    const std::vector<float> values(256, value);
    std::vector<std::byte> bytes(made->encoded_bytes(values.size()));
    EXPECT_TRUE(made->encode({1, 2, 256}, values, bytes));
    return bytes;
  }
  static PsHeader encoded_shape(std::size_t bytes, std::uint32_t keeper, std::size_t recipe_bytes) {
    PsHeader header = shape(0, 0, bytes);
    header.dtype = static_cast<std::uint8_t>(model::DType::kUInt8);
    header.keeper = keeper;
    header.recipe_bytes = static_cast<std::uint32_t>(recipe_bytes);
    return header;
  }
  void push_code(std::uint32_t node, const std::string& codec, float value, std::uint32_t keeper) {
    push_bytes(node, code(codec, value), recipe(codec), keeper);
  }
  void push_bytes(std::uint32_t node, const std::vector<std::byte>& bytes, const std::vector<std::byte>& how,
                  std::uint32_t keeper) {
    channel->push(node, encoded_shape(bytes.size(), keeper, how.size()), zmq::message_t(bytes.data(), bytes.size()),
                  how);
  }
  static std::string text(const std::vector<std::byte>& bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
};

// 1 + 2 + 4 = 7, and these numbers are the largest of their blocks, so that int8 has them exactly.
TEST_F(EncodedPushTest, AllGetTheCodeOfTheSumAndTheKeeperGetsWhatTheOthersPushed) {
  begin(3);
  push_code(2, "int8", 4, 1);
  push_code(0, "int8", 1, 1);
  EXPECT_THAT(told, IsEmpty());
  push_code(1, "int8", 2, 1);
  ASSERT_EQ(told.size(), 3U);
  EXPECT_EQ(told[0].payload, text(code("int8", 7)));
  EXPECT_EQ(told[1].payload, text(code("int8", 1)) + text(code("int8", 4)));
  EXPECT_EQ(told[2].payload, told[0].payload);
  EXPECT_EQ(told[0].header.recipe_bytes, 0U) << "a result has no recipe";
}

TEST_F(EncodedPushTest, TheKeeperGetsTheSumWhereThatIsLess) {
  begin(6);  // five codes of 258 bytes are more than 1024
  for (std::uint32_t node = 0; node < 6; ++node) push_code(node, "int8", 1, 0);
  ASSERT_EQ(told.size(), 6U);
  ASSERT_EQ(told[0].payload.size(), 1024U);
  EXPECT_NEAR(value_of(told[0]), 6, 6.0 / 127 / 2);
  EXPECT_EQ(told[5].payload, text(code("int8", value_of(told[0]))));
}

TEST_F(EncodedPushTest, WhatEveryNodeAddsGoesToAllOthersInTheOrderOfTheNodes) {
  for (const std::uint32_t nodes : {2U, 3U}) {
    begin(nodes);
    for (std::uint32_t node = nodes; node-- > 0;) {
      EXPECT_THAT(told, IsEmpty());
      push_bytes(node, std::vector(258, static_cast<std::byte>('a' + node)), {}, kEveryNode);
    }
    ASSERT_EQ(told.size(), nodes);
    for (std::uint32_t node = 0; node < nodes; ++node) {
      std::string others;
      for (std::uint32_t other = 0; other < nodes; ++other)
        if (other != node) others += std::string(258, static_cast<char>('a' + other));
      EXPECT_EQ(told[node].node, node);
      EXPECT_EQ(told[node].payload, others);
    }
  }
}

TEST_F(EncodedPushTest, WhatEveryNodeAddsIsOfNoOwnerAndNotTooLong) {
  const auto refusal = [&](std::uint32_t nodes, std::size_t bytes, const auto& change) {
    begin(nodes);
    PsHeader header = encoded_shape(bytes, kEveryNode, 0);
    change(header);
    channel->push(1, header, zmq::message_t(bytes));
    return failure();
  };
  EXPECT_EQ(refusal(2, kMaxSegmentBytes, [](PsHeader&) {}), "");
  EXPECT_THAT(refusal(2, 258, [](PsHeader& h) { h.owner = 1; }), HasSubstr("for all to add, and that cannot be"));
  EXPECT_THAT(refusal(2, 258, [](PsHeader& h) { h.recipe_bytes = 7; }), HasSubstr("for all to add"));
  EXPECT_EQ(refusal(9, kMaxSegmentBytes, [](PsHeader&) {}), "");
  EXPECT_THAT(refusal(10, kMaxSegmentBytes, [](PsHeader&) {}), HasSubstr("for all to add"));
  begin(2);
  push_bytes(0, std::vector<std::byte>(258), {}, kEveryNode);
  push_code(1, "int8", 1, 0);
  EXPECT_THAT(failure(), HasSubstr("node 0 pushed 258 bytes of 258 for all to add where node 1 pushed"));
}

TEST_F(EncodedPushTest, VotesHaveNoKeeper) {
  begin(3);
  for (std::uint32_t node = 0; node < 3; ++node) push_code(node, "signsgd", node == 1 ? 1.F : -1.F, kNoOwner);
  ASSERT_EQ(told.size(), 3U);
  std::vector<float> votes(256);
  const std::span<const std::byte> result(reinterpret_cast<const std::byte*>(told[1].payload.data()), 36);
  ASSERT_TRUE(compress::make_codec("signsgd").value()->decode({1, 2, 256}, result, votes));
  EXPECT_THAT(votes, ::testing::Each(::testing::Lt(0)));
  begin(2);
  push_code(1, "signsgd", 1, 0);
  EXPECT_THAT(failure(), HasSubstr("node 1 pushed codes: "));
}

TEST_F(EncodedPushTest, GarbageIsRefusedAndItsNodeNamed) {
  begin(2);
  push_code(0, "int8", 1, 0);
  push_bytes(1, std::vector(258, std::byte{0xFD}), recipe("int8"), 0);
  EXPECT_THAT(failure(), HasSubstr("node 1 pushed what int8 cannot decode"));
  for (const auto& [how, bytes, words] : std::vector<std::tuple<std::vector<std::byte>, std::size_t, std::string>>{
           {recipe("int9"), 258, "int9"},
           {recipe("topk"), 258, "topk"},
           {recipe("int8", 2), 258, "does not fit 258 bytes"},
           {std::vector<std::byte>(7), 258, "too short"},
           {recipe("int2", 1800), 1800 * 68, "too many values"}}) {
    begin(2);
    push_bytes(1, std::vector<std::byte>(bytes), how, 0);
    EXPECT_THAT(failure(), HasSubstr("node 1 pushed codes: "));
    EXPECT_THAT(failure(), HasSubstr(words));
  }
}

TEST_F(EncodedPushTest, FieldsThatCannotBeAreRefused) {
  const auto refusal = [&](const auto& change) {
    begin(2);
    PsHeader header = encoded_shape(258, 0, recipe("int8").size());
    change(header);
    channel->push(1, header, zmq::message_t(258), recipe("int8"));
    return failure();
  };
  EXPECT_THAT(refusal([](PsHeader& h) { h.keeper = 2; }), HasSubstr("for a node to keep"));
  EXPECT_THAT(refusal([](PsHeader& h) { h.owner = 1; }), HasSubstr("codes that are no bytes of all nodes"));
  EXPECT_THAT(refusal([](PsHeader& h) { h.dtype = static_cast<std::uint8_t>(model::DType::kFloat32); }),
              HasSubstr("codes that are no bytes of all nodes"));
  begin(2);
  PsHeader plain = shape(0, 0, 4);
  plain.keeper = 1;
  channel->push(0, plain, zmq::message_t(4));
  EXPECT_THAT(failure(), HasSubstr("for a node to keep"));
}

TEST_F(EncodedPushTest, NodesThatEncodeDifferentlyAreBothNamed) {
  begin(2);
  push_bytes(0, code("int2", 1), recipe("int2"), 0);
  push_bytes(1, code("int2", 1), recipe("terngrad"), 0);
  EXPECT_THAT(failure(), HasSubstr("node 0 pushed 68 bytes of 68, encoded by int2"));
  EXPECT_THAT(failure(), HasSubstr("where node 1 pushed 68 bytes of 68, encoded by terngrad"));
  begin(2);
  push_code(0, "int8", 1, 0);
  push_code(1, "int8", 1, 1);
  EXPECT_THAT(failure(), HasSubstr("whose rest node 1 keeps"));
  begin(2);
  push_code(0, "int2", 1, 0);
  channel->push(1, shape(0, 0, 68), zmq::message_t(68));
  EXPECT_THAT(failure(), HasSubstr("node 1 pushed 68 bytes of 68 of float32"));
}

// The keeper named by a frame, its recipe and its codes are any bytes: a link fails or answers, and nothing else happens.
TEST_F(EncodedPushTest, AnyBytesAreTakenOrRefused) {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    begin(2);
    for (std::uint32_t node = 0; node < 2; ++node) {
      auto how = recipe(random() % 2 == 0 ? "int8" : "onebit");
      auto bytes = code("int8", 1);
      if (random() % 2 == 0) how[random() % how.size()] = static_cast<std::byte>(random());
      if (random() % 2 == 0) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
      if (random() % 4 == 0) bytes.resize(random() % 300 + 1);
      push_bytes(node, bytes, how, static_cast<std::uint32_t>(random() % 3));
    }
    ASSERT_EQ(told.size(), 2U);
  }
}

TEST_F(ServedLinkTest, ANodeThatRunsAwayIsStopped) {
  begin(2);
  for (std::uint64_t round = 0; round < 8 * kWindow; ++round) push(0, round, 0, 1);
  EXPECT_EQ(failure(), "");
  push(0, 8 * kWindow, 0, 1);
  EXPECT_THAT(failure(), HasSubstr("too far ahead of the others"));
}

TEST_F(ServedLinkTest, NodesThatTakeNoResultsAreStopped) {
  begin(2);
  std::uint64_t round = 0;
  for (; failure().empty() && round < 1000; ++round)
    for (const std::uint32_t node : {0U, 1U}) push(node, round, 0, 1);
  EXPECT_LT(round, 8 * kWindow);
  EXPECT_THAT(failure(), HasSubstr("takes no results"));
}

}  // namespace
}  // namespace deft::link::ps_backend
