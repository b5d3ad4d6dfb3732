#include "core/optimize/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <limits>
#include <set>

#include "tests/base/random_cases.h"
#include "tests/optimize/measured_jobs.h"

namespace deft::optimize {
namespace {

double best_of_all_sizes_us(const replay::MeasuredJob& measured, const std::vector<std::string>& policies) {
  double best_us = std::numeric_limits<double>::infinity();
  for (const auto& policy : policies) {
    const bool has_parts = policy != "fifo";
    const std::uint64_t largest_part = has_parts ? std::uint64_t{4} << 20 : 65'536;
    const std::uint64_t largest_credit = (has_parts ? std::uint64_t{16} : 1) << 20;
    for (std::uint64_t bucket = 65'536; bucket <= (std::uint64_t{8} << 20); bucket *= 2)
      for (std::uint64_t part = 65'536; part <= largest_part; part *= 4)
        for (std::uint64_t credit = std::uint64_t{1} << 20; credit <= largest_credit; credit *= 4)
          if (const double us = replayed_us(measured, {policy, bucket, part, credit}); us > 0)
            best_us = std::min(best_us, us);
  }
  return best_us;
}

// From far too small buckets and from one bucket, the search is within 2 percent of the best of all its sizes.
TEST(Search, FromBadSettingsItFindsWhatAnExhaustiveSearchFinds) {
  for (const std::size_t buckets : {400U, 2U}) {
    const auto measured = job_of_buckets(buckets, "fifo");
    const std::vector<std::string> policies = {"fifo", "bytescheduler", "p3"};
    const auto found = search(measured, {.policies = policies}, all);
    ASSERT_TRUE(found) << found.error().message();
    EXPECT_LT(found->step_us, 1.02 * best_of_all_sizes_us(measured, policies)) << buckets;
    EXPECT_TRUE(found->worth_it());
    EXPECT_LT(found->step_us, 0.9 * found->traced_us);
    EXPECT_DOUBLE_EQ(found->step_us, replayed_us(measured, found->settings)) << "it promises what replay says";
  }
}

TEST(Search, OfAJobThatComputesAllTheTimeKeepsTheSettings) {
  auto measured = job_of_buckets(12, "bytescheduler");
  for (auto& link : measured.profile.links) link.bytes_per_us = 1e6, link.latency_us = 1;
  for (auto& us : measured.steps_us) us = 60'000;
  const auto found = search(measured, {.policies = exact_policies()}, all);
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->worth_it());
}

TEST(Search, WithoutTimeItKeepsTheSettings) {
  const auto measured = job_of_buckets(400, "fifo");
  const auto found = search(measured, {.policies = exact_policies()}, [] { return 0.0; });
  ASSERT_TRUE(found);
  EXPECT_EQ(found->settings, found->traced);
  EXPECT_EQ(found->replays, 0U);
  EXPECT_FALSE(found->worth_it());
}

double cpu_s() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The time that a search among the traced buckets takes beyond `wholes` times that of a whole replay, as a share of it.
struct Overrun {
  double share = 0;
  std::size_t replays = 0;
  bool ran_out_of_time = false;
};
Overrun overrun_of(const replay::MeasuredJob& measured, double wholes) {
  double began_s = cpu_s();
  replayed_us(measured, {"bytescheduler", 0, 1 << 20, 4 << 20});
  const double budget_s = wholes * (cpu_s() - began_s);
  began_s = cpu_s();
  const auto found = search(measured, {.policies = {"bytescheduler", "p3"}, .keeps_buckets = true},
                            [&] { return 1 - (cpu_s() - began_s) / budget_s; });
  EXPECT_TRUE(found);
  return {(cpu_s() - began_s) / budget_s - 1, found->replays, found->ran_out_of_time};
}

// Each replay at the end takes as long as that of the traced job.
TEST(Search, EndsWhenItsTimeIsOver) {
  const auto measured = job_of_buckets(random_cases(3000), "bytescheduler");
  const auto long_enough = overrun_of(measured, 4);
  EXPECT_LT(long_enough.share, 0.1);
  EXPECT_GT(long_enough.replays, 3U);
  EXPECT_LT(overrun_of(measured, 1.5).share, 0.1) << "the replay of a setting takes longer than the rest of the time";
  const auto too_short = overrun_of(measured, 0.5);
  EXPECT_LT(too_short.share, 0.1) << "that of the traced job, too";
  EXPECT_EQ(too_short.replays, 0U);
  EXPECT_TRUE(too_short.ran_out_of_time);
}

TEST(Search, ForARunningJobItKeepsTheBuckets) {
  const auto measured = job_of_buckets(2, "fifo");
  const auto free = search(measured, {.policies = {"bytescheduler"}}, all);
  const auto kept = search(measured, {.policies = {"bytescheduler"}, .keeps_buckets = true}, all);
  ASSERT_TRUE(free && kept);
  EXPECT_NE(free->settings.bucket_bytes, 0U);
  EXPECT_EQ(kept->settings.bucket_bytes, 0U);
  EXPECT_EQ(kept->settings.policy, "bytescheduler");
  EXPECT_LT(kept->step_us, kept->traced_us) << "parts let the urgent bucket overtake";
}

TEST(Search, TakesACodecThatWinsAndIsAllowed) {
  const auto measured = job_of_buckets(12, "fifo");
  const auto exact = search(measured, {.policies = {"fifo"}}, all);
  const auto either = search(measured, {.policies = {"fifo"}, .codecs = {kHalf}}, all);
  ASSERT_TRUE(exact && either);
  EXPECT_EQ(exact->settings.compression, "");
  EXPECT_EQ(either->settings.compression, "half");
  EXPECT_LT(either->step_us, 0.95 * exact->step_us);
  EXPECT_DOUBLE_EQ(either->step_us, replayed_us(measured, either->settings, {kHalf}));
  EXPECT_EQ(either->settings.options(either->traced).at("compression"), "half");
}

// Its sizes are found with it: the fewer bytes there are, the more the 400 us of a part count.
TEST(Search, FindsTheSizesThatSuitTheCodec) {
  const auto measured = job_of_buckets(400, "fifo");
  const model::CodecCost tenth{.name = "tenth", .wire_share = 0.1};
  const auto found = search(measured, {.policies = {"fifo"}, .codecs = {tenth}}, all);
  ASSERT_TRUE(found);
  double best_us = found->traced_us;
  for (std::uint64_t bucket = 65'536; bucket <= (std::uint64_t{8} << 20); bucket *= 2)
    best_us = std::min(best_us, replayed_us(measured, {"fifo", bucket, 1 << 20, 4 << 20, "tenth"}, {tenth}));
  EXPECT_LT(found->step_us, 1.02 * best_us);
}

TEST(Search, ACodecThatIsSlowOrWinsLittleIsNotTaken) {
  const auto measured = job_of_buckets(12, "fifo");
  const model::CodecCost slow{.name = "slow", .wire_share = 0.5, .encode_us_per_byte = 0.05};
  const model::CodecCost useless{.name = "useless", .wire_share = 0.99};
  const auto found = search(measured, {.policies = {"fifo"}, .codecs = {slow, useless}}, all);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->settings.compression, "");
}

TEST(Search, GradientsThatWereEncodedMayBecomeExactAgain) {
  auto measured = job_of_buckets(12, "fifo");
  measured.options["compression"] = "int8";
  measured.profile.codecs.push_back({.name = "codec 1", .wire_share = 0.5, .encode_us_per_byte = 0.05});
  const auto found = search(measured, {.policies = {"fifo"}, .codecs = {{.name = "none"}}}, all);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->settings.options(found->traced).at("compression"), "none");
}

TEST(Search, ReplaysNoSizesThatThePolicyDoesNotLookAt) {
  const auto measured = job_of_buckets(12, "fifo");
  std::vector<Settings> tried;
  const auto look = [&](const Settings& settings, double) { tried.push_back(settings); };
  const auto found = search(measured, {.policies = {"fifo"}, .tried = look}, all);
  ASSERT_TRUE(found);
  EXPECT_EQ(tried.size(), found->replays);
  for (const Settings& settings : tried) {
    EXPECT_EQ(settings.partition_bytes, found->traced.partition_bytes);
    EXPECT_EQ(settings.credit_bytes, found->traced.credit_bytes);
  }
  tried.clear();
  const auto all_sizes =
      search(measured, {.policies = {"fifo"}, .speedups = {.used_sizes_only = false}, .tried = look}, all);
  ASSERT_TRUE(all_sizes);
  EXPECT_GT(tried.size(), 2 * found->replays);
  EXPECT_DOUBLE_EQ(all_sizes->step_us, found->step_us) << "they change nothing";
}

TEST(Search, ThousandsOfTracedBucketsAreNoStartForOtherPolicies) {
  const auto measured = job_of_buckets(1500, "fifo");
  std::size_t traced_buckets = 0;
  const auto found =
      search(measured,
             {.policies = {"fifo", "p3"},
              .tried = [&](const Settings& tried, double) { traced_buckets += tried.bucket_bytes == 0; }},
             all);
  ASSERT_TRUE(found);
  EXPECT_EQ(traced_buckets, 0U) << "what they take is known";
  EXPECT_TRUE(found->worth_it());
}

// The exact settings take no more than their half of the time: of hundreds only 20 are replayed.
TEST(Search, LeavesTimeForEachCodec) {
  const auto measured = job_of_buckets(12, "fifo");
  int asked = 0;
  const auto found =
      search(measured, {.policies = exact_policies(), .codecs = {kHalf}}, [&] { return asked++ < 20 ? 1.0 : 0.4; });
  ASSERT_TRUE(found);
  EXPECT_EQ(found->settings.compression, "half");
}

// If the steps of a job vary, few of them flatter a codec: by those, both of these would win more than 2 %.
TEST(Search, ACodecMustWinByWholeReplays) {
  auto measured = job_of_buckets(12, "fifo");
  measured.spreads = {0.2, 0.2};
  const model::CodecCost least{.name = "least", .wire_share = 0.96}, less{.name = "less", .wire_share = 0.975};
  const auto with_least = search(measured, {.policies = {"fifo"}, .codecs = {least}}, all);
  const auto with_less = search(measured, {.policies = {"fifo"}, .codecs = {less}}, all);
  ASSERT_TRUE(with_least && with_less);
  EXPECT_EQ(with_least->settings.compression, "least");
  EXPECT_EQ(with_less->settings.compression, "");
}

TEST(Search, OfAnotherPolicyMoreMustBePromisedThanOfSizes) {
  Found found{.traced = {"fifo", 0, 1 << 20, 4 << 20}, .settings = {"p3", 0, 1 << 20, 4 << 20}, .traced_us = 100'000};
  const auto wins = [&found](double percent) {
    found.step_us = 100'000 - 1000 * percent;
    return found.worth_it();
  };
  found.error = 0.001;
  EXPECT_FALSE(wins(3));
  EXPECT_TRUE(found.worth_trying());
  EXPECT_FALSE(wins(5.9));
  EXPECT_TRUE(wins(6.1));
  found.error = 0.05;
  EXPECT_FALSE(wins(8.9)) << "that of another policy comes on top";
  EXPECT_TRUE(wins(9.1));
  found.settings = {"fifo", 0, 1 << 18, 4 << 20};
  EXPECT_FALSE(wins(4.9));
  EXPECT_FALSE(found.worth_trying());
  EXPECT_TRUE(wins(5.1));
  found.error = 0.001;
  EXPECT_FALSE(wins(2.9));
  EXPECT_TRUE(wins(3.1));
}

TEST(Search, AJobThatTakesNoSettingsWhileItRunsIsNamed) {
  const auto measured = job_of_buckets(12, "knapsack");
  const auto running = search(measured, {.policies = exact_policies(), .keeps_buckets = true}, all);
  ASSERT_FALSE(running);
  EXPECT_EQ(running.error().kind, ErrorKind::kInvalid);
  EXPECT_THAT(running.error().message(), testing::HasSubstr("policy is knapsack"));
  EXPECT_TRUE(search(measured, {.policies = exact_policies()}, [] { return 0.0; }));
}

TEST(Search, LeavesSmallTensorsExactIfThatMakesNoStepLonger) {
  const auto measured = small_and_large_tensors(true);
  const auto found = search(measured, {.policies = {"fifo"}, .keeps_buckets = true, .codecs = {kHalf}}, all);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->settings.compression, "half");
  EXPECT_EQ(found->settings.options(found->traced).at("compression_min_bytes"), "262144");
  Settings all_encoded = found->settings, none = found->settings;
  all_encoded.codec_min_bytes = 0, none.codec_min_bytes = 4 << 20;
  EXPECT_NEAR(found->step_us, replayed_us(measured, all_encoded, {kHalf}), 0.002 * found->step_us);
  EXPECT_NEAR(replayed_us(measured, none, {kHalf}), replayed_us(measured, found->traced), 1);
  EXPECT_LT(found->step_us, 0.98 * found->traced_us);
}

TEST(Search, TriesNoFloorBelowThatOfTheJobOrOneThatIsNotKnown) {
  const auto floors = [](replay::MeasuredJob measured, const char* own) {
    measured.options["compression_min_bytes"] = own;
    std::set<std::uint64_t> tried;
    const auto look = [&](const Settings& settings, double) { tried.insert(settings.codec_min_bytes); };
    EXPECT_TRUE(search(measured, {.policies = {"fifo"}, .keeps_buckets = true, .codecs = {kHalf}, .tried = look}, all));
    return tried;
  };
  EXPECT_EQ(floors(small_and_large_tensors(true), "16384"), (std::set<std::uint64_t>{0, 256 << 10, 4 << 20}));
  EXPECT_EQ(floors(small_and_large_tensors(true), "1048576"), (std::set<std::uint64_t>{0, 4 << 20}));
  EXPECT_EQ(floors(small_and_large_tensors(false), "16384"), std::set<std::uint64_t>{0});
}

// Parameter servers have no halves, so dear cannot run with them. They are slow, and carry little.
TEST(Search, LeavesOutALinkThatKeepsTheBestPolicyFromRunning) {
  const std::vector<std::string> policies = {"fifo", "dear"};
  const auto alone = job_of_buckets(12, "fifo"), both = with_link(alone, "ps:h:1+h:2", 3000, 5);
  const auto best = search(alone, {.policies = policies}, all);
  const auto found = search(both, {.policies = policies}, all);
  ASSERT_TRUE(best && found) << found.error().message();
  EXPECT_EQ(best->settings.policy, "dear");
  EXPECT_EQ(found->settings.policy, "dear");
  EXPECT_EQ(found->settings.options(found->traced).at("links"), "gloo:a");
  EXPECT_DOUBLE_EQ(found->step_us, replayed_us(both, found->settings)) << "it promises what replay says";
  EXPECT_NEAR(found->step_us, best->step_us, 0.02 * best->step_us) << "the job as if it had never had that link";
}

TEST(Search, LeavesOutALinkOfLongLatencyUnderAPolicyThatLosesByIt) {
  const auto both = with_link(job_of_buckets(12, "mergecomp"), "gloo:b", 50'000, 150);
  const auto found = search(both, {.policies = {"mergecomp"}}, all);
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_EQ(found->settings.links, std::vector<std::string>{"gloo:a"});
  Settings with_it = found->settings;
  with_it.links = {};
  EXPECT_GT(replayed_us(both, with_it), 1.1 * found->step_us);
}

TEST(Search, KeepsALinkThatCarriesItsShare) {
  const auto both = with_link(job_of_buckets(12, "fifo"), "gloo:b", 400, 150);
  const auto found = search(both, {.policies = {"fifo", "bytescheduler"}}, all);
  ASSERT_TRUE(found);
  EXPECT_THAT(found->settings.links, testing::IsEmpty());
  Settings fewer = found->settings;
  fewer.links = {"gloo:a"};
  EXPECT_GT(replayed_us(both, fewer), 1.1 * found->step_us);
}

// A running job cannot change its links. If nodes call a link by different names, no option can name it for all of them.
TEST(Search, KeepsLinksThatCannotBeLeftOut) {
  auto both = with_link(job_of_buckets(12, "fifo"), "ps:h:1+h:2", 3000, 5);
  const auto fewer = [&](bool running) {
    bool tried = false;
    const auto look = [&](const Settings& settings, double) { tried = tried || !settings.links.empty(); };
    EXPECT_TRUE(search(both, {.policies = {"fifo"}, .keeps_buckets = running, .tried = look}, all));
    return tried;
  };
  EXPECT_TRUE(fewer(false));
  EXPECT_FALSE(fewer(true));
  both.links = {};
  EXPECT_FALSE(fewer(false));
  both.links = {"gloo:a #", "ps:h:1"};
  EXPECT_FALSE(fewer(false));
}

// Two links of three are too slow for a policy that shares each bucket among all of them.
TEST(Search, LeavesOutOneLinkAfterTheOther) {
  auto three = with_link(job_of_buckets(12, "fifo"), "ps:h:1", 3000, 5);
  three = with_link(std::move(three), "ps:h:2", 3000, 5);
  const auto found = search(three, {.policies = {"dear"}}, all);
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_EQ(found->settings.links, std::vector<std::string>{"gloo:a"});
}

TEST(Search, OfFewerLinksAsMuchMustBePromisedAsOfAnotherPolicy) {
  Found found{.traced = {"fifo", 0, 1 << 20, 4 << 20}, .settings = {"fifo", 0, 1 << 20, 4 << 20}, .traced_us = 100'000};
  found.settings.links = {"gloo:a"};
  found.error = 0.01, found.step_us = 95'000;
  EXPECT_FALSE(found.worth_it());
  found.step_us = 93'000;
  EXPECT_TRUE(found.worth_it());
}

TEST(Search, NamesLinksAsTheirOptionDoes) {
  const Settings traced{"fifo", 0, 1 << 20, 4 << 20};
  Settings fewer = traced;
  fewer.links = {"nccl:eth0+eth1", "gloo:eth2", "ps:h:1+h:2"};
  EXPECT_EQ(fewer.options(traced).at("links"), "nccl:eth0,eth1,gloo:eth2,ps:h:1+h:2");
}

TEST(Search, TellsOnlyTheOptionsThatChange) {
  const Settings traced{"fifo", 0, 1 << 20, 4 << 20};
  Settings other = traced;
  other.policy = "p3", other.bucket_bytes = 65'536;
  EXPECT_EQ(other.options(traced),
            (std::map<std::string, std::string>{{"policy", "p3"}, {"bucketing", "uniform:65536"}}));
  EXPECT_THAT(exact_policies(), testing::Not(testing::Contains("knapsack")));
}

}  // namespace
}  // namespace deft::optimize
