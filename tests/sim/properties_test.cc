// Every policy on random models and networks. The timeline is judged here from scratch, not by the simulator's own
// books; how the policies compare is judged on the cases where the papers promise it.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <map>
#include <tuple>

#include "core/base/policy_traits.h"
#include "core/model/buckets.h"
#include "core/partition/rebucket.h"
#include "core/sched/profile_meter.h"
#include "core/select/simulating_selector.h"
#include "tests/plan/random_profile.h"
#include "tests/sim/run.h"

namespace deft::sim {
namespace {

// Heavy-tailed sizes and times: exponents are drawn evenly.
double spread(double low, double high) { return low * std::pow(high / low, *rc::gen::inRange(0, 1001) / 1000.0); }

struct Shape {
  std::uint32_t max_buckets;
  std::uint32_t max_links;
  double max_latency_us;
};

model::Profile random_profile(const Shape& shape) {
  model::Profile profile;
  profile.model = "random";
  const auto buckets = *rc::gen::inRange<std::uint32_t>(3, shape.max_buckets + 1);
  const auto links = *rc::gen::inRange<std::uint32_t>(1, shape.max_links + 1);
  double bytes = 0;
  for (std::uint32_t i = 0; i < buckets; ++i) {
    profile.buckets.push_back(
        {"b" + std::to_string(i), static_cast<std::uint64_t>(spread(256, 1e8)), spread(1, 1e4), spread(1, 2e4), {}});
    bytes += static_cast<double>(profile.buckets.back().bytes);
  }
  const double coverage = spread(0.3, 8);
  const double total_rate = bytes / (coverage * profile.compute_us());
  for (std::uint32_t i = 0; i < links; ++i) {
    const double share = i == 0 ? 1 : *rc::gen::inRange(20, 101) / 100.0;
    const double latency_us = *rc::gen::inRange(0, 101) / 100.0 * shape.max_latency_us;
    profile.links.push_back({"l" + std::to_string(i), latency_us, {}, total_rate / links * share});
  }
  return profile;
}

Sizes random_sizes(const model::Profile& profile) {
  std::uint64_t total = 0;
  for (const auto& bucket : profile.buckets) total += bucket.bytes;
  const auto part = std::max<std::uint64_t>(model::kPartAlignBytes, total / *rc::gen::inRange<std::uint64_t>(1, 400));
  return {part, part * *rc::gen::inRange<std::uint64_t>(1, 6)};
}

// Each policy as often as the others: inRange would prefer the first ones.
std::string_view any_policy() {
  std::vector<std::string_view> names;
  for (const PolicyTraits& traits : kPolicyTraits) names.push_back(traits.name);
  return *rc::gen::elementOf(names);
}

struct Pass {  // of one bucket through one step
  double forward_us = -1;
  double backward_end_us = -1;
};

class Judge {
 public:
  Judge(const model::Profile& profile, const model::Timeline& timeline) : profile_(profile), timeline_(timeline) {
    for (const auto& span : timeline.compute) {
      auto& pass = passes_[{span.bucket, span.step}];
      (span.stage == sched::Stage::kForward ? pass.forward_us : pass.backward_end_us) =
          span.stage == sched::Stage::kForward ? span.start_us : span.end_us;
    }
    for (const auto& mark : timeline.updates) merges_[{mark.bucket, mark.generation}] = &mark;
  }

  void one_transfer_at_a_time_and_at_cost(bool merged) const {
    std::map<std::uint32_t, std::vector<const model::SendSpan*>> by_link;
    for (const auto& send : timeline_.sends) by_link[send.link].push_back(&send);
    for (const auto& [link, sends] : by_link) {
      for (std::size_t i = 0; i < sends.size(); ++i) {
        const auto& send = *sends[i];
        if (i > 0) RC_ASSERT(send.start_us >= sends[i - 1]->end_us - 1e-6);
        const double bytes_us = share(send) * (profile_.comm_us(send.bucket, link, send.bytes) - fixed_us(send));
        const bool continues = merged && i > 0 && goes_on(*sends[i - 1], send);
        const double cost_us = bytes_us + (continues ? 0 : merged ? launch_fixed_us(sends, i) : fixed_us(send));
        RC_ASSERT(std::abs(send.end_us - send.start_us - cost_us) <= 1e-6 * (1 + send.end_us));
      }
    }
  }

