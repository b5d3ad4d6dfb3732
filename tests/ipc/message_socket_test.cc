#include "core/ipc/message_socket.h"
#include "core/base/descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "core/ipc/messages.h"

namespace deft::ipc {
namespace {

constexpr TimeUs kSoon = 5'000'000;

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

std::string text_of(const Packet& packet) {
  return {reinterpret_cast<const char*>(packet.bytes.data()), packet.bytes.size()};
}

class MessageSocketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    a_ = MessageSocket(Descriptor(ends[0]));
    b_ = MessageSocket(Descriptor(ends[1]));
  }
  Result<Packet> receive() { return b_.receive(MonotonicClock::now() + kSoon); }

  MessageSocket a_, b_;
};

TEST_F(MessageSocketTest, PacketsKeepTheirBoundsAndOrder) {
  ASSERT_TRUE(a_.send(bytes_of("one")));
  ASSERT_TRUE(a_.send(bytes_of("two")));
  EXPECT_EQ(text_of(*receive()), "one");
  EXPECT_EQ(text_of(*receive()), "two");
}

TEST_F(MessageSocketTest, WhetherTheOtherSideHasReadAllIsSeen) {
  EXPECT_FALSE(a_.has_unread());
  ASSERT_TRUE(a_.send(bytes_of("one")));
  ASSERT_TRUE(a_.send(bytes_of("two")));
  EXPECT_TRUE(a_.has_unread());
  ASSERT_TRUE(receive());
  EXPECT_TRUE(a_.has_unread());
  ASSERT_TRUE(receive());
  EXPECT_FALSE(a_.has_unread());
}

// A message of no bytes, as no sender of ours makes it. It looks like the end of the socket.
ssize_t send_empty(const MessageSocket& socket, bool with_descriptor) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  if (with_descriptor) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    constexpr int kDescriptor = STDERR_FILENO;
    std::memcpy(CMSG_DATA(rights), &kDescriptor, sizeof kDescriptor);
  }
  return sendmsg(socket.descriptor(), &message, 0);
}

TEST_F(MessageSocketTest, WhatWasNotReadIsDiscardedUnlessDescriptorsCameWithIt) {
  for (const bool has_descriptors : {false, true}) {
    SetUp();
    ASSERT_TRUE(a_.send(bytes_of("one")));
    ASSERT_EQ(send_empty(a_, false), 0);
    ASSERT_EQ(send_empty(a_, has_descriptors), 0);
    b_.shut_down();
    EXPECT_NE(b_.discard_unread(), has_descriptors);
    EXPECT_NE(b_.discard_unread(), has_descriptors) << "a second time";
  }
}

TEST_F(MessageSocketTest, MuchIsNotDiscarded) {
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(a_.send(bytes_of("one")));
  b_.shut_down();
  EXPECT_FALSE(b_.discard_unread());
}

TEST_F(MessageSocketTest, DescriptorsTravelAndAreClosedOnExec) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);  // not closed on exec here
  const Descriptor reading(ends[0]), writing(ends[1]);
  const std::array<int, 2> both{ends[0], ends[1]};
  ASSERT_TRUE(a_.send(bytes_of("x"), both));
  auto packet = receive();
  ASSERT_TRUE(packet);
  ASSERT_EQ(packet->descriptors.size(), 2u);
  for (const auto& fd : packet->descriptors) EXPECT_NE(fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, 0);
  ASSERT_EQ(write(packet->descriptors[1].get(), "!", 1), 1);
  char c = 0;
  EXPECT_EQ(read(ends[0], &c, 1), 1);
  EXPECT_EQ(c, '!');
}

TEST_F(MessageSocketTest, NothingToReceiveIsATimeout) {
  auto packet = b_.receive(MonotonicClock::now() + 1000);
  ASSERT_FALSE(packet);
  EXPECT_EQ(packet.error().kind, ErrorKind::kTimeout);
  auto none = b_.try_receive();
  ASSERT_TRUE(none);
  EXPECT_FALSE(none->has_value());
}

TEST_F(MessageSocketTest, TheEndIsAnEmptyPacketAfterAllOthers) {
  ASSERT_TRUE(a_.send(bytes_of("last words")));
  a_.close();
  EXPECT_EQ(text_of(*receive()), "last words");
  EXPECT_TRUE(receive()->bytes.empty());
  EXPECT_TRUE(receive()->bytes.empty());
}

