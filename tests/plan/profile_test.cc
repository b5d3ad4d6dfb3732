#include "core/model/profile.h"

#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "proto/profile.pb.h"

namespace deft::model {
namespace {

const std::string kVgg = std::string(DEFT_PROFILES) + "/vgg19_deft_table2.json";

std::string with(const std::string& buckets, const std::string& links) {
  return R"({"model": "m", "buckets": [)" + buckets + R"(], "links": [)" + links + "]}";
}

const std::string kLink = R"({"name": "nic", "latency_us": 50, "bytes_per_us": 100})";
const std::string kRelative = R"({"name": "nccl", "latency_us": 50, "relative_time": 1})";

std::string bucket(const std::string& fields) { return R"({"name": "b", )" + fields + "}"; }

TEST(Profile, readsThePapersTable) {
  const auto profile = read_profile(kVgg);
  ASSERT_TRUE(profile) << profile.error().message();
  EXPECT_EQ(profile->buckets.size(), 6U);
  EXPECT_DOUBLE_EQ(profile->compute_us(), 37166 + 93119);
  EXPECT_NEAR(profile->comm_us(3, 1), 178643 * 1.65, 1e-6);
  // Two halves cost one more latency than the whole.
  const auto half = profile->buckets[3].bytes / 2;
  EXPECT_NEAR(profile->comm_us(3, 0, half) * 2, 178643 + 50, 1e-6);
}

TEST(Profile, isTheJsonOfTheProtobufMessage) {
  std::ifstream in(kVgg);
  std::stringstream text;
  text << in.rdbuf();
  deft::Profile message;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(text.str(), &message).ok());
  std::string camel;
  ASSERT_TRUE(google::protobuf::util::MessageToJsonString(message, &camel).ok());
  const auto direct = parse_profile(text.str());
  const auto through = parse_profile(camel);  // camelCase, and 64-bit numbers as strings
  ASSERT_TRUE(direct && through) << through.error().message();
  EXPECT_EQ(to_json(*direct), to_json(*through));
}

TEST(Profile, writesWhatItReads) {
  const auto profile = read_profile(kVgg);
  const auto again = parse_profile(to_json(*profile));
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(to_json(*profile), to_json(*again));
}

TEST(Profile, aLinksOwnModelGivesTheTimesThatAreMissing) {
  const auto profile = parse_profile(with(bucket(R"("bytes": 1000, "forward_us": 1, "backward_us": 2)"), kLink));
  ASSERT_TRUE(profile) << profile.error().message();
  EXPECT_DOUBLE_EQ(profile->comm_us(0, 0), 60);
  EXPECT_DOUBLE_EQ(profile->link_model(0).bytes_per_us, 100);
}

// Parameter servers take more of an encoding's time than other links.
TEST(Profile, aCodecMayTakeMoreOnSomeLinks) {
  const std::string codecs = R"("codecs": [{"name": "none", "wire_share": 1},
      {"name": "int8", "wire_share": 0.25, "link_shares": [0.25, 0.5]}], )";
  const std::string text = "{" + codecs +
                           with(bucket(R"("bytes": 1000, "forward_us": 1, "backward_us": 2)"),
                                kLink + R"(, {"name": "ps", "latency_us": 50, "bytes_per_us": 100})")
                               .substr(1);
  const auto profile = parse_profile(text);
  ASSERT_TRUE(profile) << profile.error().message();
  EXPECT_DOUBLE_EQ(profile->cost(0, 0, 1).us_per_byte, 0.0025);
  EXPECT_DOUBLE_EQ(profile->cost(0, 1, 1).us_per_byte, 0.005);
  EXPECT_DOUBLE_EQ(profile->cost(0, 1, 0).us_per_byte, 0.01);
  const auto again = parse_profile(to_json(*profile));
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(again->codecs, profile->codecs);
  deft::Profile message;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(text, &message).ok());
  EXPECT_DOUBLE_EQ(with_links(*profile, {"ps"})->cost(0, 0, 1).us_per_byte, 0.005);
  auto bad = *profile;
  bad.codecs[1].link_shares.pop_back();
  EXPECT_EQ(check_profile(bad).error().what, "codecs[1].link_shares: are not as many as links");
  bad.codecs[1].link_shares = {0.25, 0};
  EXPECT_FALSE(check_profile(bad));
  for (const char* const wrong : {"0.5", "[[0.5, 0.5]]", "[\"a\", \"b\"]", "{}", "[0.25, {}]", "[0.25, 0.25"}) {
    std::string broken = text;
    broken.replace(broken.find("[0.25, 0.5]"), 11, wrong);
    EXPECT_FALSE(parse_profile(broken)) << wrong;
  }
}