  void nothing_is_sent_before_it_is_ready() const {
    for (const auto& send : timeline_.sends) {
      const auto merge = merges_.find({send.bucket, send.generation});
      if (merge == merges_.end()) continue;  // the run ended before its update
      const Pass& pass = passes_.at({send.bucket, merge->second->last_step});
      RC_ASSERT(send.start_us >= pass.backward_end_us - 1e-6);
    }
  }

  void every_byte_of_an_update_is_sent_once_before_it() const {
    std::map<std::pair<std::uint32_t, std::uint64_t>, std::map<std::uint64_t, const model::SendSpan*>> parts;
    std::map<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>, const model::SendSpan*> scattered;
    for (const auto& send : timeline_.sends) {
      if (send.half == model::AllReduceHalf::kReduceScatter) {
        RC_ASSERT((scattered.emplace(std::tuple(send.bucket, send.generation, send.offset), &send).second));
        continue;
      }
      RC_ASSERT((parts[{send.bucket, send.generation}].emplace(send.offset, &send).second));
      if (send.half == model::AllReduceHalf::kBoth) continue;
      const auto first_half = scattered.find({send.bucket, send.generation, send.offset});
      RC_ASSERT(first_half != scattered.end());
      RC_ASSERT(first_half->second->bytes == send.bytes);
      RC_ASSERT(first_half->second->end_us <= send.start_us + 1e-6);
    }
    for (const auto& mark : timeline_.updates) {
      std::uint64_t at = 0;
      for (const auto& [offset, send] : parts[{mark.bucket, mark.generation}]) {
        RC_ASSERT(offset == at);
        RC_ASSERT(send->end_us <= mark.at_us + 1e-6);
        at += send->bytes;
      }
      RC_ASSERT(at == profile_.buckets[mark.bucket].bytes);
    }
  }

  void every_gradient_is_in_one_update(std::uint64_t complete_steps) const {
    std::vector<std::uint64_t> next(profile_.buckets.size(), 0);
    for (const auto& mark : timeline_.updates) {
      RC_ASSERT(mark.first_step == next[mark.bucket]);
      RC_ASSERT(mark.last_step >= mark.first_step);
      next[mark.bucket] = mark.last_step + 1;
    }
    for (const auto steps : next) RC_ASSERT(steps >= complete_steps);
  }

  void weights_never_change_between_forward_and_backward() const {
    for (const auto& mark : timeline_.updates) {
      for (auto step = mark.last_step;; ++step) {
        const auto pass = passes_.find({mark.bucket, step});
        if (pass == passes_.end()) break;
        RC_ASSERT(mark.at_us <= pass->second.forward_us + 1e-6 || mark.at_us >= pass->second.backward_end_us - 1e-6);
      }
    }
  }

  void synchronous_updates_come_before_the_next_forward() const {
    for (const auto& mark : timeline_.updates) {
      RC_ASSERT(mark.first_step == mark.last_step);
      const auto next = passes_.find({mark.bucket, mark.last_step + 1});
      if (next != passes_.end()) RC_ASSERT(mark.at_us <= next->second.forward_us + 1e-6);
    }
  }

 private:
  // Half an all-reduce moves half as much.
  static double share(const model::SendSpan& send) { return send.half == model::AllReduceHalf::kBoth ? 1 : 0.5; }

  [[nodiscard]] double fixed_us(const model::SendSpan& send) const {
    return profile_.cost(send.bucket, send.link).fixed_us;
  }

  // The latency of the launch that begins with sends[first]: the largest of its buckets'.
  [[nodiscard]] double launch_fixed_us(const std::vector<const model::SendSpan*>& sends, std::size_t first) const {
    double us = fixed_us(*sends[first]);
    for (std::size_t i = first + 1; i < sends.size() && goes_on(*sends[i - 1], *sends[i]); ++i)
      us = std::max(us, fixed_us(*sends[i]));
    return us;
  }