// A daemon that refuses somebody who is still talking: its reason must arrive all the same.
TEST_F(MessageSocketTest, LastWordsArriveFromAPeerThatDidNotReadOurs) {
  ASSERT_TRUE(b_.send(bytes_of("never read")));
  ASSERT_TRUE(a_.send(bytes_of("last words")));
  a_.close();
  EXPECT_EQ(text_of(*receive()), "last words");
  EXPECT_TRUE(receive()->bytes.empty());
}

TEST_F(MessageSocketTest, SendingToADeadPeerIsAnErrorNotASignal) {
  b_.close();
  auto sent = a_.send(bytes_of("x"));
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().kind, ErrorKind::kLost);
}

TEST_F(MessageSocketTest, AFullQueueIsAnErrorWhereTheSocketDoesNotBlock) {
  ASSERT_EQ(fcntl(a_.descriptor(), F_SETFL, O_NONBLOCK), 0);
  const std::vector<std::byte> large(kMaxMessageBytes);
  Result<void> sent;
  for (int i = 0; i < 10'000 && sent; ++i) sent = a_.send(large);
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().kind, ErrorKind::kExhausted);
}

TEST_F(MessageSocketTest, TooLongAMessageIsNotSent) {
  auto sent = a_.send(std::vector<std::byte>(kMaxMessageBytes + 1));
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().kind, ErrorKind::kInvalid);
}

TEST_F(MessageSocketTest, MaliciousLongMessageIsAViolation) {
  const std::vector<char> large(kMaxMessageBytes + 1);
  ASSERT_GT(::send(a_.descriptor(), large.data(), large.size(), 0), 0);
  auto packet = receive();
  ASSERT_FALSE(packet);
  EXPECT_EQ(packet.error().kind, ErrorKind::kViolation);
}

TEST_F(MessageSocketTest, AnEndThatRefusesDescriptorsTakesAndClosesNone) {
  b_.refuse_descriptors();
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  Descriptor reading(ends[0]), writing(ends[1]);
  ASSERT_TRUE(a_.send(bytes_of("no descriptor")));
  const std::array<int, 1> one{writing.get()};
  ASSERT_TRUE(a_.send(bytes_of("x"), one));
  writing.reset();  // the one in the queue is the last
  EXPECT_EQ(text_of(*receive()), "no descriptor");
  for (int i = 0; i < 2; ++i) {
    auto packet = receive();
    ASSERT_FALSE(packet);
    EXPECT_EQ(packet.error().kind, ErrorKind::kViolation);
  }
  char c = 0;
  EXPECT_EQ(read(reading.get(), &c, 1), -1) << "the pipe's end was closed by whoever refused it";
  b_.close();
  EXPECT_EQ(read(reading.get(), &c, 1), 0);
}

TEST_F(MessageSocketTest, MaliciousFloodOfDescriptorsIsRefusedAndClosed) {
  constexpr int kMany = 64;
  std::array<int, kMany> all;
  all.fill(a_.descriptor());
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof all)> control{};
  char byte = 'x';
  iovec piece{&byte, 1};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof all);
  std::memcpy(CMSG_DATA(c), all.data(), sizeof all);
  const int next_before = dup(0);
  close(next_before);
  ASSERT_EQ(sendmsg(a_.descriptor(), &message, 0), 1);
  EXPECT_FALSE(receive());
  const int next_after = dup(0);
  close(next_after);
  EXPECT_EQ(next_before, next_after) << "descriptors were left open";
}

TEST_F(MessageSocketTest, DescriptorsLostToALimitAreAnErrorThatSaysSo) {
  const std::array<int, 1> one{a_.descriptor()};
  ASSERT_TRUE(a_.send(bytes_of("x"), one));
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit lowered{3, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &lowered);
  auto packet = receive();
  setrlimit(RLIMIT_NOFILE, &before);
  ASSERT_FALSE(packet);
  EXPECT_EQ(packet.error().kind, ErrorKind::kExhausted);
}

TEST_F(MessageSocketTest, ThePeerIsWhomTheKernelSays) {
  auto peer = a_.peer();
  ASSERT_TRUE(peer);
  EXPECT_EQ(peer->pid, getpid());
  EXPECT_EQ(peer->uid, geteuid());
}

}  // namespace
}  // namespace deft::ipc
