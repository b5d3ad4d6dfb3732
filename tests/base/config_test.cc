#include "core/base/config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <set>

namespace deft {
namespace {

using Words = std::vector<std::string>;

class File {
 public:
  explicit File(const std::string& text) { std::ofstream(path_) << text; }
  ~File() { std::remove(path_.c_str()); }
  [[nodiscard]] std::string flag() const { return "--flag-file=" + path_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_ = testing::TempDir() + "config_test." + std::to_string(getpid());
};

std::string refusal(const Words& flags, const Words& variables, Audience audience = Audience::kDaemon) {
  const auto config = Config::load(flags, variables, audience);
  if (config) return "accepted";
  EXPECT_EQ(config.error().kind, ErrorKind::kInvalid);
  return config.error().message();
}

void expect_words(const std::string& text, const Words& words) {
  for (const auto& word : words) EXPECT_NE(text.find(word), std::string::npos) << text;
}

TEST(Config, AFlagWinsOverAVariableAVariableOverTheFileTheFileOverTheDefault) {
  const File file("timeout = 3s\n# a comment\njob = run#1\nbucket-bytes = 5MB # another\ncredit_bytes = 6MB\n");
  const Words flags{"--timeout=1s", file.flag()}, variables{"DEFT_TIMEOUT=2s", "DEFT_BUCKET_BYTES=4MB"};
  const auto config = Config::load(flags, variables, Audience::kDaemon);
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->seconds_us("timeout"), 1'000'000);
  EXPECT_EQ(config->source("timeout"), ConfigSource::kFlag);
  EXPECT_EQ(config->bytes("bucket_bytes"), 4U << 20);
  EXPECT_EQ(config->source("bucket_bytes"), ConfigSource::kVariable);
  EXPECT_EQ(config->bytes("credit_bytes"), 6U << 20);
  EXPECT_EQ(config->source("credit_bytes"), ConfigSource::kFile);
  EXPECT_EQ(config->bytes("partition_bytes"), 1U << 20);
  EXPECT_EQ(config->source("partition_bytes"), ConfigSource::kDefault);
  EXPECT_EQ(config->text("job"), "run#1");
}

TEST(Config, AnEmptyValueIsTheDefault) {
  const Config plain;
  Words flags;
  for (const OptionSpec& option : option_table())
    if ((static_cast<unsigned>(option.audience) & static_cast<unsigned>(Audience::kDaemon)) != 0)
      flags.push_back("--" + std::string(option.name) + "=");
  const auto config = Config::load(flags, {}, Audience::kDaemon);
  ASSERT_TRUE(config) << config.error().message();
  for (const OptionSpec& option : option_table()) {
    EXPECT_EQ(config->text(option.name), option.default_value) << option.name;
    EXPECT_EQ(config->number(option.name), plain.number(option.name)) << option.name;
  }
}

TEST(Config, AnEmptyVariableIsNotSet) {
  Words variables;
  for (const OptionSpec& option : option_table()) {
    std::string name(option.name);
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::toupper(c); });
    variables.push_back("DEFT_" + name + (variables.size() % 2 == 0 ? "=" : "= "));
  }
  EXPECT_EQ(Config::load({}, variables, Audience::kDaemon)->effective(), "all defaults");
  const File file("policy = fifo\nsecret_file = /etc/deft/key\n");
  const auto config = Config::load(Words{file.flag()}, variables, Audience::kDaemon);
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->text("policy"), "fifo") << "a worker that sends its empty variable would win over the file";
  EXPECT_EQ(config->text("secret_file"), "/etc/deft/key");
  EXPECT_EQ(config->source("timeout"), ConfigSource::kDefault);
  expect_words(refusal({}, {"DEFT_POLICI="}), {"DEFT_POLICI", "did you mean DEFT_POLICY?"});
}

TEST(Config, TheFileMayBeNamedByAVariable) {
  const File file("policy = p3\n");
  const auto config = Config::load({}, Words{"DEFT_FLAG_FILE=" + file.path()}, Audience::kWorker);
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->text("policy"), "p3");
}

TEST(Config, TheLogsFirstLineTellsWhatWasSetAndWhere) {
  EXPECT_EQ(Config::load({}, {}, Audience::kDaemon)->effective(), "all defaults");
  const auto config = Config::load(Words{"--timeout=3s"}, Words{"DEFT_POLICY=p3"}, Audience::kDaemon);
  EXPECT_EQ(config->effective(), "policy=p3 (variable) timeout=3s (flag)");
  const std::vector<std::string> token{"DEFT_JOB_TOKEN=secret"};
  EXPECT_EQ(Config::load({}, token, Audience::kDaemon)->effective(), "job_token=*** (variable)");
}

TEST(Config, MistakesSuggestWhatWasMeant) {
  expect_words(refusal({"--bucket-byte=1MB"}, {}), {"--bucket-byte", "did you mean --bucket-bytes?"});
  expect_words(refusal({}, {"DEFT_POLICI=p3"}), {"DEFT_POLICI", "did you mean DEFT_POLICY?"});
  expect_words(refusal({"--policy=fife"}, {}), {"'fife'", "did you mean fifo?"});
  expect_words(refusal({"--timeout=0.01s"}, {}), {"--timeout", "out of range"});
  expect_words(refusal({"--bucket-bytes=many"}, {}), {"'many'", "a size"});
  const File file("\ntimeuot = 3s\n");
  expect_words(refusal({file.flag()}, {}), {":2", "timeuot", "did you mean timeout?"});
}

