// What a node's cores do, as it is measured and recorded.
#include "daemon/node/cores_meter.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <thread>

namespace deft::daemon {
namespace {

constexpr TimeUs kBegunUs = 1'000'000, kLaterUs = 2'000'000;

std::size_t last_core() {
  cpu_set_t cores;
  EXPECT_EQ(::sched_getaffinity(0, sizeof(cores), &cores), 0);
  std::size_t last = 0;
  for (std::size_t core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &cores)) last = core;
  return last;
}

// A process that computes on one core as long as it lives.
class Busy {
 public:
  explicit Busy(std::size_t core) : process_(::fork()) {
    if (process_ != 0) return;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    if (::sched_setaffinity(0, sizeof(cores), &cores) != 0) ::_exit(1);
    for (volatile std::uint64_t sum = 0;;) sum = sum + 1;
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
  ~Busy() { end(); }

  [[nodiscard]] pid_t process() const { return process_; }
  // Until it has used so much more time, and has its core.
  void await(TimeUs us) const {
    for (const TimeUs began_us = used_us(); used_us() < began_us + us;)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  void end() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = -1;
  }

 private:
  [[nodiscard]] TimeUs used_us() const {
    clockid_t clock = 0;
    timespec used{};
    EXPECT_EQ(::clock_getcpuclockid(process_, &clock), 0);
    EXPECT_EQ(::clock_gettime(clock, &used), 0);
    return TimeUs{used.tv_sec} * 1'000'000 + used.tv_nsec / 1000;
  }

  pid_t process_;
};

TEST(CoresMeter, TellsWhatAWorkerAndAnotherProgramOnItsCoreUse) {
  const std::size_t core = last_core();
  const Busy worker(core), other(core);
  worker.await(50'000), other.await(50'000);
  CoresMeter meter;
  const pid_t workers[] = {worker.process()};
  EXPECT_FALSE(meter.measure(kBegunUs, workers)) << "it only begins";
  worker.await(400'000), other.await(400'000);
  EXPECT_FALSE(meter.measure(kBegunUs + 499'999, workers)) << "it is not time";
  const auto use = meter.measure(kLaterUs, workers);
  ASSERT_TRUE(use);
  EXPECT_EQ(use->since_us, kBegunUs);
  EXPECT_EQ(use->until_us, kLaterUs);
  EXPECT_EQ(use->trace.cores, 1);
  EXPECT_EQ(use->trace.workers, 1);
  EXPECT_EQ(use->trace.which, std::uint64_t{1} << (core % 64));
  EXPECT_GE(use->trace.own_us, 300'000U);
  EXPECT_GE(use->trace.busy_us, use->trace.own_us + 250'000U) << "the other program's, too";
  EXPECT_GE(use->trace.waited_us, 200'000U) << "while the other one had the core";
}

TEST(CoresMeter, TellsNothingIfAWorkerIsNotThereOrIsAnotherOne) {
  const std::size_t core = last_core();
  Busy worker(core), another(core);
  worker.await(10'000), another.await(10'000);
  CoresMeter meter;
  const pid_t first[] = {worker.process()}, second[] = {another.process()}, none[] = {0};
  TimeUs now_us = kBegunUs;
  const auto tells = [&](std::span<const pid_t> workers) {
    return meter.measure(now_us += 1'000'000, workers).has_value();
  };
  EXPECT_FALSE(tells(first));
  EXPECT_TRUE(tells(first));
  EXPECT_FALSE(tells(second)) << "nobody knows what it has used since then";
  EXPECT_TRUE(tells(second));
  EXPECT_FALSE(tells(none));
  EXPECT_FALSE(tells({}));
  EXPECT_FALSE(tells(first));
  EXPECT_TRUE(tells(first));
  worker.end();
  EXPECT_FALSE(tells(first));
}

// The kernel's files as they may be elsewhere. The worker is this process.
class KernelFiles : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_ / std::to_string(::getpid())); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& stat, std::uint64_t waited_ns) const {
    std::ofstream(folder_ / "stat") << stat;
    std::ofstream(folder_ / std::to_string(::getpid()) / "schedstat") << "123456 " << waited_ns << " 9\n";
  }
  // A line for each core from 0 to the last one that this process may use, and two more.
  [[nodiscard]] std::string cores(const std::string& numbers) const {
    std::string text = "cpu  999999 999999 999999 999999 999999 999999 999999 999999 0 0\n";
    for (std::size_t core = 0; core <= last_core() + 2; ++core)
      text += "cpu" + std::to_string(core) + " " + numbers + "\n";
    return text + "intr 7 8 9\ncpufreq 1 2 3\n";
  }
  std::optional<CoresUse> measure(const std::string& before, const std::string& after) {
    CoresMeter meter(folder_.string());
    const pid_t workers[] = {::getpid()};
    write(before, 1'000'000);
    EXPECT_FALSE(meter.measure(kBegunUs, workers));
    write(after, 4'000'000);
    return meter.measure(kLaterUs, workers);
  }
  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("deft-cores-" + std::to_string(::getpid()));
};

TEST_F(KernelFiles, CountOnlyProgramsOnTheWorkersCores) {
  const auto use = measure(cores("100 10 20 500 50 7 8 3 40 4"), cores("130 11 22 900 90 70 80 7 60 6"));
  ASSERT_TRUE(use);
  const auto tick_us = static_cast<std::uint64_t>(1'000'000 / ::sysconf(_SC_CLK_TCK));
  EXPECT_EQ(use->trace.busy_us, use->trace.cores * (30 + 1 + 2 + 4) * tick_us)
      << "user, nice, system and stolen time; guests count as user";
  EXPECT_EQ(use->trace.waited_us, 3000U);
}

TEST_F(KernelFiles, ThatTellNothingOfTheCoresGiveNothing) {
  EXPECT_FALSE(measure("", ""));
  EXPECT_FALSE(measure("cpu 1 2 3 4\nintr 5\n", "cpu 1 2 3 4\n"));
  EXPECT_FALSE(measure(cores("100 10 20 500 50 7 8 3 0 0"), "rubbish"));
  const auto backwards = measure(cores("100 10 20 500 50 7 8 3 0 0"), cores("50 5 10 400 40 3 4 1 0 0"));
  ASSERT_TRUE(backwards) << "a core that was away begins anew";
  EXPECT_EQ(backwards->trace.busy_us, 0U);
}

}  // namespace
}  // namespace deft::daemon