// int8 makes 0.25 of float32, and so twice as much of what has two bytes. bf16 saves nothing of that.
TEST(Profile, aCodecSavesLessOfHalves) {
  const std::string text = R"({"codecs": [{"name": "none", "wire_share": 1}, {"name": "bf16", "wire_share": 0.5},
      {"name": "int8", "wire_share": 0.25, "encode_us_per_byte": 0.001}], )" +
                           with(bucket(R"("bytes": 1000, "forward_us": 1, "backward_us": 2, "coded_bytes": 800,
                                       "element_bytes": 2)"),
                                kLink)
                               .substr(1);
  const auto profile = parse_profile(text);
  ASSERT_TRUE(profile) << profile.error().message();
  EXPECT_DOUBLE_EQ(profile->cost(0, 0, 1).us_per_byte, 0.01);
  EXPECT_DOUBLE_EQ(profile->cost(0, 0, 2).us_per_byte, 0.01 * (0.2 + 0.8 * 0.5));
  EXPECT_EQ(profile->codecs[2].wire_bytes(profile->buckets[0].coded_share(), 1000, 0), 600U);
  EXPECT_DOUBLE_EQ(profile->codecs[2].thread_us_per_byte(profile->buckets[0].coded_share()), 0.8 * 2 * 0.001);
  const auto again = parse_profile(to_json(*profile));
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(to_json(*again), to_json(*profile));
  deft::Profile message;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(text, &message).ok());
  EXPECT_EQ(message.buckets(0).element_bytes(), 2U);
  auto bad = *profile;
  bad.buckets[0].element_bytes = 8;
  EXPECT_EQ(check_profile(bad).error().what, "buckets[0].element_bytes: 8 is neither 2 nor 4");
}

TEST(Profile, choosesLinksByName) {
  const auto profile = read_profile(kVgg);
  EXPECT_EQ(with_links(*profile, {"gloo"})->links.front().name, "gloo");
  EXPECT_NE(with_links(*profile, {"mpi"}).error().message().find("no link 'mpi'"), std::string::npos);
  EXPECT_FALSE(with_links(*profile, {"gloo", "gloo"}));
  EXPECT_FALSE(with_links(*profile, {}));
}

struct Bad {
  std::string text;
  std::string says;
};

class BadProfile : public testing::TestWithParam<Bad> {};

TEST_P(BadProfile, namesThePlaceAtFault) {
  const auto profile = parse_profile(GetParam().text);
  ASSERT_FALSE(profile) << GetParam().text;
  EXPECT_NE(profile.error().message().find(GetParam().says), std::string::npos)
      << GetParam().text << "\nsays: " << profile.error().message();
}

const std::string kGood = R"("bytes": 8, "forward_us": 1, "backward_us": 2, "comm_us": 3)";

