#include "core/base/policy_traits.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "core/base/config.h"

namespace deft {
namespace {

TEST(PolicyTraits, EachPolicyHasOneRow) {
  std::set<std::string_view> names;
  std::set<PolicyId> ids;
  for (const auto& traits : kPolicyTraits) {
    EXPECT_TRUE(names.insert(traits.name).second) << traits.name;
    EXPECT_TRUE(ids.insert(traits.id).second) << traits.name;
    EXPECT_EQ(find_policy(traits.name), &traits);
  }
  EXPECT_EQ(find_policy("fife"), nullptr);
  EXPECT_EQ(find_policy(""), nullptr);
}

TEST(PolicyTraits, TheOptionOffersWhatTrainingCanRun) {
  for (const auto& traits : kPolicyTraits) {
    const std::vector<std::string> flag{"--policy=" + std::string(traits.name)};
    EXPECT_EQ(Config::load(flag, {}, Audience::kDaemon).has_value(), !traits.simulator_only) << traits.name;
  }
}

}  // namespace
}  // namespace deft
