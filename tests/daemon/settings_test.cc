// A job's settings: the worker's win over the daemon's, and mistakes are named.
#include "daemon/base/settings.h"

#include <gtest/gtest.h>

namespace deft::daemon {
namespace {

Config daemon_config() {
  const std::vector<std::string> flags{"--bucket-bytes=3MB", "--timeout=7s"};
  return Config::load(flags, {}, Audience::kDaemon).value();
}

TEST(JobSettings, TheWorkersWinOverTheDaemons) {
  const auto settings = job_settings(daemon_config(), "policy=bytescheduler\nbucket_bytes=1MB\n");
  ASSERT_TRUE(settings) << settings.error().message();
  EXPECT_EQ(settings->policy, "bytescheduler");
  EXPECT_EQ(settings->options.bytes("bucket_bytes"), 1u << 20);
  EXPECT_EQ(settings->timeout_us, 7'000'000);
}

TEST(JobSettings, KnowWhatNobodyHasSet) {
  const auto settings = job_settings(daemon_config(), "partition_bytes=1MB\n");
  ASSERT_TRUE(settings) << settings.error().message();
  EXPECT_EQ(settings->options.source("partition_bytes"), ConfigSource::kFlag) << "though it is the default";
  EXPECT_EQ(settings->options.source("bucket_bytes"), ConfigSource::kFlag) << "by the daemon";
  EXPECT_EQ(settings->options.source("credit_bytes"), ConfigSource::kDefault);
}

TEST(JobSettings, AnUnknownPolicyIsNamedWithASuggestion) {
  EXPECT_EQ(job_settings(daemon_config(), "policy=\n").value().policy, daemon_config().text("policy")) << "the default";
  const auto settings = job_settings(daemon_config(), "policy=bytesheduler\n");
  ASSERT_FALSE(settings);
  EXPECT_NE(settings.error().message().find("did you mean bytescheduler?"), std::string::npos)
      << settings.error().message();
}

TEST(JobSettings, APlanIsReadAndMustFitThePolicy) {
  const auto settings = job_settings(daemon_config(), "policy=knapsack\nplan=0-1@3\n");
  ASSERT_TRUE(settings) << settings.error().message();
  ASSERT_TRUE(settings->plan);
  EXPECT_EQ(settings->plan->usual.period_steps, 2u);
  EXPECT_EQ(settings->agreed().at("plan"), "0-1@3");
  const auto wrong = job_settings(daemon_config(), "policy=knapsack\nplan=0-1@1\n");
  ASSERT_FALSE(wrong);
  EXPECT_NE(wrong.error().message().find("option plan"), std::string::npos) << wrong.error().message();
  const auto other = job_settings(daemon_config(), "policy=fifo\nplan=0-1@3\n");
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message().find("not for fifo"), std::string::npos) << other.error().message();
}

TEST(JobSettings, ThePreserverHasABoundThatIsAShare) {
  const auto preserver = [](const std::string& value) {
    return job_settings(daemon_config(), "preserver=" + value + "\n");
  };
  EXPECT_DOUBLE_EQ(preserver("0.025").value().options.number("preserver"), 0.025);
  EXPECT_DOUBLE_EQ(preserver("").value().options.number("preserver"), 0.01) << "the default";
  EXPECT_EQ(preserver("off").value().options.text("preserver"), "off");
  EXPECT_NE(preserver("off").value().agreed(), preserver("0.025").value().agreed());
  for (const char* wrong : {"0", "1.5", "-0.1", "nan", "some", "on"}) {
    const auto refused = preserver(wrong);
    ASSERT_FALSE(refused) << wrong;
    EXPECT_NE(refused.error().message().find("preserver"), std::string::npos) << refused.error().message();
  }
}

TEST(JobSettings, NodesAgreeOnValuesAndNotOnTheirSpelling) {
  const auto agreed = [](const std::string& lines) { return job_settings(daemon_config(), lines).value().agreed(); };
  EXPECT_EQ(agreed("partition_bytes=1MB\n"), agreed("partition_bytes=1024KB\n"));
  EXPECT_EQ(agreed("preserver=0.10\n"), agreed("preserver=0.1\n"));
  EXPECT_NE(agreed("partition_bytes=1MB\n"), agreed("partition_bytes=2MB\n"));
  EXPECT_EQ(agreed("compression=topk\n"), agreed("compression=topk/ratio=0.01\n"));
  EXPECT_NE(agreed("compression=topk\n"), agreed("compression=topk/ratio=0.02\n"));
  EXPECT_EQ(agreed(""), agreed("compression=none\n"));
  const std::string plans = "policy=knapsack\n";
  EXPECT_EQ(agreed(plans), agreed(plans + "compression=auto/max=int8\n"));
  EXPECT_EQ(agreed(plans), agreed(plans + "compression=auto\n"));
  EXPECT_NE(agreed(plans), agreed(plans + "compression=int8\n"));
  EXPECT_NE(agreed(plans), agreed(plans + "compression=none\n"));
}

TEST(JobSettings, EveryOptionThatNodesMustAgreeOnIsCompared) {
  const auto base = job_settings(daemon_config(), "").value().agreed();
  const std::map<std::string, std::string> others = {{"policy", "knapsack"},
                                                     {"bucketing", "ddp"},
                                                     {"bucket_bytes", "9MB"},
                                                     {"partition_bytes", "9MB"},
                                                     {"credit_bytes", "9MB"},
                                                     {"max_staleness_steps", "9"},
                                                     {"max_merged_steps", "9"},
                                                     {"max_stale_percent", "9"},
                                                     {"scale_merged_lr", "on"},
                                                     {"preserver", "off"},
                                                     {"plan", "0@1"},
                                                     {"compression", "int8"},
                                                     {"compression_min_bytes", "9MB"},
                                                     {"merge_groups", "exact"},
                                                     {"encrypt_gradients", "on"}};
  EXPECT_EQ(others.size(), base.size());
  for (const auto& [name, value] : others) {
    const std::string policy = name == "plan" ? "policy=knapsack\n" : "";
    const auto settings = job_settings(daemon_config(), policy + name + "=" + value + "\n");
    ASSERT_TRUE(settings) << settings.error().message();
    EXPECT_NE(settings->agreed().at(name), base.at(name)) << name;
  }
  // Nodes have NICs of other names, and the timeouts are each node's own.
  EXPECT_EQ(job_settings(daemon_config(), "links=gloo:eth7\ntimeout=9s\n").value().agreed(), base);
}

TEST(JobSettings, AWorkerCannotSetWhatIsTheDaemons) {
  const auto settings = job_settings(daemon_config(), "memory_limit=1TB\n");
  ASSERT_FALSE(settings);
  EXPECT_NE(settings.error().what.find("memory_limit"), std::string::npos);
}

}  // namespace
}  // namespace deft::daemon
