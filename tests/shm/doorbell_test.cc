#include "core/shm/doorbell.h"
#include "core/base/descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>

namespace deft::shm {
namespace {

TEST(Doorbell, WaitsUntilItRings) {
  auto bell = Doorbell::create();
  ASSERT_TRUE(bell);
  std::thread other([&] { bell->ring(); });
  EXPECT_TRUE(bell->wait(MonotonicClock::now() + 10'000'000));
  other.join();
}

TEST(Doorbell, ManyRingsAreOneWakeUp) {
  auto bell = Doorbell::create();
  ASSERT_TRUE(bell);
  for (int i = 0; i < 10; ++i) bell->ring();
  EXPECT_TRUE(bell->wait(MonotonicClock::now()));
  EXPECT_FALSE(bell->wait(MonotonicClock::now() + 1000));
}

TEST(Doorbell, DrainForgetsAndDoesNotBlock) {
  auto bell = Doorbell::create();
  ASSERT_TRUE(bell);
  bell->drain();
  bell->ring();
  bell->drain();
  EXPECT_FALSE(bell->wait(MonotonicClock::now()));
}

TEST(Doorbell, AReceivedOneIsTheSameBellAndDoesNotBlock) {
  auto bell = Doorbell::create();
  ASSERT_TRUE(bell);
  auto adopted = Doorbell::adopt(Descriptor(dup(bell->descriptor())));
  ASSERT_TRUE(adopted) << adopted.error().message();
  bell->ring();
  EXPECT_TRUE(adopted->wait(MonotonicClock::now()));
}

TEST(Doorbell, MaliciousBlockingOrFullBellDoesNotBlockUs) {
  const int fd = eventfd(0, EFD_CLOEXEC);
  const std::uint64_t full = ~std::uint64_t{0} - 1;
  ASSERT_EQ(write(fd, &full, sizeof full), static_cast<ssize_t>(sizeof full));
  auto bell = Doorbell::adopt(Descriptor(fd));
  ASSERT_TRUE(bell);
  bell->ring();  // would block
  bell->drain();
  bell->drain();  // would block
}

TEST(Doorbell, WhatIsNoBellIsRefused) {
  EXPECT_FALSE(Doorbell::adopt(Descriptor()));
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Descriptor other_end(ends[1]);
  auto bell = Doorbell::adopt(Descriptor(ends[0]));
  ASSERT_FALSE(bell);
  EXPECT_EQ(bell.error().kind, ErrorKind::kViolation);
}

}  // namespace
}  // namespace deft::shm
