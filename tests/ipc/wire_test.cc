#include "core/ipc/wire.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>

namespace deft::ipc {
namespace {

std::vector<std::byte> hello(const std::string& job = "job") {
  Hello message;
  message.rank = 3;
  message.world = 4;
  return encode(message, MessageKind::kHello, {job, "host:1", "policy=fifo\n", "0.1.0"});
}

template <typename Change>
std::vector<std::byte> changed(std::vector<std::byte> bytes, Change change) {
  MessageHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  change(header);
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

TEST(Wire, WhatWasEncodedIsDecoded) {
  const auto bytes = hello();
  auto message = decode<Hello>(bytes, MessageKind::kHello, 4);
  ASSERT_TRUE(message) << message.error().message();
  EXPECT_EQ(message->fixed.rank, 3u);
  EXPECT_EQ(message->texts, (std::vector<std::string>{"job", "host:1", "policy=fifo\n", "0.1.0"}));
  EXPECT_TRUE(message->tail.empty());
}

TEST(Wire, EmptyTextsAndTailsSurvive) {
  const std::array<std::byte, 3> tail{std::byte{1}, std::byte{2}, std::byte{3}};
  const std::string_view texts[] = {"", "x", ""};
  const auto bytes = encode(ErrorMessage{}, MessageKind::kError, texts, tail);
  auto message = decode<ErrorMessage>(bytes, MessageKind::kError, 3);
  ASSERT_TRUE(message);
  EXPECT_EQ(message->texts, (std::vector<std::string>{"", "x", ""}));
  EXPECT_TRUE(std::equal(tail.begin(), tail.end(), message->tail.begin(), message->tail.end()));
}

TEST(Wire, AnotherVersionIsAMismatchThatNamesBoth) {
  const auto bytes = changed(hello(), [](MessageHeader& header) { header.version = 77; });
  auto message = decode<Hello>(bytes, MessageKind::kHello, 4);
  ASSERT_FALSE(message);
  EXPECT_EQ(message.error().kind, ErrorKind::kMismatch);
  EXPECT_NE(message.error().what.find("77"), std::string::npos);
  EXPECT_NE(message.error().what.find(std::to_string(kProtocolVersion)), std::string::npos);
}

TEST(Wire, MaliciousHeadersAreViolations) {
  const auto refused = [](const std::vector<std::byte>& bytes) {
    auto message = decode<Hello>(bytes, MessageKind::kHello, 4);
    return !message && message.error().kind == ErrorKind::kViolation;
  };
  EXPECT_TRUE(refused(changed(hello(), [](MessageHeader& header) { header.magic = 1; })));
  EXPECT_TRUE(refused(changed(hello(), [](MessageHeader& header) { header.bytes -= 1; })));
  EXPECT_TRUE(refused(changed(hello(), [](MessageHeader& header) { header.bytes = ~0u; })));
  EXPECT_TRUE(refused(changed(hello(), [](MessageHeader& header) { header.kind = MessageKind::kDeclare; })));
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused(std::vector<std::byte>(sizeof(MessageHeader))));
}

TEST(Wire, MaliciousStatisticsAreNamed) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto wrong = [](auto change) {
    Statistics statistics;
    change(statistics);
    const char* value = impossible_value(statistics);
    return std::string(value == nullptr ? "" : value);
  };
  EXPECT_EQ(wrong([](auto&) {}), "");
  EXPECT_EQ(wrong([](auto& s) { s.loss = -3; }), "");
  EXPECT_EQ(wrong([](auto& s) { s.local_norm = kNan; }), "the squared norm of the own gradient");
  EXPECT_EQ(wrong([](auto& s) { s.average_norm = -1; }), "the squared norm of the average");
  EXPECT_EQ(wrong([](auto& s) { s.learning_rate = kInfinity; }), "the learning rate");
  EXPECT_EQ(wrong([](auto& s) { s.loss = -kInfinity; }), "") << "a training may fail";
  EXPECT_EQ(wrong([](auto& s) { s.target = -1; }), "the target of the loss");
}

TEST(Wire, MaliciousTextWithoutAnEnd) {
  auto bytes = hello();
  bytes.back() = std::byte{'x'};
  EXPECT_FALSE(decode<Hello>(bytes, MessageKind::kHello, 4));
}

TEST(Wire, MaliciousMissingTexts) {
  const auto bytes = encode(Hello{}, MessageKind::kHello, {"only one"});
  EXPECT_FALSE(decode<Hello>(bytes, MessageKind::kHello, 4));
  EXPECT_FALSE(decode<Hello>(encode(Hello{}, MessageKind::kHello), MessageKind::kHello, 1));
}

TEST(Wire, AnyBitFlippedIsReadWithinItsBounds) {
  const auto good = hello();
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    auto bytes = good;
    bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    if (auto message = decode<Hello>(bytes, MessageKind::kHello, 4)) {
      std::size_t total = sizeof(Hello) + message->tail.size();
      for (const auto& text : message->texts) total += text.size() + 1;
      EXPECT_EQ(total, bytes.size());
    }
  }
}

}  // namespace
}  // namespace deft::ipc
