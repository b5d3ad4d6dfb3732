#include "core/shm/available_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>

namespace deft::shm {
namespace {

class AvailableMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/deft-memory-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    root_ = name;
    write("proc/meminfo", "MemTotal: 4096 kB\nMemFree: 1 kB\nMemAvailable:    2048 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    const auto file = std::filesystem::path(root_) / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::uint64_t available() const { return available_memory(root_ + "/proc", root_ + "/cgroup"); }

  std::string root_;
};

TEST_F(AvailableMemoryTest, TheMachineDecidesWhereNoGroupLimits) { EXPECT_EQ(available(), 2048u * 1024); }

TEST_F(AvailableMemoryTest, AGroupLimitsWhatIsLeft) {
  write("proc/self/cgroup", "0::/jobs/one\n");
  write("cgroup/jobs/one/memory.max", "1000000\n");
  write("cgroup/jobs/one/memory.current", "400000\n");
  EXPECT_EQ(available(), 600000u);
}

TEST_F(AvailableMemoryTest, AGroupAboveLimitsToo) {
  write("proc/self/cgroup", "0::/jobs/one\n");
  write("cgroup/jobs/one/memory.max", "max\n");
  write("cgroup/jobs/one/memory.current", "400000\n");
  write("cgroup/jobs/memory.max", "500000\n");
  write("cgroup/jobs/memory.current", "499000\n");
  EXPECT_EQ(available(), 1000u);
}

TEST_F(AvailableMemoryTest, AFullGroupLeavesNothing) {
  write("proc/self/cgroup", "0::/\n");
  write("cgroup/memory.max", "1000\n");
  write("cgroup/memory.current", "2000\n");
  EXPECT_EQ(available(), 0u);
}

TEST_F(AvailableMemoryTest, TheOlderGroupsLimitToo) {
  write("proc/self/cgroup", "7:cpu,cpuacct:/x\n5:memory:/x\n");
  write("cgroup/memory/x/memory.limit_in_bytes", "3000\n");
  write("cgroup/memory/x/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(available(), 2000u);
}

TEST_F(AvailableMemoryTest, UnknownIsNoLimit) {
  std::filesystem::remove_all(root_ + "/proc");
  EXPECT_EQ(available(), std::numeric_limits<std::uint64_t>::max());
}

TEST(Memory, ThisMachineHasSome) { EXPECT_GT(available_memory(), 0u); }

}  // namespace
}  // namespace deft::shm
