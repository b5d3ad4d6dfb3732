// The groups of a job on the leader: which events lead to launches, in which order the nodes hear of them, and when they end.
#include "daemon/leader/launch_coordinator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "daemon/wire/codec.h"

namespace deft::daemon {
namespace {

struct Launches {
  // Two nodes declare `groups` groups of one tensor of 4 MiB, which is cut into parts of 256 KiB.
  explicit Launches(std::uint32_t groups = 1, const std::string& policy = "fifo", double bytes_per_us = 1000)
      : settings(job_settings(Config(), "bucket_bytes=4MB\npartition_bytes=256KB\ntimeout=60s\npolicy=" + policy + "\n")
                     .value()),
        links({{"gloo:eth0", 200, bytes_per_us}, {"gloo:eth1", 200, bytes_per_us}}, 2, {60'000'000, 1'000'000}) {
    for (std::uint32_t group = 0; group < groups; ++group) declare(group);
    sent.clear();
  }
  void declare(std::uint32_t group, const std::string& codec = "") {
    model::TensorSpec tensor{"fc.weight", model::DType::kFloat32, {1 << 10, 1 << 10}};
    tensor.codec = codec;
    for (const std::size_t node : {0, 1})
      EXPECT_TRUE(launches.declare(node, {group, "sgd", {tensor}, 4},
                                   [](std::size_t of) { return "rank " + std::to_string(of); }));
  }
  [[nodiscard]] nlohmann::json status(const std::string& part) const {
    nlohmann::json status;
    launches.add_status(status);
    return status[part];
  }
  [[nodiscard]] std::string policy() const { return status("settings")["policy"]; }
  template <typename Message>
  [[nodiscard]] std::vector<Message> all() const {
    std::vector<Message> out;
    for (const auto& message : sent)
      if (const auto* const one = std::get_if<Message>(&message)) out.push_back(*one);
    return out;
  }
  [[nodiscard]] std::vector<wire::Launch> launched() const {
    std::vector<wire::Launch> out;
    for (const auto& order : all<wire::LaunchOrder>())
      out.insert(out.end(), order.launches.begin(), order.launches.end());
    return out;
  }

