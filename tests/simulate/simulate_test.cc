// `deft simulate` as a user calls it: what it prints, the files it writes, and what it says to wrong input.
#include "tools/simulate.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace deft::tools {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

const std::string kVgg = DEFT_TEST_DATA "/vgg19_deft_table2.json";

struct Answer {
  int status;
  std::string out;
  std::string complaint;
};

Answer simulate(const std::vector<std::string>& arguments) {
  testing::internal::CaptureStdout();
  const auto status = run_simulate(arguments);
  const std::string out = testing::internal::GetCapturedStdout();
  if (status) return {*status, out, ""};
  return {status.error().kind == ErrorKind::kInvalid ? kExitUsage : kExitFailed, out, status.error().message()};
}

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text = {})
      : path_(std::filesystem::temp_directory_path() / ("deft-simulate-" + std::to_string(getpid()))) {
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  [[nodiscard]] std::string path() const { return path_.string(); }
  [[nodiscard]] std::string text() const {
    std::stringstream all;
    all << std::ifstream(path_).rdbuf();
    return all.str();
  }

 private:
  std::filesystem::path path_;
};

TEST(Simulate, JsonHasTheFixedFieldsOfEveryPolicy) {
  const auto answer = simulate({kVgg, "--policy", "all", "--links=nccl", "--steps", "40", "--json"});
  ASSERT_EQ(answer.status, 0) << answer.complaint;
  const Json list = Json::parse(answer.out);
  ASSERT_GE(list.size(), 6u);
  EXPECT_EQ(list[0]["policy"], "fifo");
  EXPECT_NEAR(list[0]["step_us"].get<double>(), 285'053, 1);
  for (const auto& row : list)
    for (const auto field : {"step_us", "compute_us", "bubble_us", "updates_per_step", "max_staleness_steps",
                             "period_steps", "solve_us", "bytes_per_step"})
      EXPECT_TRUE(row.at(field).is_number()) << field;
}

Json knapsack_with(const std::vector<std::string>& limits) {
  std::vector<std::string> arguments = {kVgg, "--policy", "knapsack", "--json"};
  arguments.insert(arguments.end(), limits.begin(), limits.end());
  const auto answer = simulate(arguments);
  EXPECT_EQ(answer.status, 0) << answer.complaint;
  return Json::parse(answer.out).at(0);
}

// What DEFT_MAX_STALENESS_STEPS and its kin do in training.
TEST(Simulate, KnapsackKeepsTheLimitsThatAreGiven) {
  const Json free = knapsack_with({});
  EXPECT_GT(free["max_staleness_steps"], 0);
  EXPECT_NEAR(free["bubble_us"].get<double>(), 0, 1e-3);
  for (const std::vector<std::string>& limits :
       {std::vector<std::string>{"--max-staleness-steps", "0"}, {"--slots", "1"}, {"--fresh-wait-percent", "100"}}) {
    const Json fresh = knapsack_with(limits);
    EXPECT_EQ(fresh["max_staleness_steps"], 0) << limits[0];
    EXPECT_EQ(fresh["updates_per_step"], 1.0) << limits[0];
    EXPECT_GT(fresh["step_us"], free["step_us"]) << limits[0];
  }
  EXPECT_EQ(knapsack_with({"--max-staleness-steps", "1"})["max_staleness_steps"], 1);
  EXPECT_GT(knapsack_with({"--max-stale-percent", "10"})["bubble_us"], 0);
  EXPECT_LT(knapsack_with({"--link-reserve-percent", "50"})["updates_per_step"], free["updates_per_step"]);
  const Json training = knapsack_with({"--training-limits"});
  EXPECT_LE(training["max_staleness_steps"], 4);
  EXPECT_EQ(training["step_us"],
            knapsack_with({"--max-staleness-steps", "4", "--fresh-wait-percent", "1", "--slots", "4",
                           "--max-stale-percent", "90", "--link-reserve-percent", "8"})["step_us"]);
  EXPECT_EQ(knapsack_with({"--training-limits", "--max-staleness-steps", "0"})["max_staleness_steps"], 0);
}

TEST(Simulate, SmallPartsPassOnTheLinksThatPriorityChannelNames) {
  const TemporaryFile profile(R"({"model": "m", "buckets": [
      {"name": "small", "bytes": 64, "forward_us": 50, "backward_us": 10},
      {"name": "large", "bytes": 100000, "forward_us": 50, "backward_us": 10}],
      "links": [{"name": "l", "latency_us": 0, "bytes_per_us": 1}]})");
  const auto step_us = [&](std::vector<std::string> more) {
    std::vector<std::string> words{profile.path(), "--policy=bytescheduler", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return Json::parse(simulate(words).out)[0]["step_us"].get<double>();
  };
  EXPECT_DOUBLE_EQ(step_us({}), 100'000 + 64 + 100 + 10);
  EXPECT_DOUBLE_EQ(step_us({"--priority-channel=l"}), 100'000 + 64 + 50 + 10);
}

TEST(Simulate, TheTableNamesPolicyAndTimes) {
  const auto answer = simulate({kVgg, "--policy=usbyte", "--links=nccl"});
  EXPECT_EQ(answer.status, 0);
  EXPECT_THAT(answer.out, HasSubstr("usbyte"));
  EXPECT_THAT(answer.out, HasSubstr("248.24"));
}

TEST(Simulate, EventsAreOneObjectALineOfThreeKinds) {
  const TemporaryFile events;
  ASSERT_EQ(simulate({kVgg, "--policy", "bytescheduler", "--steps", "4", "--events", events.path()}).status, 0);
  std::istringstream lines(events.text());
  std::map<std::string, int> kinds;
  std::map<std::string, std::uint64_t> bytes;  // of generation 0
  for (std::string line; std::getline(lines, line);) {
    const Json event = Json::parse(line);
    EXPECT_EQ(event.at("policy"), "bytescheduler");
    ++kinds[event.at("kind")];
    if (event["kind"] == "send" && event.at("generation") == 0)
      bytes[event.at("bucket")] += event.at("bytes").get<std::uint64_t>();
    if (event["kind"] == "update") {
      EXPECT_EQ(event.at("steps"), Json::array({event.at("generation")}));
    }
  }
  EXPECT_EQ(kinds["compute"], 4 * 12);
  EXPECT_EQ(kinds["update"], 4 * 6);
  EXPECT_EQ(bytes["bucket4"], 414'371'120u);
}

TEST(Simulate, ThePictureIsAnSvgWithEachPolicy) {
  const TemporaryFile picture;
  ASSERT_EQ(simulate({kVgg, "--steps", "20", "--svg", picture.path()}).status, 0);
  EXPECT_THAT(picture.text(), testing::StartsWith("<svg "));
  EXPECT_THAT(picture.text(), HasSubstr(">usbyte<"));
  EXPECT_THAT(picture.text(), testing::EndsWith("</svg>\n"));
}

TEST(Simulate, ANameThatIsMarkupStaysText) {
  const TemporaryFile profile(R"({"model": "<script>", "buckets": [{"name": "a\"&<b>", "bytes": 64, "forward_us": 1,
      "backward_us": 1}], "links": [{"name": "<l>", "latency_us": 0, "bytes_per_us": 1}]})");
  const std::string picture = profile.path() + ".svg";
  ASSERT_EQ(simulate({profile.path(), "--steps", "9", "--policy", "fifo", "--svg", picture}).status, 0);
  std::stringstream text;
  text << std::ifstream(picture).rdbuf();
  std::filesystem::remove(picture);
  EXPECT_THAT(text.str(), testing::Not(HasSubstr("<script>")));
  EXPECT_THAT(text.str(), HasSubstr("&lt;script&gt;"));
}

