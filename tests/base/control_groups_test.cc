#include "core/base/control_groups.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace deft {
namespace {

class ControlGroupsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/deft-groups-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) const {
    const auto file = std::filesystem::path(root_) / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  [[nodiscard]] ControlGroups groups() const { return ControlGroups(root_ + "/proc", root_ + "/cgroup"); }

  std::string root_;
};

TEST_F(ControlGroupsTest, WithoutGroupsNothingIsLimited) {
  EXPECT_FALSE(groups().memory_limit_bytes());
  EXPECT_FALSE(groups().memory_left_bytes());
  EXPECT_FALSE(groups().cores());
  write("proc/self/cgroup", "0::/one\nnonsense\n1:\n");
  write("cgroup/one/memory.max", "max\n");
  write("cgroup/one/cpu.max", "max 100000\n");
  EXPECT_FALSE(groups().memory_limit_bytes());
  EXPECT_FALSE(groups().cores());
}

TEST_F(ControlGroupsTest, TheLeastOfAllLimitsAboveHolds) {
  write("proc/self/cgroup", "0::/jobs/one\n");
  write("cgroup/jobs/one/memory.max", "1000000\n");
  write("cgroup/jobs/one/memory.current", "400000\n");
  write("cgroup/jobs/memory.max", "900000\n");
  write("cgroup/jobs/memory.current", "899000\n");
  write("cgroup/jobs/one/cpu.max", "400000 100000\n");
  write("cgroup/jobs/cpu.max", "150000 100000\n");
  EXPECT_EQ(groups().memory_limit_bytes(), 900'000u);
  EXPECT_EQ(groups().memory_left_bytes(), 1000u);
  EXPECT_EQ(groups().cores(), 1.5);
}

TEST_F(ControlGroupsTest, CachedFilesCountAsFree) {
  write("proc/self/cgroup", "0::/\n");
  write("cgroup/memory.max", "1000\n");
  write("cgroup/memory.current", "990\n");
  write("cgroup/memory.stat", "anon 90\nfile 900\ninactive_file 500\nactive_file 300\nshmem 100\n");
  EXPECT_EQ(groups().memory_left_bytes(), 810u);
}

TEST_F(ControlGroupsTest, TheOlderGroupsCountToo) {
  write("proc/self/cgroup", "7:cpu,cpuacct:/x\n5:memory:/x\n0::/\n");
  write("cgroup/memory/x/memory.limit_in_bytes", "3000\n");
  write("cgroup/memory/x/memory.usage_in_bytes", "1500\n");
  write("cgroup/memory/x/memory.stat", "inactive_file 1\ntotal_inactive_file 400\ntotal_active_file 100\n");
  write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("cgroup/cpu/x/cpu.cfs_quota_us", "25000\n");
  write("cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
  write("cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  write("cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(groups().memory_limit_bytes(), 3000u);
  EXPECT_EQ(groups().memory_left_bytes(), 2000u);
  EXPECT_EQ(groups().cores(), 0.25);
}

}  // namespace
}  // namespace deft
