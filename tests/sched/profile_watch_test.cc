// When a policy that works by a profile decides anew.
#include "core/sched/profile_watch.h"

#include <gmock/gmock.h>

namespace deft::sched {
namespace {

using testing::HasSubstr;

model::Profile profile_of(double compute_us, double bytes_per_us, double latency_us = 100) {
  model::Profile profile;
  profile.buckets = {{"b", 1'000'000, compute_us / 3, compute_us * 2 / 3, {}}};
  profile.links = {{"nic0", latency_us, {}, bytes_per_us}, {"nic1", 100, {}, 1000}};
  return profile;
}

// Looks at each step that is due, from `first` on, and gives the first step at which there was a reason; 0: none in 100.
std::uint64_t decides_at(ProfileWatch& watch, const model::Profile& profile, std::uint64_t first) {
  for (std::uint64_t step = first; step < first + 100; ++step)
    if (watch.is_due(step) && watch.look(profile, step)) return step;
  return 0;
}

// A watch that has decided for `profile` at step 0 and next looks at step kEvery.
ProfileWatch decided_for(const model::Profile& profile, bool latencies = false) {
  ProfileWatch watch(2, latencies);
  EXPECT_TRUE(watch.look(profile, 0));
  watch.decided(profile);
  watch.resume_after(0);
  return watch;
}

constexpr std::uint64_t kConfirmedAt = ReplanTrigger::kConfirmed * ReplanTrigger::kEvery;

TEST(ProfileWatch, theFirstProfileIsAReasonAtOnce) {
  ProfileWatch watch(2);
  EXPECT_TRUE(watch.is_due(0));
  const auto reason = watch.look(profile_of(900, 1000), 0);
  ASSERT_TRUE(reason);
  EXPECT_EQ(reason->reason, "the first profile");
  EXPECT_FALSE(watch.has_decided());
  EXPECT_TRUE(watch.is_due(1)) << "every step is checked until there is a decision";
}

TEST(ProfileWatch, aChangeMustBeSeenInThreeChecksInARow) {
  auto watch = decided_for(profile_of(900, 1000));
  EXPECT_FALSE(watch.is_due(ReplanTrigger::kEvery - 1));
  EXPECT_EQ(decides_at(watch, profile_of(1200, 1000), 1), kConfirmedAt);
  auto disturbed = decided_for(profile_of(900, 1000));
  for (std::uint64_t step = 1; step < 200; ++step) {
    if (!disturbed.is_due(step)) continue;
    const bool twice = step / ReplanTrigger::kEvery % 3 != 0;  // two checks of three see a change
    EXPECT_FALSE(disturbed.look(profile_of(twice ? 1200 : 900, 1000), step)) << step;
  }
}

TEST(ProfileWatch, whatMovesByATenthIsAReasonAndWhatMovesLessIsNone) {
  const auto moves_to = [](const model::Profile& now, bool latencies = false) {
    auto watch = decided_for(profile_of(900, 1000), latencies);
    return decides_at(watch, now, 1) == kConfirmedAt;
  };
  EXPECT_FALSE(moves_to(profile_of(900, 1000)));
  EXPECT_FALSE(moves_to(profile_of(985, 1000)));
  EXPECT_TRUE(moves_to(profile_of(995, 1000)));
  EXPECT_TRUE(moves_to(profile_of(800, 1000)));
  EXPECT_FALSE(moves_to(profile_of(900, 1090)));
  EXPECT_TRUE(moves_to(profile_of(900, 1110)));
  EXPECT_TRUE(moves_to(profile_of(900, 890)));
  EXPECT_FALSE(moves_to(profile_of(900, 1000, 300))) << "no policy asked for latencies";
  EXPECT_TRUE(moves_to(profile_of(900, 1000, 300), true));
  auto other_share = profile_of(900, 1000);
  other_share.buckets[0].forward_us = 500;
  other_share.buckets[0].backward_us = 400;
  EXPECT_TRUE(moves_to(other_share)) << "forward takes another share of the same compute";
}

// A byte takes 1e-3 us on the links, and a quarter of that as int8.
TEST(ProfileWatch, theTimeOfACodecIsAReasonWhereItDecidesHowFastALinkIs) {
  const auto with = [](double us_per_byte) {
    auto profile = profile_of(900, 1000);
    profile.codecs.push_back({.name = "int8", .wire_share = 0.25, .encode_us_per_byte = us_per_byte});
    return profile;
  };
  const auto moves = [&](double from, double to) {
    auto watch = decided_for(with(from));
    return decides_at(watch, with(to), 1) == kConfirmedAt;
  };
  EXPECT_FALSE(moves(1e-4, 2.5e-4)) << "the wire takes as long";
  EXPECT_TRUE(moves(1e-4, 3.1e-4));
  EXPECT_FALSE(moves(3e-4, 3.5e-4)) << "less than a fifth";
  EXPECT_TRUE(moves(3e-4, 3.7e-4));
  EXPECT_TRUE(moves(3.7e-4, 2.9e-4));
  EXPECT_FALSE(moves(1e-3, 5e-3)) << "exact gradients are quicker anyway";
  auto watch = decided_for(with(1e-4));
  EXPECT_FALSE(watch.look(with(5e-4), 8));
  EXPECT_FALSE(watch.look(with(5e-4), 16));
  EXPECT_EQ(watch.look(with(5e-4), 24)->reason, "the time of codec int8 (us a MB) went from 100 to 500");
}

TEST(ProfileWatch, theTimeOfTheCodecThatAllLaunchesHaveCountsBesideThatOfTheLink) {
  const auto moves = [](double from, double to) {
    auto before = profile_of(900, 1000), after = before;
    before.fixed_codec = model::CodecCost{.name = "int8", .encode_us_per_byte = from};
    after.fixed_codec = model::CodecCost{.name = "int8", .encode_us_per_byte = to};
    auto watch = decided_for(before);
    return decides_at(watch, after, 1) == kConfirmedAt;
  };
  EXPECT_FALSE(moves(1e-4, 3e-4));
  EXPECT_TRUE(moves(1e-4, 4e-4));
  EXPECT_TRUE(moves(5e-3, 1e-4));
}

TEST(ProfileWatch, aLostLinkIsAReasonAtOnceAndOnlyOnce) {
  const auto profile = profile_of(900, 1000);
  auto watch = decided_for(profile);
  watch.link_lost(0);
  ASSERT_TRUE(watch.is_due(1));
  const auto reason = watch.look(profile, 1);
  ASSERT_TRUE(reason);
  EXPECT_THAT(reason->reason, HasSubstr("the loss of link 0"));
  const auto rest = watch.remaining(profile);
  ASSERT_EQ(rest.links.size(), 1U);
  EXPECT_EQ(rest.links[0].name, "nic1");
  watch.decided(profile);
  watch.resume_after(1);
  EXPECT_EQ(decides_at(watch, profile_of(900, 10), 2), 0U) << "the throughput of a lost link says nothing";
}

TEST(ProfileWatch, aReasonOfThePolicyCountsAsAnyOther) {
  const auto profile = profile_of(900, 1000);
  auto watch = decided_for(profile);
  const auto own = [](bool immediate) {
    return [immediate] { return plan::ReplanReason{"the guard refuses it", immediate}; };
  };
  EXPECT_FALSE(watch.look(profile, 8, own(false)));
  EXPECT_FALSE(watch.look(profile, 16, own(false)));
  EXPECT_TRUE(watch.look(profile, 24, own(false)));
  watch.decided(profile);
  const auto at_once = watch.look(profile, 32, own(true));
  ASSERT_TRUE(at_once);
  EXPECT_EQ(at_once->reason, "the guard refuses it");
}

}  // namespace
}  // namespace deft::sched
