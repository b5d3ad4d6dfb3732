// What a line of the log says of itself as JSON.
#include "daemon/base/log_lines.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

namespace deft::daemon {
namespace {

// The lines that `write` logs.
template <typename Write>
std::vector<nlohmann::json> logged(const Write& write) {
  testing::internal::CaptureStderr();
  write();
  std::istringstream out(testing::internal::GetCapturedStderr());
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(out, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

class LogLines : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::vector<std::string> flags{"--log-format=json", "--log-level=warning"};
    start_logging(Config::load(flags, {}, Audience::kDaemon).value());
  }
};

TEST_F(LogLines, OfOneUserDoNotKeepOutThoseOfAnother) {
  const auto lines = logged([] {
    for (unsigned i = 0; i < 10 * kLinesOfUser; ++i)
      LOG(WARNING) << about("flood" + std::to_string(i)).of(5) << "began";
    LOG(WARNING) << about("job").of(6) << "failed";
    LOG(WARNING) << "of the daemon";
  });
  ASSERT_EQ(lines.size(), kLinesOfUser + 2);
  EXPECT_EQ(lines[0]["job"], "flood0");
  EXPECT_EQ(lines[kLinesOfUser]["job"], "job");
}

TEST_F(LogLines, AreLeftOutWhileNobodyReadsAndThatIsTold) {
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(pipe2(pipe_ends.data(), O_CLOEXEC), 0);
  const int before = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
  dup2(pipe_ends[1], STDERR_FILENO);
  const std::string long_text(1000, 'x');
  constexpr int kLines = 1000;  // more than a pipe holds
  for (int i = 0; i < kLines; ++i) LOG(WARNING) << long_text;
  std::string read_back;
  const auto read_all = [&] {
    std::array<char, 65536> piece{};
    pollfd ready{pipe_ends[0], POLLIN, 0};
    while (poll(&ready, 1, 0) == 1)
      read_back.append(piece.data(), static_cast<std::size_t>(read(pipe_ends[0], piece.data(), piece.size())));
  };
  read_all();
  const auto kept = std::ranges::count(read_back, '\n');
  LOG(WARNING) << "somebody reads";
  read_all();
  dup2(before, STDERR_FILENO);
  for (const int fd : {pipe_ends[0], pipe_ends[1], before}) close(fd);
  EXPECT_GT(kept, 10);
  EXPECT_LT(kept, kLines);
  EXPECT_NE(read_back.find("\n" + std::to_string(kLines - kept) + " lines are missing here: "), std::string::npos);
  EXPECT_NE(read_back.find("somebody reads"), std::string::npos);
}

TEST_F(LogLines, SayWhatTheyAreAboutWhateverTheirTextIs) {
  const auto lines = logged([] {
    LOG(WARNING) << about("vgg] failed").rank(3).link("gloo:eth0") << "is slow\nhere";
    LOG(ERROR) << about("vgg") << "ended";
    LOG(INFO) << about("vgg").rank(1) << "is below the log's level";
    LOG(WARNING) << "[vgg] rank 2 is a text";
    LOG(WARNING) << "about nobody";
  });
  ASSERT_EQ(lines.size(), 4);
  EXPECT_EQ(lines[0]["job"], "vgg] failed");
  EXPECT_EQ(lines[0]["rank"], 3);
  EXPECT_EQ(lines[0]["link"], "gloo:eth0");
  EXPECT_EQ(lines[0]["message"], "is slow\nhere");
  EXPECT_EQ(lines[1]["job"], "vgg");
  EXPECT_EQ(lines[1]["level"], "error");
  for (const char* absent : {"rank", "link"}) EXPECT_FALSE(lines[1].contains(absent));
  for (const char* absent : {"job", "rank", "link"}) EXPECT_FALSE(lines[3].contains(absent));
}

}  // namespace
}  // namespace deft::daemon
