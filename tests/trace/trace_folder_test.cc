#include "core/trace/trace_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

namespace deft::trace {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uid_t kStranger = 61'000;

class TraceFolders : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("deft-trace-folder-" + std::to_string(::getpid()));
    for (const char* name : {"there", "precious"}) fs::create_directories(root_ / name);
  }
  void TearDown() override { fs::remove_all(root_); }

  [[nodiscard]] std::string at(const std::string& name) const { return (root_ / name).string(); }
  void link(const std::string& target, const std::string& name, uid_t owner) const {
    fs::create_directory_symlink(target, root_ / name);
    ASSERT_EQ(::lchown(at(name).c_str(), owner, static_cast<gid_t>(-1)), 0);
  }
  static void put(const TraceFolder& folder, const std::string& name) {
    const auto file = folder.create(name);
    ASSERT_TRUE(file) << file.error().message();
  }
  [[nodiscard]] std::vector<std::string> files_in(const std::string& name) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(root_ / name)) names.push_back(entry.path().filename().string());
    return names;
  }

  fs::path root_;
};

TEST_F(TraceFolders, TheLastPartIsMadeAndTheOthersOnlyIfAllAreWanted) {
  EXPECT_TRUE(TraceFolder::open(at("there/new/")));
  EXPECT_TRUE(fs::is_directory(root_ / "there/new"));
  const auto missing = TraceFolder::open(at("no/such/folder"));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().kind, ErrorKind::kInvalid);
  EXPECT_THAT(missing.error().message(), HasSubstr(at("no/such/folder")));
  EXPECT_TRUE(TraceFolder::open(at("no/such/folder"), TraceFolder::Make::kAll));
  EXPECT_FALSE(TraceFolder::open(""));
  std::ofstream(at("file")) << "x";
  EXPECT_THAT(TraceFolder::open(at("file/folder")).error().message(), HasSubstr("file is no folder"));
}

TEST_F(TraceFolders, DaemonsOfOneMachineMayMakeItAtOnce) {
  for (int round = 0; round < 200; ++round) {
    const std::string path = at("round" + std::to_string(round) + "/traces");
    std::barrier begin(4);
    std::vector<std::jthread> daemons;
    for (int daemon = 0; daemon < 4; ++daemon)
      daemons.emplace_back([&] {
        begin.arrive_and_wait();
        EXPECT_TRUE(TraceFolder::open(path, TraceFolder::Make::kAll));
      });
  }
}

TEST_F(TraceFolders, NodesThatShareADiskMayMakeAFileAtOnce) {
  const auto folder = TraceFolder::open(root_.string());
  ASSERT_TRUE(folder) << folder.error().message();
  std::atomic<int> made = 0;
  {
    std::vector<std::jthread> nodes;
    for (int node = 0; node < 4; ++node)
      nodes.emplace_back([&folder, &made] {
        for (int i = 0; i < 500; ++i) made += folder->create("mark") ? 1 : 0;
      });
  }
  EXPECT_EQ(made, 2000);
}

TEST_F(TraceFolders, RelativePathsAndPartsThatGoUpAreWalked) {
  const fs::path before = fs::current_path();
  fs::current_path(root_ / "there");
  const auto folder = TraceFolder::open("../there/./made");
  fs::current_path(before);
  ASSERT_TRUE(folder) << folder.error().message();
  put(*folder, "a.trace");
  EXPECT_TRUE(fs::exists(root_ / "there/made/a.trace"));
}

TEST_F(TraceFolders, LinksOfThisUserAreFollowedAndACircleEnds) {
  link("there", "relative", ::geteuid());
  link(at("relative/."), "absolute", ::geteuid());
  const auto folder = TraceFolder::open(at("absolute/inner"));
  ASSERT_TRUE(folder) << folder.error().message();
  put(*folder, "a.trace");
  EXPECT_THAT(files_in("there/inner"), ElementsAre("a.trace"));
  link("circle", "circle", ::geteuid());
  EXPECT_FALSE(TraceFolder::open(at("circle/x")));
}

