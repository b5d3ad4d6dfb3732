// A producer that is killed between any two instructions. It runs step by step (ptrace), and after each step a consumer reads a copy of
// the memory as it would be left behind.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "core/shm/control_segment.h"
#include "core/shm/doorbell.h"
#include "core/shm/ring.h"

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)  // their code has a hundred times as many steps

namespace deft::shm {
namespace {

constexpr std::uint64_t kStepped = 3;  // records whose writing is watched
constexpr int kMostSteps = 1'000'000;
constexpr int kMayNotTrace = 77;

// Every word depends on the number, so that a torn or stale record shows.
Record numbered(std::uint64_t number) {
  std::array<std::uint64_t, kRecordBytes / sizeof number> words{};
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = (number + 1) * (2 * i + 1);
  return std::bit_cast<Record>(words);
}

// How many records a consumer finds in the memory as it is now. -1: one is torn, or the ring makes no sense.
int whole_records(const Segment& segment, const Segment& copy) {
  std::memcpy(copy.data(), segment.data(), kCompletionOffset);
  const auto view = ControlSegment::open(copy);
  if (!view) return -1;
  Consumer consumer(view->submission(), view->submission_records());
  int found = 0;
  Record record;
  Pop popped = Pop::kRecord;
  while ((popped = consumer.pop(record)) == Pop::kRecord) {
    const Record right = numbered(static_cast<std::uint64_t>(found));
    if (std::memcmp(&record, &right, sizeof record) != 0) return -1;
    ++found;
  }
  return popped == Pop::kEmpty ? found : -1;
}

// In the child: `before` records at full speed, then some that the parent watches.
[[noreturn]] void produce(const ControlSegment& view, const Doorbell& bell, std::uint64_t before) {
  Producer producer(view.submission(), view.submission_records());
  for (std::uint64_t i = 0; i < before; ++i) producer.push(numbered(i));
  if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(errno == EPERM || errno == EACCES ? kMayNotTrace : 1);
  raise(SIGSTOP);
  for (std::uint64_t i = before; i < before + kStepped; ++i)
    if (producer.push(numbered(i)) == Push::kWake) bell.ring();
  _exit(0);
}

// True if the child has stopped after one more step.
bool step(pid_t child) {
  int status = 0;
  return ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) == 0 && waitpid(child, &status, 0) == child &&
         WIFSTOPPED(status);
}

class KilledProducer : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(KilledProducer, LeavesWholeRecordsAfterEachInstruction) {
  const std::uint64_t before = GetParam();
  auto segment = Segment::create("test-ring", kControlSegmentBytes);
  auto copy = Segment::create("test-copy", kControlSegmentBytes);
  auto bell = Doorbell::create();
  ASSERT_TRUE(segment && copy && bell);
  const auto view = ControlSegment::format(*segment, 1);
  const pid_t child = fork();
  if (child == 0) produce(view, *bell, before);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kMayNotTrace)
    GTEST_SKIP() << "this process may not trace another one";
  ASSERT_TRUE(WIFSTOPPED(status));
  int found = static_cast<int>(before), steps = 0;
  for (; step(child); ++steps) {
    ASSERT_LT(steps, kMostSteps);
    const int now = whole_records(*segment, *copy);
    ASSERT_TRUE(now == found || now == found + 1)
        << "after " << steps << " steps: " << now << " records, and then " << found;
    found = now;
  }
  EXPECT_EQ(found, static_cast<int>(before + kStepped));
  EXPECT_GT(steps, 50) << "nobody looked between the stores of a record";
}

// At the start of the ring, and up to its last place.
INSTANTIATE_TEST_SUITE_P(Places, KilledProducer, ::testing::Values(0, kRingCapacity - kStepped));

}  // namespace
}  // namespace deft::shm

#endif
