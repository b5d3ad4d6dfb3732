// A job's settings: the worker's win over the daemon's, and mistakes are named.
#include "daemon/settings.h"

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

TEST(JobSettings, AWorkerCannotSetWhatIsTheDaemons) {
  const auto settings = job_settings(daemon_config(), "memory_limit=1TB\n");
  ASSERT_FALSE(settings);
  EXPECT_NE(settings.error().what.find("memory_limit"), std::string::npos);
}

}  // namespace
}  // namespace deft::daemon