TEST(Simulate, WrongUsageIsStatusTwoAndNamed) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "no profile"},
      {{kVgg, "--polcy", "fifo"}, "--polcy"},
      {{kVgg, "--steps"}, "--steps needs a value"},
      {{kVgg, "--steps", "-3"}, "'-3'"},
      {{kVgg, "--steps", "1e9"}, "'1e9'"},
      {{kVgg, "--json=yes"}, "--json takes no value"},
      {{kVgg, "--jitter", "nan"}, "'nan'"},
      {{kVgg, "--links", "a,,b"}, "'a,,b'"},
      {{kVgg, "--max-stale-percent", "101"}, "'101'"},
      {{kVgg, "--max-merged-steps", "0"}, "'0'"},
      {{kVgg, "--max-merged-steps", "1025"}, "max_merged_steps is not 1 to 1024"},
      {{kVgg, "--max-staleness-steps", "1025"}, "max_staleness_steps is above 1024"},
      {{kVgg, "--slots", "4294967296"}, "'4294967296'"},
      {{kVgg, "--straggler", "2"}, "second node"},
      {{kVgg, "other.json"}, "other.json"},
  };
  for (const auto& [arguments, words] : cases) {
    const auto answer = simulate(arguments);
    EXPECT_EQ(answer.status, 2) << words;
    EXPECT_THAT(answer.complaint, HasSubstr(words));
  }
}

TEST(Simulate, ValuesThatCannotBeAreStatusTwoAndNamed) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"/nowhere.json"}, "/nowhere.json"},
      {{kVgg, "--policy", "fife"}, "fife"},
      {{kVgg, "--links", "nccl,ib"}, "ib"},
      {{kVgg, "--links", "nccl", "--priority-channel", "gloo"}, "no link 'gloo' is simulated"},
      {{kVgg, "--bucketing", "best"}, "best"},
      {{kVgg, "--bucketing", "uniform:0"}, "uniform:0"},
      {{kVgg, "--policy", "fifo", "--svg", "/nowhere/x.svg"}, "/nowhere/x.svg"},
  };
  for (const auto& [arguments, words] : cases) {
    const auto answer = simulate(arguments);
    EXPECT_EQ(answer.status, 2) << words;
    EXPECT_THAT(answer.complaint, HasSubstr(words));
    EXPECT_EQ(answer.out, "");
  }
}

TEST(Simulate, ABadProfileIsAnErrorThatNamesThePlace) {
  const auto with = [](const std::string& bucket, const std::string& link) {
    return R"({"model": "m", "buckets": [)" + bucket + R"(], "links": [)" + link + "]}";
  };
  const std::string link = R"({"name": "l", "latency_us": 1, "bytes_per_us": 1})";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {with("", link), "buckets"},
      {with(R"({"name": "a", "bytes": 0, "forward_us": 1, "backward_us": 1})", link), "bytes"},
      {with(R"({"name": "a", "bytes": 9, "forward_us": -1, "backward_us": 1})", link), "forward_us"},
      {with(R"({"name": "a", "bytes": 9, "forward_us": 1})", link), "backward_us"},
      {with(R"({"name": "a", "bytes": 9, "forward_us": 1, "backward_us": 1e300})", link), "backward_us"},
      {with(R"({"name": "a", "bytes": 9, "forward_us": 1, "backward_us": 1})", ""), "links"},
      {"{", ""},
  };
  for (const auto& [text, place] : cases) {
    const TemporaryFile profile(text);
    const auto answer = simulate({profile.path()});
    EXPECT_EQ(answer.status, 2) << text;
    EXPECT_THAT(answer.complaint, HasSubstr(place)) << text;
  }
}

}  // namespace
}  // namespace deft::tools
