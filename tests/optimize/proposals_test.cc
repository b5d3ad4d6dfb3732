// What a search makes of settings that a user's passes propose.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/optimize/search.h"
#include "tests/optimize/measured_jobs.h"

namespace deft::optimize {
namespace {

// A pass knows a better policy than the search may choose.
TEST(Proposals, AreFollowedAsLongAsTheyMakeStepsShorter) {
  const auto measured = job_of_buckets(2, "fifo");
  SearchLimits limits{.policies = {"bytescheduler"}, .keeps_buckets = true};
  const auto urgent = search(measured, limits, all);
  limits.policies = {"fifo"};
  const auto alone = search(measured, limits, all);
  ASSERT_TRUE(urgent && alone);
  std::vector<Settings> told;
  limits.passes = [&](const Settings& best, double step_us) -> Result<std::vector<Proposal>> {
    EXPECT_GT(step_us, 0);
    told.push_back(best);
    Settings none = best;
    none.policy = "nope";
    return std::vector<Proposal>{{"urgent", urgent->settings}, {"urgent", best}, {"wrong", none}};
  };
  const auto found = search(measured, limits, all);
  ASSERT_TRUE(found);
  ASSERT_EQ(told.size(), 2U) << "the second time nothing that it proposes is better";
  EXPECT_EQ(told.front(), alone->settings);
  EXPECT_EQ(told.back(), urgent->settings);
  EXPECT_EQ(found->settings.policy, "bytescheduler");
  EXPECT_DOUBLE_EQ(found->step_us, urgent->step_us);
  EXPECT_LT(found->step_us, alone->step_us);
  EXPECT_EQ(found->passes.at("urgent").proposals, 4U);
  EXPECT_GT(found->passes.at("urgent").best_us, 0);
  EXPECT_EQ(found->passes.at("wrong").best_us, 0) << "no such policy";
}

TEST(Proposals, AnErrorOfAPassEndsTheSearch) {
  const Passes passes = [](const Settings&, double) { return fail(ErrorKind::kInvalid, "pass p: no"); };
  const auto found = search(job_of_buckets(12, "fifo"), {.policies = {"fifo"}, .passes = passes}, all);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().what, "pass p: no");
}

TEST(Proposals, AreNotAskedForOnceTheTimeIsOver) {
  bool is_asked = false;
  const Passes passes = [&](const Settings&, double) -> Result<std::vector<Proposal>> {
    is_asked = true;
    return std::vector<Proposal>{};
  };
  const auto found = search(job_of_buckets(12, "fifo"), {.policies = {"fifo"}, .passes = passes}, [] { return 0.0; });
  ASSERT_TRUE(found);
  EXPECT_FALSE(is_asked);
  EXPECT_EQ(found->passes_asked, 0U);
}

// A pass that proposes one change of whatever is the best so far, and what it was told.
struct Proposer {
  std::function<void(Settings&)> change;
  std::vector<Settings> told = {};