  // True if the bytes of `next` are those behind `send` in one and the same launch: it had no latency of its own.
  [[nodiscard]] bool goes_on(const model::SendSpan& send, const model::SendSpan& next) const {
    const double bytes_us = share(next) * (profile_.comm_us(next.bucket, next.link, next.bytes) - fixed_us(next));
    return next.generation == send.generation && next.half == send.half && next.bucket + 1 == send.bucket &&
           next.offset == 0 && send.offset + send.bytes == profile_.buckets[send.bucket].bytes &&
           next.start_us == send.end_us && std::abs(next.end_us - next.start_us - bytes_us) <= 1e-6 * (1 + next.end_us);
  }

  const model::Profile& profile_;
  const model::Timeline& timeline_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, Pass> passes_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, const model::UpdateMark*> merges_;
};

bool is_synchronous(std::string_view policy) { return !policy.starts_with("knapsack"); }

void judge_run(const model::Profile& profile, std::string_view policy, Options options = {}) {
  constexpr std::uint64_t kSteps = 6;
  const bool synchronous = is_synchronous(policy);
  const std::uint64_t steps = synchronous ? kSteps : 10 * kSteps;
  options.steps = steps;
  options.warmup_steps = 2;
  options.record = true;
  const auto outcome = try_run(profile, policy, options, random_sizes(profile));
  if (!outcome) RC_FAIL(std::string(policy) + ": " + outcome.error().message());
  const Judge judge(profile, outcome->timeline);
  if (options.priority_links.empty() && options.contention == 0)
    judge.one_transfer_at_a_time_and_at_cost(policy == "mgwfbp" || policy == "mergecomp" || policy == "auto" ||
                                             policy == "dear");
  judge.nothing_is_sent_before_it_is_ready();
  judge.every_byte_of_an_update_is_sent_once_before_it();
  judge.weights_never_change_between_forward_and_backward();
  judge.every_gradient_is_in_one_update(synchronous ? steps : 0);
  if (synchronous) {
    judge.synchronous_updates_come_before_the_next_forward();
    RC_ASSERT(outcome->updates_per_step == 1.0);
  }
}

RC_GTEST_PROP(EveryPolicy, KeepsTheInvariants, ()) {
  const auto policy = any_policy();
  RC_TAG(std::string(policy));
  const auto buckets = *rc::gen::weightedElement<std::uint32_t>({{40, 24}, {1, 2000}});
  judge_run(random_profile({buckets, 4, 500}), policy);
}

// Up to four nodes with jitter and stragglers, links that are lost on the way, and priority channels.
Options hard_options(std::uint32_t links, bool may_lose) {
  Options options;
  options.nodes.resize(*rc::gen::inRange<std::size_t>(1, 5));
  for (NodeSpeed& node : options.nodes)
    node = {*rc::gen::element(1.0, 1.0, 1.3, 3.0), *rc::gen::element(0.0, 0.05, 0.3)};
  options.seed = *rc::gen::inRange<std::uint64_t>(1, 1000);
  options.contention = *rc::gen::element(0.0, 0.0, 0.5);
  for (std::uint32_t link = 0; link < links; ++link)
    if (*rc::gen::arbitrary<bool>()) options.priority_links.push_back(link);
  if (may_lose && links > 1 && *rc::gen::arbitrary<bool>())
    options.losses.push_back({*rc::gen::inRange<std::uint64_t>(0, 6), *rc::gen::inRange(0U, links)});
  return options;
}

// The region in which policies meet what tests of one exact node do not show: latencies of up to 5 ms, each link its own,
// links of 1 to 50, one bucket, any forward, other nodes, losses.
RC_GTEST_PROP(EveryPolicy, KeepsTheInvariantsInTheHardRegion, ()) {
  const auto policy = any_policy();
  RC_TAG(std::string(policy));
  const auto profile = any_profile({.most_buckets = 24, .hard = true});
  const auto links = static_cast<std::uint32_t>(profile.links.size());
  const auto options = hard_options(links, policy != "knapsack-paper");
  judge_run(profile, policy, options);
}

// What a training sees: no profile is given, and the policy measures steps that vary.
RC_GTEST_PROP(EveryPolicy, KeepsTheInvariantsWhileItMeasures, ()) {
  const auto policy = any_policy();
  if (find_policy(policy)->simulator_only) return;
  RC_TAG(std::string(policy));
  const auto profile = any_profile({.most_buckets = 12, .hard = true, .most_bytes = 5e8});
  auto options = hard_options(static_cast<std::uint32_t>(profile.links.size()), true);
  options.steps = 40;  // a policy has measured a dozen of them before it plans
  options.warmup_steps = 2;
  options.record = true;
  auto setup = setup_for(profile, policy);
  setup.limits = plan::training_limits();
  setup.selector = select::make_selector(select::When::kAtOnce);
  const auto scheduler = sched::measured(sched::make_scheduler(setup).value(), setup);
  const auto outcome = simulate(*scheduler, profile, options);
  if (!outcome) RC_FAIL(outcome.error().message());
  const Judge judge(profile, outcome->timeline);
  judge.nothing_is_sent_before_it_is_ready();
  judge.every_byte_of_an_update_is_sent_once_before_it();
  judge.weights_never_change_between_forward_and_backward();
  judge.every_gradient_is_in_one_update(0);
}

RC_GTEST_PROP(UsByte, IsNeverWorseThanByteSchedulerOnItsOwnModel, ()) {
  const auto profile = random_profile({40, 1, 500});
  const auto sizes = random_sizes(profile);
  const double parts_us = run(profile, "bytescheduler", {.steps = 8, .warmup_steps = 4}, sizes).step_us;
  const double blocks_us = run(profile, "usbyte", {.steps = 8, .warmup_steps = 4}, sizes).step_us;
  // Schedulers see whole microseconds, the model does not: a unit more or less at an edge.
  const double unit_us = static_cast<double>(sizes.partition_bytes) / *profile.links[0].bytes_per_us;
  RC_ASSERT(blocks_us <= parts_us * 1.0005 + std::min(unit_us, 0.005 * parts_us) + 5);
}

// ByteScheduler's parts shrink on a slow link. A unit of a whole bucket does not: it would hold up the first layer.
TEST(UsByte, KnowsThatByteSchedulersPartsShrinkOnASlowLink) {
  const auto profile = small({{40'000'000, 20'000, 20'000}, {40'000'000, 20'000, 20'000}}, {700});
  const Sizes whole_buckets{50'000'000, 200'000'000};
  const double parts_us = run(profile, "bytescheduler", {}, whole_buckets).step_us;
  EXPECT_LT(parts_us, 0.95 * run(profile, "fifo", {}, whole_buckets).step_us);
  EXPECT_LE(run(profile, "usbyte", {}, whole_buckets).step_us, 1.001 * parts_us);
}

// Equal parts are best while they cost nothing; then each of them takes as long as the whole bucket.
TEST(UsByte, DecidesAnewWhenALatencyHasMoved) {
  const auto profile = small({{40'000'000, 20'000, 20'000}, {40'000'000, 20'000, 20'000}}, {700});
  auto later = profile;
  auto setup = setup_for(profile, "usbyte");
  setup.partition_bytes = 50'000'000;
  setup.credit_bytes = 200'000'000;
  const auto first_bytes = [&] {
    const auto scheduler = sched::make_scheduler(setup).value();
    scheduler->profile_measured(profile, 0, 0);
    for (std::uint64_t step = 1; step < 40; ++step)
      if (scheduler->wants_profile(step)) scheduler->profile_measured(later, step, 0);
    scheduler->bucket_ready(0, 40, 0);
    return scheduler->take_launches(0).at(0).bytes;
  };
  EXPECT_LT(first_bytes(), 8'000'000U);
  later.links[0].latency_us = 60'000;
  EXPECT_EQ(first_bytes(), 40'000'000U);
}

RC_GTEST_PROP(ByteScheduler, IsNeverWorseThanFifoWherePartsCostNothing, ()) {
  const auto profile = random_profile({40, 1, 0});
  const auto sizes = random_sizes(profile);
  const double fifo_us = run(profile, "fifo", {.steps = 8, .warmup_steps = 4}, sizes).step_us;
  const double parts_us = run(profile, "bytescheduler", {.steps = 8, .warmup_steps = 4}, sizes).step_us;
  // Priority with preemption is optimal here; what is in flight cannot be preempted.
  const double in_flight_us =
      static_cast<double>(std::max(sizes.credit_bytes, sizes.partition_bytes)) / *profile.links[0].bytes_per_us;
  RC_ASSERT(parts_us <= fifo_us + in_flight_us + 5);
}

// No block goes to a slow link that the fast one would have sent much sooner.
RC_GTEST_PROP(UrgentFirst, ASecondLinkHoldsUpLittleHoweverSlowItIs, ()) {
  const auto one = random_profile({40, 1, 50});
  auto two = one;
  two.links.push_back({"slow", one.links[0].latency_us, {}, *one.links[0].bytes_per_us / spread(1, 100)});
  if (*rc::gen::arbitrary<bool>()) std::swap(two.links[0], two.links[1]);
  for (const std::string_view policy : {"bytescheduler", "prophet", "usbyte"}) {
    const auto step_us = [&](const model::Profile& profile) {
      return run(profile, policy, {.steps = 8, .warmup_steps = 4}, {1 << 20, 4 << 20}).step_us;
    };
    RC_ASSERT(step_us(two) <= 2 * step_us(one) + 100);
  }
}

// The published heuristic loses if a part costs more than it gains: 100 parts pay 100 latencies, a bucket one.
TEST(ByteScheduler, LosesToFifoWhereEachPartPaysALargeLatency) {
  const auto profile = small({{1024, 10, 10}, {102400, 10, 10}}, {1000}, 50);
  const Sizes sizes{1024, 4096};
  EXPECT_GT(run(profile, "bytescheduler", {}, sizes).step_us, 10 * run(profile, "fifo", {}, sizes).step_us);
  EXPECT_LE(run(profile, "usbyte", {}, sizes).step_us, 1.2 * run(profile, "fifo", {}, sizes).step_us);
}

// MG-WFBP merges a bucket into one that is needed first: on a second link the two could have gone side by side.
TEST(MgWfbp, LosesToFifoWhereMergedBucketsCouldHaveGoneOnTwoLinks) {
  const auto profile = vgg19({"nccl", "gloo"});
  EXPECT_GT(run(profile, "mgwfbp").step_us, run(profile, "fifo").step_us);
}

// The policy merges as it goes; the same buckets merged before the run are the same thing on one link.
RC_GTEST_PROP(MgWfbp, IsFifoOfTheMergedBucketsOnOneLink, ()) {
  const auto profile = random_profile({40, 1, 5000});
  const auto merged = partition::rebucket(profile, "mgwfbp").value();
  RC_CLASSIFY(merged.buckets.size() < profile.buckets.size());
  const Options options{.steps = 8, .warmup_steps = 4};
  const auto sizes = random_sizes(profile);
  const auto online = run(profile, "mgwfbp", options, sizes);
  const auto before = run(merged, "fifo", options, sizes);
  RC_ASSERT(std::abs(online.step_us - before.step_us) <= 1e-6 * before.step_us);
  RC_ASSERT(std::abs(online.bubble_us - before.bubble_us) <= 1e-6 * before.step_us);
  RC_ASSERT(online.bytes_per_step == before.bytes_per_step);
}

// P3's slices are small for parameter servers; an all-reduce of each pays its latency.
TEST(P3, LosesToFifoOnTableTwo) { EXPECT_GT(run(vgg19({"nccl"}), "p3").step_us, run(vgg19({"nccl"}), "fifo").step_us); }

// Forward waits for the all-gather alone, and that goes while other layers compute.
TEST(Dear, HidesHalfOfTheCommunicationBehindForward) {
  const auto profile =
      small({{4'000'000, 10'000, 10'000}, {4'000'000, 10'000, 10'000}, {4'000'000, 10'000, 10'000}}, {200});
  EXPECT_LT(run(profile, "dear").step_us, 0.9 * run(profile, "fifo").step_us);
  EXPECT_EQ(run(profile, "dear").bytes_per_step, run(profile, "fifo").bytes_per_step);
}

// Each half pays a latency of its own.
TEST(Dear, LosesToFifoWhereLatencyIsAllThatALaunchCosts) {
  const auto profile = small({{4096, 10, 10}, {4096, 10, 10}}, {1000}, 500);
  EXPECT_GT(run(profile, "dear").step_us, 1.2 * run(profile, "mgwfbp").step_us);
}

}  // namespace
}  // namespace deft::sim