TEST(Config, ANumberMayBeSwitchedOff) {
  EXPECT_EQ(Config::load({}, Words{"DEFT_PRESERVER=off"}, Audience::kDaemon)->text("preserver"), "off");
  expect_words(refusal({}, {"DEFT_PRESERVER=on"}), {"DEFT_PRESERVER", "'on' is not a number, or off"});
  expect_words(refusal({}, {"DEFT_PRESERVER=0"}), {"out of range", "between 1e-06 and 1"});
}

TEST(Config, ALimitOfAUserThatIsNotNamedHasItsDefault) {
  const auto limits = [](const std::string& text) {
    return Config::load({}, Words{"DEFT_USER_LIMITS=" + text}, Audience::kDaemon).value();
  };
  for (const auto& spec : user_limit_table())
    EXPECT_EQ(limits("").user_limit(spec.name), Config().user_limit(spec.name)) << spec.name;
  EXPECT_EQ(Config().user_limit("jobs"), 256u);
  EXPECT_EQ(Config().user_limit("names"), 1u << 30);
  const Config some = limits(" jobs = 8 , memory=4GB");
  EXPECT_EQ(some.user_limit("jobs"), 8u);
  EXPECT_EQ(some.user_limit("memory"), 4ULL << 30);
  EXPECT_EQ(some.user_limit("sessions"), 4096u);
}

TEST(Config, AMistakeInTheLimitsOfAUserIsNamed) {
  const auto said = [](const std::string& text) { return refusal({"--user-limits=" + text}, {}); };
  expect_words(said("job=8"), {"--user-limits", "'job' is no limit", "did you mean jobs?"});
  expect_words(said("jobs=8,colour=3"), {"'colour' is no limit", "the limits are sessions, jobs, descriptors"});
  expect_words(said("jobs=8,"), {"'' is no limit"});
  expect_words(said("jobs"), {"jobs has no value", "jobs=NUMBER"});
  expect_words(said("jobs=0"), {"jobs: 0 is out of range", "at least 1"});
  expect_words(said("jobs=many"), {"jobs: 'many' is not a whole number"});
  expect_words(said("store=1KB"), {"store: 1KB is out of range", "at least 65536"});
  expect_words(said("memory=lots"), {"memory: 'lots' is not a size"});
  expect_words(said("jobs=1,jobs=2"), {"jobs stands there twice"});
}

TEST(Config, AFlagForAnotherProgramIsAnErrorAndAVariableIsNot) {
  expect_words(refusal({"--memory-limit=1GB"}, {}, Audience::kWorker), {"--memory-limit", "not read here"});
  EXPECT_TRUE(Config::load({}, Words{"DEFT_MEMORY_LIMIT=1GB"}, Audience::kWorker));
}

TEST(Config, ARenamedOptionNamesTheNewOne) {
  expect_words(refusal({}, {"DEFT_MAX_LATE_PERCENT=50"}), {"DEFT_MAX_LATE_PERCENT", "DEFT_MAX_STALE_PERCENT"});
  expect_words(refusal({}, {"DEFT_PRESERVER_EPSILON=0.1"}), {"say DEFT_PRESERVER instead"});
  expect_words(refusal({"--max-late-percent=50"}, {}), {"--max-late-percent", "--max-stale-percent"});
  const File file("max_late_percent = 50\n");
  expect_words(refusal({file.flag()}, {}), {":1", "max_late_percent", "max_stale_percent"});
}

TEST(Config, ARemovedOptionSaysWhatToDoInstead) {
  expect_words(refusal({}, {"DEFT_SLOTS=8"}), {"DEFT_SLOTS is no option any more", "4 generations"});
  expect_words(refusal({}, {"DEFT_FRESH_WAIT_PERCENT=0"}), {"1 percent"});
  expect_words(refusal({"--link-reserve-percent=2"}, {}), {"8 percent"});
  expect_words(refusal({"--role=server"}, {}), {"deftd server"});
  expect_words(refusal({}, {"DEFT_READY_FD=5"}), {"--ready-fd"});
  expect_words(refusal({"--stop-timeout=5s"}, {}), {"--stop-timeout", "deft drain"});
  const File file("user_jobs = 8\n");
  expect_words(refusal({file.flag()}, {}), {":1", "user_jobs is no option", "jobs=NUMBER in the option user_limits"});
}

TEST(Config, NoOptionIsRetiredAndInTheTable) {
  std::set<std::string_view> names;
  for (const auto& spec : option_table()) EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
  for (const auto& retired : retired_options()) {
    EXPECT_FALSE(names.contains(retired.name)) << retired.name;
    EXPECT_NE(retired.renamed_to.empty(), retired.instead.empty()) << retired.name;
    EXPECT_TRUE(retired.renamed_to.empty() || names.contains(retired.renamed_to)) << retired.name;
  }
}

TEST(Config, TheLaunchersVariablesAreNoOptions) {
  const Words variables{"DEFT_RANK=1", "DEFT_WORLD_SIZE=2", "DEFT_LOCAL_RANK=0", "DEFT_LOCAL_SIZE=1"};
  EXPECT_EQ(Config::load({}, variables, Audience::kDaemon)->effective(), "all defaults");
  expect_words(refusal({"--rank=1"}, {}), {"unknown option --rank"});
}

}  // namespace
}  // namespace deft
