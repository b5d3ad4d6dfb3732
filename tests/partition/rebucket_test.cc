// Other buckets for a profile: nothing is lost or invented, and the strategies that look at times do what they promise.
#include "core/partition/rebucket.h"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <set>

namespace deft::partition {
namespace {

using model::Profile;

Profile random_profile() {
  Profile profile;
  profile.model = "random";
  const auto buckets = *rc::gen::inRange(1, 40);
  for (int i = 0; i < buckets; ++i) {
    const auto bytes = *rc::gen::inRange<std::uint64_t>(1, 1ull << *rc::gen::inRange(1, 30));
    profile.buckets.push_back(
        {"b" + std::to_string(i), bytes, *rc::gen::inRange(1, 5000) * 1.0, *rc::gen::inRange(1, 9000) * 1.0, {}});
    if (*rc::gen::arbitrary<bool>())
      profile.buckets.back().coded_bytes = *rc::gen::inRange<std::uint64_t>(0, bytes + 1);
  }
  const auto halves = *rc::gen::inRange(0, 3);  // the buckets of half the width lie together, at either end or nowhere
  const auto border = *rc::gen::inRange(0, buckets);
  for (int i = 0; i < buckets; ++i)
    if (halves > 0 && (i < border) == (halves == 1)) profile.buckets[static_cast<std::size_t>(i)].element_bytes = 2;
  const auto links = *rc::gen::inRange(1, 4);
  for (int i = 0; i < links; ++i)
    profile.links.push_back(
        {"l" + std::to_string(i), *rc::gen::inRange(0, 2000) * 1.0, {}, *rc::gen::inRange(1, 20000) * 1.0});
  return profile;
}

std::string any_bucketing() {
  const auto name = *rc::gen::element<std::string>("profile", "ddp", "mgwfbp", "usbyte", "deft", "uniform");
  return name == "uniform" ? "uniform:" + std::to_string(*rc::gen::inRange<std::uint64_t>(1 << 16, 1 << 28)) : name;
}

std::uint64_t total_bytes(const Profile& profile) {
  std::uint64_t bytes = 0;
  for (const auto& bucket : profile.buckets) bytes += bucket.bytes;
  return bytes;
}

// The bytes that a codec may encode, of elements of this width.
std::uint64_t coded_bytes(const Profile& profile, std::uint64_t element_bytes) {
  std::uint64_t bytes = 0;
  for (const auto& bucket : profile.buckets)
    if (bucket.element_bytes == element_bytes) bytes += bucket.coded_bytes.value_or(bucket.bytes);
  return bytes;
}

RC_GTEST_PROP(Rebucket, KeepsAllBytesAndAllTimes, ()) {
  const auto before = random_profile();
  const auto name = any_bucketing();
  const auto after = rebucket(before, name);
  RC_ASSERT(after.has_value());
  RC_ASSERT(model::check_profile(*after).has_value());
  RC_ASSERT(total_bytes(*after) == total_bytes(before));
  for (const std::uint64_t element_bytes : {2U, 4U})
    RC_ASSERT(coded_bytes(*after, element_bytes) == coded_bytes(before, element_bytes));
  RC_ASSERT(std::abs(after->forward_us() - before.forward_us()) < 1e-6 * before.forward_us());
  RC_ASSERT(std::abs(after->backward_us() - before.backward_us()) < 1e-6 * before.backward_us());
}

RC_GTEST_PROP(Rebucket, DeftLeavesNothingThatNoStageCanHold, ()) {
  const auto before = random_profile();
  const auto after = rebucket(before, "deft").value();
  const double capacity_us = std::min(before.forward_us(), before.backward_us() - before.buckets.back().backward_us);
  for (std::size_t bucket = 0; bucket < after.buckets.size(); ++bucket)
    for (std::size_t link = 0; link < after.links.size(); ++link) {
      const bool hopeless = after.links[link].latency_us >= 0.95 * capacity_us;
      const bool tiny = after.buckets[bucket].bytes < 2 * 65'536;
      RC_ASSERT(hopeless || tiny || after.comm_us(bucket, link) <= capacity_us);
    }
}

Profile of(const std::vector<model::ProfileBucket>& buckets, double latency_us, double bytes_per_us) {
  return {"small", "", buckets, {{"l", latency_us, {}, bytes_per_us}}};
}

TEST(MgWfbpCuts, MergesWhatWaitsForTheLinkAnyway) {
  // c goes at 10 and takes 110; b and a are ready meanwhile and wait for it: they go together.
  const auto after =
      rebucket(of({{"a", 100, 1, 10, {}}, {"b", 100, 1, 10, {}}, {"c", 100, 1, 10, {}}}, 5, 1), "mgwfbp");
  ASSERT_EQ(after->buckets.size(), 2u);
  EXPECT_EQ(after->buckets[0].name, "a..b");
  EXPECT_EQ(after->buckets[0].bytes, 200u);
  EXPECT_EQ(after->buckets[1].name, "c");
}

TEST(MgWfbpCuts, KeepsApartWhatWouldOnlyBeDelayed) {
  const auto after = rebucket(of({{"a", 100, 1, 500, {}}, {"b", 100, 1, 500, {}}}, 5, 1), "mgwfbp");
  EXPECT_EQ(after->buckets.size(), 2u);
}

TEST(UsByteCuts, TheFirstBlockEndsWhenTheNextBucketIsReady) {
  // b is ready at 0 + 10; until a is ready at 10 + 40 MB take 10 units of 4 MB at 1 MB/us.
  const auto after = rebucket(of({{"a", 8'000'000, 1, 40, {}}, {"b", 100'000'000, 1, 10, {}}}, 0, 1e6), "usbyte");
  ASSERT_EQ(after->buckets.size(), 3u);
  EXPECT_EQ(after->buckets[2].bytes, 40'000'000u);
  EXPECT_EQ(after->buckets[1].bytes, 60'000'000u);
  EXPECT_EQ(after->buckets[0].name, "a");
}

TEST(Rebucket, APiecePaysItsLatencyAndItsShareOfTheMeasuredTime) {
  Profile profile{"small", "", {{"a", 2000, 8, 4, 2050.0}}, {{"l", 50, 1.0, {}}}};
  const auto after = rebucket(profile, "uniform:1024").value();
  ASSERT_EQ(after.buckets.size(), 2u);
  EXPECT_DOUBLE_EQ(after.comm_us(0, 0) + after.comm_us(1, 0), 2100);
}

TEST(Rebucket, ABadNameIsAnErrorThatNamesIt) {
  const auto profile = of({{"a", 100, 1, 1, {}}}, 1, 1);
  for (const std::string name : {"uniforms", "uniform:0", "best", "deft "}) {
    const auto after = rebucket(profile, name);
    ASSERT_FALSE(after.has_value()) << name;
    EXPECT_THAT(after.error().message(), testing::HasSubstr(name));
  }
}

}  // namespace
}  // namespace deft::partition
