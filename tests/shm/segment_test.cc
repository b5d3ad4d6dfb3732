#include "core/shm/segment.h"
#include "core/base/descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <stop_token>
#include <thread>
#include <vector>

#include "core/shm/control_segment.h"

namespace deft::shm {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

std::size_t open_descriptors() {
  const auto all = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

Descriptor memfd(std::uint64_t bytes, int seals) {
  Descriptor fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

// Lowers a limit for the life of this object.
class Limit {
 public:
  Limit(decltype(RLIMIT_NOFILE) what, rlim_t value) : what_(what) {
    getrlimit(what, &before_);
    const rlimit lowered{value, before_.rlim_max};
    setrlimit(what, &lowered);
  }
  ~Limit() { setrlimit(what_, &before_); }

 private:
  decltype(RLIMIT_NOFILE) what_;
  rlimit before_{};
};

TEST(Segment, IsZeroedRoundedSealedAndClosedOnExec) {
  auto segment = Segment::create("test", 5000);
  ASSERT_TRUE(segment) << segment.error().message();
  EXPECT_EQ(segment->bytes(), 8192u);
  EXPECT_TRUE(std::all_of(segment->data(), segment->data() + 8192, [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(fcntl(segment->descriptor(), F_GET_SEALS) & kSeals, kSeals);
  EXPECT_NE(ftruncate(segment->descriptor(), 4096), 0) << "the size can be changed";
  EXPECT_NE(fcntl(segment->descriptor(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(Segment, BothMappingsShowTheSameMemory) {
  auto mine = Segment::create("test", 4096);
  ASSERT_TRUE(mine);
  auto theirs = Segment::map(Descriptor(dup(mine->descriptor())), 4096);
  ASSERT_TRUE(theirs) << theirs.error().message();
  mine->data()[17] = std::byte{42};
  EXPECT_EQ(theirs->data()[17], std::byte{42});
  EXPECT_NE(mine->data(), theirs->data());
}

TEST(Segment, PrivateMemoryTakesThePlaceOfTheMapping) {
  auto shared = Segment::create("test", 5000);
  ASSERT_TRUE(shared);
  auto mine = Segment::map(Descriptor(dup(shared->descriptor())), 5000);
  ASSERT_TRUE(mine);
  shared->data()[4999] = std::byte{5};
  std::byte* const place = mine->data();
  const auto done = mine->become_private();
  ASSERT_TRUE(done) << done.error().message();
  EXPECT_EQ(mine->data(), place);
  EXPECT_EQ(place[4999], std::byte{5});
  place[0] = std::byte{6};
  EXPECT_EQ(shared->data()[0], std::byte{0}) << "others do not see it";
  shared->discard();
  EXPECT_EQ(place[4999], std::byte{5});
}

TEST(Segment, WhatAThreadWritesMeanwhileStays) {
  constexpr std::size_t kPage = 4096, kPages = 512;
  for (int round = 0; round < 20; ++round) {
    const auto shared = Segment::create("test", kPage * kPages);
    ASSERT_TRUE(shared);
    std::atomic<std::uint64_t> rounds{0};
    std::vector<std::uint64_t> last(kPages);
    std::jthread writer([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        const std::uint64_t value = ++rounds;
        rounds.notify_one();
        for (std::size_t page = 0; page < kPages; ++page) {
          last[page] = value;
          *reinterpret_cast<std::uint64_t*>(shared->data() + page * kPage + 8) = value;
        }
      }
    });
    rounds.wait(0);
    ASSERT_TRUE(shared->become_private());
    writer.request_stop();
    writer.join();
    for (std::size_t page = 0; page < kPages; ++page)
      ASSERT_EQ(*reinterpret_cast<std::uint64_t*>(shared->data() + page * kPage + 8), last[page]) << "page " << page;
  }
}

TEST(Segment, LeavesNoDescriptorBehind) {
  const std::size_t before = open_descriptors();
  {
    auto segment = Segment::create("test", 4096);
    ASSERT_TRUE(segment);
    Segment moved = std::move(*segment);
    EXPECT_EQ(open_descriptors(), before + 1);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Segment, MaliciousUnsealedDescriptorIsRefused) {
  auto segment = Segment::map(memfd(4096, 0), 4096);
  ASSERT_FALSE(segment);
  EXPECT_EQ(segment.error().kind, ErrorKind::kViolation);
  EXPECT_NE(segment.error().what.find("not sealed"), std::string::npos);
}

TEST(Segment, MaliciousDescriptorThatMayShrinkIsRefused) {
  EXPECT_FALSE(Segment::map(memfd(4096, F_SEAL_GROW), 4096));
  EXPECT_FALSE(Segment::map(memfd(4096, F_SEAL_SHRINK), 4096));
  EXPECT_TRUE(Segment::map(memfd(4096, kSeals), 4096));
}

TEST(Segment, MaliciousShortDescriptorIsRefused) {
  auto segment = Segment::map(memfd(4096, kSeals), 8192);
  ASSERT_FALSE(segment);
  EXPECT_EQ(segment.error().kind, ErrorKind::kViolation);
}

TEST(Segment, WhatIsNoMemfdIsRefused) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  Descriptor reading(ends[0]), writing(ends[1]);
  EXPECT_FALSE(Segment::map(std::move(reading), 4096));
  EXPECT_FALSE(Segment::map(Descriptor(), 4096));
  EXPECT_FALSE(Segment::map(Descriptor(open("/dev/null", O_RDWR | O_CLOEXEC)), 4096));
}

TEST(Segment, TooMuchMemoryIsAnErrorNotASignal) {
  for (const std::uint64_t bytes : {std::uint64_t{1} << 46, std::uint64_t{1} << 62, ~std::uint64_t{0}}) {
    auto segment = Segment::create("test", bytes);
    ASSERT_FALSE(segment);
    EXPECT_EQ(segment.error().kind, ErrorKind::kExhausted) << segment.error().message();
  }
}

TEST(Segment, AFileSizeLimitIsAnErrorNotASignal) {
  const Limit limit(RLIMIT_FSIZE, 1 << 20);
  EXPECT_TRUE(Segment::create("test", 1 << 20));
  auto segment = Segment::create("test", 2 << 20);
  ASSERT_FALSE(segment);
  EXPECT_EQ(segment.error().kind, ErrorKind::kExhausted);
}

TEST(Segment, NoDescriptorsLeftIsATypedError) {
  const Limit limit(RLIMIT_NOFILE, 3);
  auto segment = Segment::create("test", 4096);
  ASSERT_FALSE(segment);
  EXPECT_EQ(segment.error().kind, ErrorKind::kExhausted);
}

TEST(Segment, AnEmptyOneIsRefused) { EXPECT_FALSE(Segment::create("test", 0)); }

TEST(ControlSegment, IsReadBackAsItWasFormatted) {
  auto segment = Segment::create("test", kControlSegmentBytes);
  ASSERT_TRUE(segment);
  EXPECT_FALSE(ControlSegment::open(*segment)) << "memory that nobody formatted";
  ControlSegment::format(*segment, 77);
  auto view = ControlSegment::open(*segment);
  ASSERT_TRUE(view) << view.error().message();
  EXPECT_EQ(view->header().daemon_epoch, 77u);
  EXPECT_EQ(view->submission_records().size(), kRingCapacity);
  const auto* end = reinterpret_cast<std::byte*>(view->completion_records().data() + kRingCapacity);
  EXPECT_EQ(end, segment->data() + kControlSegmentBytes);
}

TEST(ControlSegment, AnotherLayoutIsRefusedAndBothVersionsAreNamed) {
  auto segment = Segment::create("test", kControlSegmentBytes);
  ASSERT_TRUE(segment);
  ControlSegment::format(*segment, 1).header().version = 9;
  auto view = ControlSegment::open(*segment);
  ASSERT_FALSE(view);
  EXPECT_EQ(view.error().kind, ErrorKind::kMismatch);
  EXPECT_NE(view.error().what.find("9"), std::string::npos);
  EXPECT_NE(view.error().what.find(std::to_string(kLayoutVersion)), std::string::npos);
}

TEST(ControlSegment, AShortOneIsRefused) {
  auto segment = Segment::create("test", 4096);
  ASSERT_TRUE(segment);
  EXPECT_FALSE(ControlSegment::open(*segment));
}

}  // namespace
}  // namespace deft::shm