  ManualClock clock;
  const JobSettings settings;
  LinkFailover links;
  std::vector<wire::ToNode> sent;
  LaunchCoordinator launches{
      {"job", 2, 2}, settings, clock, links, [this](const wire::ToNode& message) { sent.push_back(message); }};
};

// Two nodes train under plans that may choose bf16 or int8. Updates are never late.
struct Encoding : Launches {
  explicit Encoding(double bytes_per_us = 1000)
      : Launches(1, "knapsack\ncompression=auto/max=int8\nmax_staleness_steps=0\npreserver=off", bytes_per_us) {
    launches.start();
  }
  [[nodiscard]] double us_per_mb(std::size_t codec) const {
    const auto price = status("codecs").at(codec - 1);
    return price["encode_us_per_mb"].get<double>() + price["decode_us_per_mb"].get<double>();
  }
  void tell(std::size_t node, model::CodecIndex codec, double us_per_mb) {
    const std::vector<wire::CodecTime> times{{codec, 1'000'000, us_per_mb, 0}};
    for (std::size_t message = 0; message < CodecSlowdowns::kFirst; ++message) launches.codecs_measured(node, times);
  }
  void train(std::uint64_t steps, TimeUs compute_us) {
    for (const std::uint64_t end = step + steps; step < end; ++step) {
      launches.stage_began(sched::Stage::kForward, step, 0);
      clock.advance(compute_us / 3);
      launches.stage_began(sched::Stage::kBackward, step, 0);
      clock.advance(compute_us * 2 / 3);
      launches.bucket_ready(0, 0, step);
      for (auto orders = take_orders(); !orders.empty(); orders = take_orders())
        for (const auto& order : orders)
          for (std::size_t i = 0; i < order.launches.size(); ++i)
            launches.launch_finished(order.first + i, std::nullopt, false);
    }
  }
  std::vector<wire::LaunchOrder> take_orders() {
    auto orders = all<wire::LaunchOrder>();
    std::erase_if(sent, [](const auto& message) { return std::holds_alternative<wire::LaunchOrder>(message); });
    return orders;
  }
  std::uint64_t step = 0;
};

TEST(LaunchCoordinator, ShowsWhatCodecsCostAndWhichNodeSaysSo) {
  Encoding job;
  const auto at_first = job.status("codecs");
  ASSERT_EQ(at_first.size(), 2U);
  EXPECT_EQ(at_first[0]["codec"], "bf16");
  EXPECT_EQ(at_first[1]["codec"], "int8");
  for (const auto& codec : at_first) {
    EXPECT_EQ(codec["slowdown"], 1);
    EXPECT_EQ(codec["measured"], false);
    EXPECT_FALSE(codec.contains("node"));
  }
  const double bf16 = job.us_per_mb(1), int8 = job.us_per_mb(2);
  job.tell(1, 2, 5 * int8);
  EXPECT_NEAR(job.us_per_mb(2), 5 * int8, 1e-9 * int8);
  EXPECT_NEAR(job.us_per_mb(1), 5 * bf16, 1e-9 * bf16) << "it is slow at all codecs";
  const auto now = job.status("codecs");
  EXPECT_EQ(now[1]["node"], 1);
  EXPECT_EQ(now[1]["measured"], true);
  EXPECT_EQ(now[0]["node"], 1);
  EXPECT_EQ(now[0]["measured"], false);
}

TEST(LaunchCoordinator, PlansAnewWhenANodeTellsThatItsCodecIsSlow) {
  const double guess = Encoding().us_per_mb(2) / 1e6;  // for a byte, on this machine
  Encoding job(0.125 / guess);                         // an int8 byte is twice as long on the wire as in the codec
  const auto compute_us = static_cast<TimeUs>(4 * double{1 << 22} * guess);
  job.train(40, std::max<TimeUs>(compute_us, 300));
  const auto before = job.all<wire::PlanOrder>();
  ASSERT_FALSE(before.empty());
  job.tell(1, 2, 20e6 * guess);
  job.train(60, std::max<TimeUs>(compute_us, 300));
  const auto after = job.all<wire::PlanOrder>();
  ASSERT_GT(after.size(), before.size());
  EXPECT_NE(after.back().reason.find("the time of codec"), std::string::npos) << after.back().reason;
  EXPECT_NE(after.back().plan.codecs, before.back().plan.codecs);
}

TEST(LaunchCoordinator, ACodecThatEncodesAllIsPricedAsWell) {
  Launches job(1, "mergecomp\ncompression=int8");
  ASSERT_EQ(job.status("codecs").size(), 1U);
  EXPECT_EQ(job.status("codecs")[0]["codec"], "int8");
  EXPECT_TRUE(Launches().status("codecs").empty());
}

TEST(LaunchCoordinator, OrdersNothingBeforeTheJobRunsAndNothingOnceItHasFailed) {
  Launches job;
  job.launches.bucket_ready(0, 0, 0);
  EXPECT_TRUE(job.sent.empty());
  job.launches.start();
  job.launches.bucket_ready(0, 0, 0);
  EXPECT_FALSE(job.launched().empty());
  job.sent.clear();
  job.launches.stop();
  job.launches.bucket_ready(0, 0, 1);
  job.launches.stage_began(sched::Stage::kForward, 1, 0);
  job.launches.launch_finished(0, 100, false);
  EXPECT_TRUE(job.launches.flushed(0, 2));
  EXPECT_TRUE(job.sent.empty());
}

TEST(LaunchCoordinator, KnowsWhichNodeHasNotDeclaredWhatAnotherOneHas) {
  Launches job;
  const auto declare = [&](std::size_t node) {
    EXPECT_TRUE(job.launches.declare(node, {1, "sgd", {{"fc.weight", model::DType::kFloat32, {1 << 20}}}, 4},
                                     [](std::size_t of) { return "rank " + std::to_string(of); }));
  };
  const auto owed = [&](TimeUs now_us) { return job.launches.undeclared().watch(now_us, [](auto) { return false; }); };
  declare(1);
  const TimeUs too_late = job.clock.now_us() + job.settings.stall_timeout_us + 1;
  ASSERT_EQ(owed(too_late).size(), 1U);
  EXPECT_EQ(owed(too_late)[0].node, 0U);
  EXPECT_TRUE(owed(too_late)[0].too_long);
  EXPECT_EQ(owed(too_late)[0].name, "sgd (group 1)") << "group 0 has the same name, and all have declared it";
  declare(0);
  EXPECT_TRUE(owed(too_late).empty());
}

TEST(LaunchCoordinator, AllGroupsLaunchInOneCount) {
  Launches job(2);
  job.launches.start();
  for (const std::uint32_t group : {0, 1}) {
    EXPECT_EQ(job.launches.buckets(group), 1u);
    job.launches.bucket_ready(group, 0, 0);
  }
  std::uint64_t next = 0;
  for (const auto& order : job.all<wire::LaunchOrder>()) {
    EXPECT_EQ(order.first, next);
    next += order.launches.size();
  }
  const auto launched = job.launched();
  for (const std::uint32_t group : {0, 1})
    EXPECT_TRUE(std::ranges::any_of(launched, [&](const auto& launch) { return launch.group == group; })) << group;
  EXPECT_EQ(job.launches.buckets(2), 0u);
}

TEST(LaunchCoordinator, AMeasuredLinkIsKnownToTheSchedulersOfAllGroups) {
  Launches job(2);
  job.launches.start();
  job.launches.bucket_ready(0, 0, 0);
  const auto first = job.launched();
  const auto on_second = [](const std::vector<wire::Launch>& all) {
    return std::ranges::count(all, 1u, &wire::Launch::link);
  };
  EXPECT_EQ(on_second(first), static_cast<std::ptrdiff_t>(first.size() / 2)) << "both links seem alike";
  for (std::uint64_t number = 0; number < first.size(); ++number)
    job.launches.launch_finished(number, first[number].link == 1 ? 100'000 : 300, false);
  job.sent.clear();
  job.launches.bucket_ready(1, 0, 0);
  const auto second = job.launched();
  ASSERT_FALSE(second.empty());
  EXPECT_EQ(on_second(second), 0) << "the second link is slow";
}

std::vector<std::uint64_t> sizes_of(const std::vector<wire::Launch>& launches) {
  std::vector<std::uint64_t> sizes;
  for (const auto& launch : launches) sizes.push_back(launch.bytes);
  return sizes;
}

TEST(LaunchCoordinator, SettingsChangeFromTheNextStepOnAlsoForGroupsThatComeLater) {
  Launches job;
  EXPECT_FALSE(job.launches.change_settings({.policy = "knapsack"}));
  ASSERT_TRUE(job.launches.change_settings({.policy = "bytescheduler"}));
  ASSERT_TRUE(job.launches.change_settings({.partition_bytes = 2 << 20, .credit_bytes = 64 << 20}));
  job.launches.start();
  job.declare(1);
  for (const std::uint32_t group : {0, 1}) {
    job.sent.clear();
    job.launches.bucket_ready(group, 0, 0);
    EXPECT_EQ(sizes_of(job.launched()), (std::vector<std::uint64_t>{2 << 20, 2 << 20})) << group;
  }
  nlohmann::json status;
  job.launches.add_status(status);
  const nlohmann::json settings = {
      {"policy", "bytescheduler"}, {"partition_bytes", 2 << 20}, {"credit_bytes", 64 << 20}};
  EXPECT_EQ(status["settings"], settings);
  EXPECT_EQ(status["policies"].size(), 2u);
  EXPECT_EQ(status["policies"][0]["partition_bytes"], 2 << 20);
}

// Stages are told of one optimizer alone, here that of group 0. Its steps are no steps of the other one.
TEST(LaunchCoordinator, SettingsChangeWithTheNextStepOfAGroupThatMakesFewerStepsThanTheTimedOne) {
  Launches job(2);
  job.launches.start();
  for (std::uint64_t step = 0; step <= 50; ++step) {
    if (step == 50) {
      ASSERT_TRUE(job.launches.change_settings({.policy = "p3"}));
    }
    for (const auto stage : {sched::Stage::kForward, sched::Stage::kBackward}) job.launches.stage_began(stage, step, 0);
    job.launches.bucket_ready(0, 0, step);
    if (step % 5 == 0) job.launches.bucket_ready(1, 0, step / 5);
  }
  const auto policies = job.status("policies");
  ASSERT_EQ(policies.size(), 2U);
  for (const std::uint32_t group : {0, 1}) {
    EXPECT_EQ(policies[group]["policy"], "p3");
    EXPECT_EQ(policies[group]["from_step"], group == 0 ? 50 : 10);
  }
}

std::set<model::AllReduceHalf> halves_of(const std::vector<wire::Launch>& launched) {
  std::set<model::AllReduceHalf> halves;
  for (const auto& launch : launched) halves.insert(launch.half);
  return halves;
}

// The launches of dear are halves of an all-reduce, and such a group cannot have them.
TEST(LaunchCoordinator, ASettingThatOneGroupCannotHaveChangesNoGroup) {
  Launches job;
  job.declare(1, "int8");
  job.sent.clear();
  job.launches.start();
  const auto changed = job.launches.change_settings({.policy = "dear"});
  ASSERT_FALSE(changed);
  EXPECT_NE(changed.error().what.find("codecs of their own"), std::string::npos) << changed.error().what;
  job.launches.bucket_ready(0, 0, 0);
  EXPECT_EQ(halves_of(job.launched()), std::set{model::AllReduceHalf::kBoth});
  EXPECT_EQ(job.policy(), "fifo");
}

TEST(LaunchCoordinator, AGroupThatComesLaterAndCannotHaveTheNewSettingsKeepsTheJobsOwn) {
  Launches job;
  ASSERT_TRUE(job.launches.change_settings({.policy = "dear"}));
  job.declare(1, "int8");
  job.launches.start();
  job.sent.clear();
  job.launches.bucket_ready(1, 0, 0);
  EXPECT_EQ(halves_of(job.launched()), std::set{model::AllReduceHalf::kBoth});
  job.sent.clear();
  job.launches.bucket_ready(0, 0, 0);
  EXPECT_EQ(halves_of(job.launched()), std::set{model::AllReduceHalf::kReduceScatter});
  EXPECT_EQ(job.policy(), "dear");
}

TEST(LaunchCoordinator, TellsWithWhichPoliciesGroupsBeginAndWhatBecomesOfThem) {
  Launches job(2);
  auto begun = job.launches.take_policies();
  ASSERT_EQ(begun.size(), 2U);
  for (const std::uint32_t group : {0, 1}) {
    EXPECT_EQ(begun[group].group, group);
    EXPECT_EQ(begun[group].change.choice, sched::PolicyChoice{"fifo"});
    EXPECT_EQ(begun[group].change.sizes.partition_bytes, 256U << 10U);
    EXPECT_EQ(begun[group].change.why, model::PolicyReason::kBegan);
  }
  job.launches.start();
  ASSERT_TRUE(job.launches.change_settings({.policy = "p3"}));
  EXPECT_TRUE(job.launches.take_policies().empty()) << "from the next step on";
  job.launches.bucket_ready(1, 0, 0);
  const auto set = job.launches.take_policies();
  ASSERT_EQ(set.size(), 1U);
  EXPECT_EQ(set[0].group, 1U);
  EXPECT_EQ(set[0].change.choice.policy, "p3");
  EXPECT_EQ(set[0].change.why, model::PolicyReason::kUser);
}

TEST(LaunchCoordinator, TheStatusHasTheTimesOfTheNewestStepsWithoutGaps) {
  Launches job;
  job.launches.start();
  const auto step_times = [&job] {
    nlohmann::json status;
    job.launches.add_status(status);
    return status["step_times"];
  };
  const auto step_after = [&job](TimeUs us, std::uint64_t step) {
    job.clock.advance(us);
    job.launches.bucket_ready(0, 0, step);
  };
  EXPECT_EQ(step_times(), nlohmann::json::parse(R"([{"group": 0, "first_step": 0, "us": []}])"));
  step_after(1000, 0);
  step_after(700, 1);
  step_after(900, 2);
  EXPECT_EQ(step_times(), nlohmann::json::parse(R"([{"group": 0, "first_step": 0, "us": [700, 900]}])"));
  step_after(900, 7);
  step_after(300, 8);
  EXPECT_EQ(step_times(), nlohmann::json::parse(R"([{"group": 0, "first_step": 7, "us": [300]}])"));
  for (std::uint64_t step = 9; step < 9 + StepTimes::kMost; ++step) step_after(10, step);
  EXPECT_EQ(step_times()[0]["first_step"], 8);
  EXPECT_EQ(step_times()[0]["us"].size(), StepTimes::kMost);
}

TEST(LaunchCoordinator, ALostLinkIsNotUsedByAnyGroup) {
  Launches job(2);
  job.launches.start();
  job.launches.link_lost(1);
  for (const std::uint32_t group : {0, 1}) job.launches.bucket_ready(group, 0, 0);
  const auto launched = job.launched();
  ASSERT_FALSE(launched.empty());
  for (const auto& launch : launched) EXPECT_EQ(launch.link, 0u);
}

TEST(LaunchCoordinator, AGroupGoesWhenTheLastNodeHasReleasedIt) {
  Launches job(2);
  job.launches.start();
  job.launches.bucket_ready(0, 0, 0);
  const auto under_way = job.launched().size();
  ASSERT_TRUE(job.launches.release(1, 0));
  EXPECT_EQ(job.launches.buckets(0), 1u);
  ASSERT_TRUE(job.launches.release(0, 0));
  ASSERT_EQ(job.all<wire::Released>().size(), 1u);
  EXPECT_EQ(job.all<wire::Released>()[0].group, 0u);
  EXPECT_EQ(job.launches.buckets(0), 0u);
  nlohmann::json status;
  job.launches.add_status(status);
  EXPECT_EQ(status["outstanding"], 0);
  job.sent.clear();
  for (std::uint64_t number = 0; number < under_way; ++number) job.launches.launch_finished(number, 100, false);
  EXPECT_TRUE(job.sent.empty()) << "its launches end, and nothing follows";
  job.launches.bucket_ready(1, 0, 0);
  EXPECT_FALSE(job.launched().empty()) << "other groups go on";
}

TEST(LaunchCoordinator, ANodeReleasesAGroupOnce) {
  Launches job;
  job.launches.start();
  ASSERT_TRUE(job.launches.release(1, 0));
  const auto again = job.launches.release(1, 0);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().kind, ErrorKind::kViolation);
  EXPECT_TRUE(job.launches.release(1, 7)) << "of a group that nobody has declared; the codec refuses it";
}

TEST(LaunchCoordinator, ANumberIsNeverUsedAgainAndOnlyGroupsInUseCount) {
  const auto name_of = [](std::size_t node) { return "rank " + std::to_string(node); };
  const wire::Declare small{0, "sgd", {{"w", model::DType::kFloat32, {4}}}, 1};
  Launches job;
  job.launches.start();
  for (std::uint32_t group = 1; group < wire::kMaxGroups; ++group) {
    wire::Declare one = small;
    one.group = group;
    for (const std::size_t node : {0, 1}) ASSERT_TRUE(job.launches.declare(node, one, name_of));
  }
  wire::Declare next = small;
  next.group = wire::kMaxGroups;
  EXPECT_EQ(job.launches.declare(0, next, name_of).error().kind, ErrorKind::kExhausted);
  for (const std::size_t node : {0, 1}) ASSERT_TRUE(job.launches.release(node, 0));
  EXPECT_TRUE(job.launches.declare(0, next, name_of));
  wire::Declare again = small;
  EXPECT_EQ(job.launches.declare(0, again, name_of).error().kind, ErrorKind::kViolation);
}

}  // namespace
}  // namespace deft::daemon
