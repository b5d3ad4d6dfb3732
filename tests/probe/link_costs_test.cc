// What deft probe has written down is what the planner starts from, and nonsense is named.
#include "core/model/link_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deft::model {
namespace {

using ::testing::HasSubstr;

TEST(LinkCosts, AreThoseOfTheProbesList) {
  const auto costs = parse_link_costs(R"({"nodes": [], "profile_links": [
      {"name": "gloo:eth0", "latency_us": 80.5, "bytes_per_us": 117},
      {"name": "mpi:eth1", "latency_us": 0, "bytes_per_us": 1e3}]})");
  ASSERT_TRUE(costs) << costs.error().message();
  ASSERT_EQ(costs->size(), 2U);
  const LinkModel* gloo = find_cost(*costs, "gloo:eth0");
  ASSERT_NE(gloo, nullptr);
  EXPECT_EQ(gloo->latency_us, 80.5);
  EXPECT_EQ(gloo->bytes_per_us, 117);
  EXPECT_EQ(find_cost(*costs, "mpi:eth1")->bytes_per_us, 1000);
  EXPECT_EQ(find_cost(*costs, "gloo:eth1"), nullptr);
}

TEST(LinkCosts, SayWhatIsWrong) {
  const auto error = [](const std::string& entries) {
    const auto costs = parse_link_costs(R"({"profile_links": [)" + entries + "]}");
    return costs ? std::string("taken") : costs.error().message();
  };
  EXPECT_THAT(error("3"), HasSubstr("profile_links[0] is no object"));
  EXPECT_THAT(error(R"({"latency_us": 1, "bytes_per_us": 1})"), HasSubstr("profile_links[0].name is missing"));
  const std::string good = R"({"name": "a", "latency_us": 1, "bytes_per_us": 1})";
  EXPECT_THAT(error(good + "," + good), HasSubstr("names a twice"));
  for (const char* latency : {"-1", "\"1\"", "null", "1e300"})
    EXPECT_THAT(error(good + R"(,{"name": "b", "bytes_per_us": 1, "latency_us": )" + latency + "}"),
                HasSubstr("profile_links[1].latency_us is no time"));
  for (const char* throughput : {"0", "-5", "true", "1e300"})
    EXPECT_THAT(error(R"({"name": "b", "latency_us": 1, "bytes_per_us": )" + std::string(throughput) + "}"),
                HasSubstr("profile_links[0].bytes_per_us is no throughput"));
  for (const char* text : {"", "[]", "{}", "{\"profile_links\": {}}", "{\"profile_links\": ["}) {
    const auto costs = parse_link_costs(text);
    ASSERT_FALSE(costs) << text;
    EXPECT_THAT(costs.error().message(), HasSubstr("deft probe --output"));
  }
}

TEST(LinkCosts, AFileThatIsNotThereIsNamed) {
  const auto costs = read_link_costs("/nowhere/probe.json");
  ASSERT_FALSE(costs);
  EXPECT_THAT(costs.error().message(), HasSubstr("/nowhere/probe.json"));
}

TEST(LinkCosts, AFolderOrADeviceInPlaceOfAFileIsNamed) {
  for (const char* path : {"/", "/dev/zero"}) {
    const auto costs = read_link_costs(path);
    ASSERT_FALSE(costs) << path;
    EXPECT_THAT(costs.error().message(), HasSubstr("cannot read the links' costs from " + std::string(path)));
  }
}

}  // namespace
}  // namespace deft::model
