// The processor time of the daemon's threads, as it is measured and recorded.
#include "daemon/channel/cpu_meter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "tests/daemon/recording.h"

namespace deft::daemon {
namespace {

using model::DaemonThread;

constexpr TimeUs kWorkUs = 20'000;

TimeUs used_us() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return TimeUs{used.tv_sec} * 1'000'000 + used.tv_nsec / 1000;
}

// Until this thread has used so much time.
void work() {
  const TimeUs until_us = used_us() + kWorkUs;
  while (used_us() < until_us) continue;
}

CpuMeter own_meter() { return CpuMeter({{DaemonThread::kLink, 0, CLOCK_THREAD_CPUTIME_ID}}); }

// A link that names a thread, which is the test's own.
class ThreadedLink final : public link::Link, public link::ThreadClocks {
 public:
  ThreadedLink() : Link("threaded", link::LinkGroup{.node = 0, .nodes = 2, .prefix = {}, .store = {}}, 1) {}
  [[nodiscard]] std::vector<link::ThreadClock> thread_clocks() const override { return clocks; }

  std::vector<link::ThreadClock> clocks;

 protected:
  Result<void> start(const link::WorkRequest& /*request*/) override { return {}; }
  Result<std::optional<std::uint64_t>> await() override { return std::nullopt; }
  void settle() override {}
  void stop(const Error& /*reason*/) override {}
};

TEST(CpuMeter, TellsWhatAThreadHasUsedSinceTheLastTimeTenTimesASecond) {
  auto meter = own_meter();
  EXPECT_TRUE(meter.measure(1000).threads.empty()) << "it only begins";
  work();
  EXPECT_TRUE(meter.measure(100'999).threads.empty());
  const TimeUs before_us = used_us();
  const CpuTimes times = meter.measure(101'000);
  EXPECT_EQ(times.since_us, 1000);
  EXPECT_EQ(times.until_us, 101'000);
  ASSERT_EQ(times.threads.size(), 1U);
  EXPECT_EQ(times.threads[0].thread, DaemonThread::kLink);
  EXPECT_GE(times.threads[0].cpu_us, kWorkUs);
  EXPECT_LE(times.threads[0].cpu_us, used_us());
  const CpuTimes later = meter.measure(201'000);
  ASSERT_EQ(later.threads.size(), 1U);
  EXPECT_LE(later.threads[0].cpu_us, used_us() - before_us) << "what was told is not told again";
}

TEST(CpuMeter, TellsOfTheLinksOwnThreadsAsLongAsTheyAreThere) {
  auto meter = own_meter();
  ThreadedLink link;
  meter.use(&link);
  static_cast<void>(meter.measure(1000));
  link.clocks = {{DaemonThread::kReceives, 1, CLOCK_THREAD_CPUTIME_ID}};
  EXPECT_EQ(meter.measure(200'000).threads.size(), 1U) << "nobody knows what the new thread has used since then";
  work();
  const CpuTimes times = meter.measure(400'000);
  ASSERT_EQ(times.threads.size(), 2U);
  EXPECT_EQ(times.threads[1].thread, DaemonThread::kReceives);
  EXPECT_EQ(times.threads[1].number, 1U);
  EXPECT_GE(times.threads[1].cpu_us, kWorkUs);
  link.clocks.clear();
  EXPECT_EQ(meter.measure(600'000).threads.size(), 1U);
}

class RecordedThreads : public Recording {};

TEST_F(RecordedThreads, AFileHasTheThreadsOfLinksAndTheEventLoop) {
  make("trace=" + folder_.string());
  ASSERT_TRUE(begin());
  TransferDone done;
  recorder_->transferred(1, done, 1'000'000);
  work();
  done.cpu = {1'000'000, 1'150'000, {{DaemonThread::kAdds, 1, 70'000}}};
  recorder_->transferred(1, done, 1'200'000);
  std::map<DaemonThread, trace::TraceRecord> threads;
  for (const auto& record : written().records)
    if (record.kind() == trace::TraceKind::kCpu)
      threads[static_cast<DaemonThread>(record.as<trace::CpuTrace>().thread)] = record;
  ASSERT_EQ(threads.size(), 3U);
  const auto adds = threads[DaemonThread::kAdds].as<trace::CpuTrace>();
  EXPECT_EQ(adds.cpu_us, 70'000U);
  EXPECT_EQ(adds.link, 1U);
  EXPECT_EQ(adds.number, 1U);
  EXPECT_EQ(threads[DaemonThread::kAdds].end_us(), 1'150'000);
  for (const auto thread : {DaemonThread::kReactor, DaemonThread::kAll}) {
    EXPECT_EQ(threads[thread].begin_us(), 1'000'000);
    EXPECT_EQ(threads[thread].end_us(), 1'200'000);
    EXPECT_GE(threads[thread].as<trace::CpuTrace>().cpu_us, static_cast<std::uint64_t>(kWorkUs));
  }
}

}  // namespace
}  // namespace deft::daemon
