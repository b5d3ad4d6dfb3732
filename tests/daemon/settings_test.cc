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
  EXPECT_EQ(settings->bucket_bytes, 1u << 20);
  EXPECT_EQ(settings->timeout_us, 7'000'000);
}

TEST(JobSettings, AnUnknownPolicyIsNamedWithASuggestion) {
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
  const auto settings = job_settings(daemon_config(), "preserver=off\npreserver_epsilon=0.025\n");
  ASSERT_TRUE(settings) << settings.error().message();
  EXPECT_FALSE(settings->preserver);
  EXPECT_DOUBLE_EQ(settings->preserver_epsilon, 0.025);
  EXPECT_NE(settings->agreed(), job_settings(daemon_config(), "").value().agreed());
  for (const char* wrong : {"0", "1.5", "-0.1", "nan", "some"}) {
    const auto refused = job_settings(daemon_config(), std::string("preserver_epsilon=") + wrong + "\n");
    ASSERT_FALSE(refused) << wrong;
    EXPECT_NE(refused.error().message().find("preserver_epsilon"), std::string::npos) << refused.error().message();
  }
}

TEST(JobSettings, AWorkerCannotSetWhatIsTheDaemons) {
  const auto settings = job_settings(daemon_config(), "memory_limit=1TB\n");
  ASSERT_FALSE(settings);
  EXPECT_NE(settings.error().what.find("memory_limit"), std::string::npos);
}

}  // namespace
}  // namespace deft::daemon
