// Which files of a trace are not complete yet.
#include "core/trace/trace_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace deft::trace {
namespace {

namespace fs = std::filesystem;

class UnfinishedTrace : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  std::unique_ptr<TraceWriter> write(const std::string& name, std::uint64_t incarnation = 7) {
    auto writer = TraceWriter::create(*TraceFolder::open(folder_.string()), name,
                                      {.job = "job", .incarnation = incarnation, .node = 0, .nodes = 2, .host = "a"});
    EXPECT_TRUE(writer) << writer.error().message();
    const std::vector<TraceRecord> records(3, TraceRecord(1, 1, ClockTrace{5}));
    EXPECT_TRUE((*writer)->group({.group = 0, .name = "g"}) && (*writer)->records(records));
    return *std::move(writer);
  }
  [[nodiscard]] std::string path(const std::string& name) const { return (folder_ / name).string(); }

  const fs::path folder_ = fs::temp_directory_path() / ("deft-unfinished-test-" + std::to_string(::getpid()));
};

TEST_F(UnfinishedTrace, IsNamedUntilItsWriterHasFinishedIt) {
  const auto writer = write("a.trace");
  EXPECT_EQ(unfinished_trace(path("a.trace")).value(), path("a.trace"));
  ASSERT_TRUE(writer->finish(0));
  EXPECT_EQ(unfinished_trace(path("a.trace")).value(), "");
  EXPECT_EQ(glance_at_trace(path("a.trace"))->header, read_trace(path("a.trace"))->header);
}

TEST_F(UnfinishedTrace, OfAnotherNodeCountsIfItIsOfTheSameRun) {
  const auto own = write("job-node0.trace"), other = write("job-node1.trace"), earlier = write("old.trace", 6);
  ASSERT_TRUE(own->finish(0));
  std::ofstream(path("x.trace")) << "no trace";
  EXPECT_EQ(unfinished_trace(path("job-node0.trace")).value(), path("job-node1.trace"));
  ASSERT_TRUE(other->finish(0));
  EXPECT_EQ(unfinished_trace(path("job-node0.trace")).value(), "");
  EXPECT_FALSE(unfinished_trace(path("absent.trace")));
}

TEST_F(UnfinishedTrace, IsOneThatEndsAnywhereBeforeItsEnd) {
  ASSERT_TRUE(write("a.trace")->finish(0));
  for (auto bytes = fs::file_size(path("a.trace")); bytes-- > 0;) {
    fs::resize_file(path("a.trace"), bytes);
    const auto glance = glance_at_trace(path("a.trace"));
    EXPECT_FALSE(glance && glance->complete) << bytes;
  }
}

}  // namespace
}  // namespace deft::trace