TEST_F(TraceFolders, LinksOfAnotherUserAreRefusedWhereverTheyAre) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make links of another user";
  link("precious", "planted", kStranger);
  link("planted", "mine", 0);
  for (const char* path : {"planted", "planted/", "planted/inner", "planted/../there", "mine", "mine/inner"}) {
    const auto folder = TraceFolder::open(at(path), TraceFolder::Make::kAll);
    ASSERT_FALSE(folder) << path;
    EXPECT_THAT(folder.error().message(), HasSubstr("planted is a symbolic link of user 61000")) << path;
  }
  EXPECT_THAT(files_in("precious"), IsEmpty());
}

TEST_F(TraceFolders, AFolderThatIsExchangedForALinkMeanwhileIsStillTheOneThatWasOpened) {
  const auto folder = TraceFolder::open(at("there"));
  ASSERT_TRUE(folder);
  fs::rename(root_ / "there", root_ / "moved");
  fs::create_directory_symlink("precious", root_ / "there");
  put(*folder, "a.part");
  EXPECT_TRUE(folder->rename("a.part", "a.trace"));
  EXPECT_TRUE(folder->inside("inner", 0755));
  EXPECT_THAT(files_in("precious"), IsEmpty());
  EXPECT_THAT(files_in("moved"), testing::UnorderedElementsAre("a.trace", "inner"));
}

TEST_F(TraceFolders, AFileReplacesALinkAndAFolderInsideIsNone) {
  std::ofstream(at("precious/file")) << "precious";
  const auto folder = TraceFolder::open(at("there"));
  ASSERT_TRUE(folder);
  fs::create_symlink(root_ / "precious/file", root_ / "there/a.trace");
  put(*folder, "a.trace");
  EXPECT_FALSE(fs::is_symlink(root_ / "there/a.trace"));
  EXPECT_EQ(fs::file_size(root_ / "precious/file"), 8U);
  fs::create_directory_symlink(root_ / "precious", root_ / "there/inner");
  EXPECT_FALSE(folder->inside("inner", 0755));
}

mode_t mode_of(const fs::path& path) { return static_cast<mode_t>(fs::status(path).permissions()); }

TEST_F(TraceFolders, WhatIsMadeInsideHasItsModeWhateverTheUmaskIs) {
  const mode_t before = ::umask(077);
  const auto folder = TraceFolder::open(at("there"));
  ASSERT_TRUE(folder);
  const auto inner = folder->inside("inner", 0711);
  ASSERT_TRUE(inner) << inner.error().message();
  put(*inner, "a.trace");
  ::umask(before);
  EXPECT_EQ(mode_of(root_ / "there/inner"), 0711U);
  EXPECT_EQ(mode_of(root_ / "there/inner/a.trace"), 0600U) << "a file is the user's own";
  EXPECT_TRUE(inner->let_all_read("a.trace"));
  EXPECT_EQ(mode_of(root_ / "there/inner/a.trace"), 0644U);
  EXPECT_FALSE(inner->let_all_read("b.trace"));
  EXPECT_TRUE(inner->set_mode(0755));
  EXPECT_EQ(mode_of(root_ / "there/inner"), 0755U);
  ASSERT_TRUE(folder->inside("inner", 0700));
  EXPECT_EQ(mode_of(root_ / "there/inner"), 0755U) << "it was there";
}

TEST_F(TraceFolders, KnowsWhoseItIs) {
  const auto folder = TraceFolder::open(at("there"));
  ASSERT_TRUE(folder);
  EXPECT_TRUE(folder->check_own());
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  ASSERT_EQ(::chown(at("there").c_str(), kStranger, kStranger), 0);
  EXPECT_THAT(folder->check_own().error().message(), HasSubstr("belongs to user 61000"));
}

}  // namespace
}  // namespace deft::trace