  Result<std::vector<Proposal>> operator()(const Settings& best, double /*step_us*/) {
    told.push_back(best);
    Settings proposed = best;
    change(proposed);
    return std::vector<Proposal>{{"p", proposed}};
  }
};

Found found_with(const replay::MeasuredJob& measured, SearchLimits limits, Proposer& proposer) {
  limits.passes = std::ref(proposer);
  const auto found = search(measured, limits, all);
  EXPECT_TRUE(found);
  return found.value_or(Found{});
}

// Parameter servers keep the policy from running at all, and with it the search from finding anything but the traced settings.
TEST(Proposals, MayLeaveOutLinks) {
  auto three = with_link(job_of_buckets(12, "fifo"), "ps:h:1", 3000, 5);
  three = with_link(std::move(three), "ps:h:2", 3000, 5);
  Proposer proposer{[](Settings& settings) { settings.policy = "dear", settings.links = {"gloo:a"}; }};
  const Found found = found_with(three, {.policies = {"dear"}}, proposer);
  EXPECT_EQ(proposer.told.front(), found.traced);
  ASSERT_GE(proposer.told.size(), 2U);
  EXPECT_EQ(proposer.told[1].links, std::vector<std::string>{"gloo:a"}) << "it goes on from there";
  EXPECT_EQ(found.settings.links, std::vector<std::string>{"gloo:a"});
  EXPECT_DOUBLE_EQ(found.step_us, replayed_us(three, found.settings));
}

// A job on fewer links has fewer to fall back on.
TEST(Proposals, OfFewerLinksMustWinMoreThanOthers) {
  const Settings own{"mergecomp", 0, 1 << 20, 4 << 20};
  const auto alone = job_of_buckets(12, own.policy);
  const auto takes_fewer = [&](double latency_us, double least_gain, double most_gain) {
    const auto both = with_link(alone, "gloo:b", latency_us, 20);
    const double gain = 1 - replayed_us(alone, own) / replayed_us(both, own);
    EXPECT_GT(gain, least_gain);
    EXPECT_LT(gain, most_gain);
    Proposer proposer{[](Settings& settings) { settings.links = {"gloo:a"}; }};
    // Nothing else may change: the buckets stay, and so the search itself tries no links.
    return !found_with(both, {.policies = {own.policy}, .keeps_buckets = true}, proposer).settings.links.empty();
  };
  EXPECT_FALSE(takes_fewer(2'000, 0.002, 0.01));
  EXPECT_TRUE(takes_fewer(20'000, 0.05, 0.2));
}

// Six tensors of 300 KB, whose gradients come first and hide behind backward as they are. Those of the others do not.
replay::MeasuredJob three_sizes() {
  std::vector<std::uint64_t> bytes(4, 1'800'192);
  bytes.resize(6, 900'096);
  bytes.resize(12, 300'032);
  return job_of_tensors(bytes, true);
}

TEST(Proposals, MayLetACodecLeaveMoreTensorsExact) {
  const auto measured = three_sizes();
  const SearchLimits limits{.policies = {"fifo"}, .keeps_buckets = true, .codecs = {kHalf}};
  const auto alone = search(measured, limits, all);
  ASSERT_TRUE(alone);
  EXPECT_EQ(alone->settings.compression, "half");
  ASSERT_EQ(alone->settings.codec_min_bytes, 0U) << "its floors lie below and above these tensors";
  Proposer proposer{[](Settings& settings) { settings.codec_min_bytes = 500'000; }};
  const Found found = found_with(measured, limits, proposer);
  EXPECT_EQ(found.settings.options(found.traced).at("compression_min_bytes"), "500000");
  EXPECT_LT(found.step_us, 1.002 * alone->step_us);
  EXPECT_EQ(proposer.told.front().compression, "");
  EXPECT_EQ(proposer.told.front().codec_min_bytes, 0U);
  EXPECT_EQ(proposer.told.back().compression, "half");
  EXPECT_EQ(proposer.told.back().codec_min_bytes, 500'000U) << "it is asked again, and then nothing is better";
  EXPECT_EQ(proposer.told.size(), 3U);
}

TEST(Proposals, OfAFloorThatMakesStepsLongerAreNotTaken) {
  const auto measured = three_sizes();
  Proposer proposer{[](Settings& settings) { settings.codec_min_bytes = 1'000'000; }};
  const Found found = found_with(measured, {.policies = {"fifo"}, .keeps_buckets = true, .codecs = {kHalf}}, proposer);
  EXPECT_EQ(found.settings.compression, "half");
  EXPECT_EQ(found.settings.codec_min_bytes, 0U);
}

// The search leaves the small tensors exact, and encoding them again makes steps no shorter.
TEST(Proposals, OfAFloorThatRoundsMoreMustWinMore) {
  const auto measured = small_and_large_tensors(true);
  Proposer proposer{[](Settings& settings) { settings.codec_min_bytes = 0; }};
  const Found found = found_with(measured, {.policies = {"fifo"}, .keeps_buckets = true, .codecs = {kHalf}}, proposer);
  EXPECT_EQ(found.settings.codec_min_bytes, 256U << 10);
}

// A pass could propose one after the other for ever.
TEST(Proposals, OfAFloorThatChangesNothingAreNoOtherSettings) {
  const auto measured = small_and_large_tensors(true);
  std::uint64_t floor = 16'384;
  Proposer proposer{[&](Settings& settings) { settings.codec_min_bytes = ++floor; }};
  const SearchLimits exact{.policies = {"fifo"}, .keeps_buckets = true};
  EXPECT_EQ(found_with(measured, exact, proposer).settings.codec_min_bytes, 0U) << "nothing is encoded";
  EXPECT_EQ(proposer.told.size(), 1U);
  SearchLimits encoded = exact;
  encoded.codecs = {kHalf};
  EXPECT_EQ(found_with(measured, encoded, proposer).settings.codec_min_bytes, 256U << 10) << "of the search itself";
  EXPECT_EQ(proposer.told.size(), 3U);
}

// The codec is the job's own, of which the search tries no floors.
TEST(Proposals, MayLetTheTracedCodecLeaveMoreTensorsExact) {
  auto measured = three_sizes();
  measured.options["compression"] = "int8";
  measured.profile.codecs.push_back({.name = "int8", .wire_share = 0.5});
  const std::uint64_t exact_below = 500'000;
  Proposer proposer{[&](Settings& settings) { settings.codec_min_bytes = exact_below; }};
  const Found found = found_with(measured, {.policies = {"fifo"}, .keeps_buckets = true}, proposer);
  ASSERT_EQ(proposer.told.size(), 2U);
  EXPECT_EQ(proposer.told.back().codec_min_bytes, exact_below);
  EXPECT_FALSE(found.worth_it()) << "steps are as long as before";
}

}  // namespace
}  // namespace deft::optimize
