// What a line of the log says of itself as JSON.
#include "daemon/base/log_lines.h"

#include <glog/logging.h>
#include <gtest/gtest.h>

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

TEST(LogLines, SayWhatTheyAreAboutWhateverTheirTextIs) {
  start_logging(
      Config::load(std::vector<std::string>{"--log-format=json", "--log-level=warning"}, {}, Audience::kDaemon)
          .value());
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