INSTANTIATE_TEST_SUITE_P(
    All, BadProfile,
    testing::Values(
        Bad{"", "not valid JSON at byte"}, Bad{"{", "not valid JSON at byte"}, Bad{"[]", "list"}, Bad{"3", "number"},
        Bad{"{}", "buckets: missing"}, Bad{"{} {}", "missing"},
        Bad{with(bucket(kGood), kRelative) + "x", "not valid JSON"}, Bad{with("", kLink), "buckets: there are none"},
        Bad{with(bucket(kGood), ""), "links: there are none"},
        Bad{with(bucket(R"("bytes": 8, "forward_us": -1, "backward_us": 2, "comm_us": 3)"), kLink),
            "buckets[0].forward_us: -1 is negative"},
        Bad{with(bucket(kGood) + "," + bucket(kGood), kLink), "buckets[1].name: 'b' is there twice"},
        Bad{with(bucket(kGood), kRelative + "," + kRelative), "links[1].name: 'nccl' is there twice"},
        Bad{with(bucket(R"("bytes": 0, "forward_us": 1, "backward_us": 2, "comm_us": 3)"), kLink),
            "buckets[0].bytes: a bucket of zero bytes"},
        Bad{with(bucket(R"("bytes": -8, "forward_us": 1, "backward_us": 2)"), kLink),
            "buckets[0].bytes: -8 is negative"},
        Bad{with(bucket(R"("bytes": 1.5, "forward_us": 1, "backward_us": 2)"), kLink),
            "buckets[0].bytes: 1.5 is no whole number"},
        Bad{with(bucket(R"("bytes": "8 kB", "forward_us": 1, "backward_us": 2)"), kLink), "buckets[0].bytes: '8 kB'"},
        Bad{with(bucket(R"("bytes": 9999999999999999999, "forward_us": 1, "backward_us": 2)"), kLink),
            "buckets[0].bytes: 9999999999999999999 is more than 4 TiB"},
        Bad{with(bucket(R"("bytes": 8, "forward_us": 1e999, "backward_us": 2)"), kLink),
            "buckets[0].forward_us: 1e999 is no finite number"},
        Bad{with(bucket(R"("bytes": 8, "forward_us": NaN, "backward_us": 2)"), kLink),
            "buckets[0].forward_us: not valid"},
        Bad{with(bucket(R"("bytes": 8, "forward_us": 1e15, "backward_us": 2)"), kLink),
            "buckets[0].forward_us: 1e+15 is absurdly large"},
        Bad{with(bucket(R"("bytes": 8, "forward_us": "1", "backward_us": 2)"), kLink), "buckets[0].forward_us: a text"},
        Bad{with(bucket(R"("bytes": 8, "forward_us": null, "backward_us": 2)"), kLink), "buckets[0].forward_us: null"},
        Bad{with(bucket(R"("bytes": 8, "forward_us": [1], "backward_us": 2)"), kLink), "buckets[0].forward_us: a list"},
        Bad{with(bucket(R"("bytes": 8, "forward_us": 1, "forward_us": 1, "backward_us": 2)"), kLink),
            "buckets[0].forward_us: is there twice"},
        Bad{with(bucket(R"("bytes": 8, "forward_us": 1, "forwardUs": 1, "backward_us": 2)"), kLink),
            "buckets[0].forward_us: is there twice"},
        Bad{with(bucket(R"("bytes": 8, "forward_us": 1)"), kLink), "buckets[0].backward_us: missing"},
        Bad{with(bucket(R"("bytes": 8, "forward_us": 1, "backward_us": 1, "speed": 2)"), kLink),
            "buckets[0].speed: unknown field"},
        Bad{R"({"bucket": []})", "bucket: unknown field"},
        Bad{with(R"({"bytes": 8, "forward_us": 1, "backward_us": 1})", kLink), "buckets[0].name: missing"},
        Bad{with(R"({"name": "", "bytes": 8, "forward_us": 1, "backward_us": 1})", kLink), "buckets[0].name: missing"},
        Bad{with(bucket(R"("bytes": 8, "forward_us": 0, "backward_us": 0)"), kLink), "all forward and backward times"},
        Bad{with(bucket(R"("bytes": 8, "forward_us": 1, "backward_us": 1)"), kRelative), "buckets[0].comm_us: missing"},
        Bad{with(bucket(kGood), R"({"name": "l", "latency_us": 1})"), "links[0]: has neither"},
        Bad{with(bucket(kGood), R"({"name": "l", "latency_us": 1, "bytes_per_us": 1, "relative_time": 1})"),
            "links[0]: has both"},
        Bad{with(bucket(kGood), R"({"name": "l", "latency_us": 1, "bytes_per_us": 0})"), "links[0].bytes_per_us: 0"},
        Bad{with(bucket(kGood), R"({"name": "l", "latency_us": -1, "bytes_per_us": 1})"), "links[0].latency_us: -1"},
        Bad{with(bucket(kGood), "7"), "links[0]: a number"}, Bad{R"({"model": 7})", "model: a number"},
        Bad{std::string(100000, '['), "a list is no value here"}));

}  // namespace
}  // namespace deft::model
