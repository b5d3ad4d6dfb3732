// What is ready goes to the links by the plan's dates.
#include "core/sched/due_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>

#include "core/model/buckets.h"
#include "core/model/update_cycle.h"

namespace deft::sched {
namespace {

constexpr double kComputeUs = 100'000;
constexpr double kRate = 100;  // bytes a microsecond: a part of a hundredth of a step is 100,000 bytes

Setup setup_of(const std::vector<std::uint64_t>& bytes, const std::vector<double>& rates, double latency_us = 10) {
  Setup setup;
  std::uint64_t offset = 0;
  for (std::uint32_t b = 0; b < bytes.size(); ++b) {
    setup.buckets.push_back({"b", offset, bytes[b], model::DType::kFloat32, b, b, 1});
    offset += bytes[b];
  }
  for (const double rate : rates) setup.links.push_back({"link", latency_us, rate});
  return setup;
}

// Links that run their launches one after the other.
class Links {
 public:
  explicit Links(const Setup& setup) : setup_(setup), codecs_(setup), queue(setup, codecs_) { queue.pace(kComputeUs); }

  void take() {
    std::vector<Launch> launches;
    queue.take(now_us, launches);
    for (const Launch& launch : launches) {
      sent.push_back(launch);
      auto& before = covered[{launch.bucket, launch.generation}];
      EXPECT_EQ(launch.offset, before);
      before += launch.bytes;
      free_us_[launch.link] = std::max(free_us_[launch.link], static_cast<double>(now_us)) + queue_us(launch);
      running_.insert({free_us_[launch.link], sent.size() - 1});
    }
  }
  bool finish_one() {
    if (running_.empty()) return false;
    const auto [at_us, index] = *running_.begin();
    running_.erase(running_.begin());
    now_us = static_cast<TimeUs>(at_us);
    ended_us[{sent[index].bucket, sent[index].generation}] = at_us;
    queue.finish(sent[index], now_us);
    take();
    return true;
  }
  void finish_all() {
    while (finish_one()) {
    }
  }
  void finish_until(TimeUs us) {
    while (!running_.empty() && running_.begin()->first <= static_cast<double>(us)) finish_one();
    now_us = us;
  }
  [[nodiscard]] std::size_t on_way() const { return running_.size(); }
  [[nodiscard]] std::uint64_t bytes_on(model::LinkIndex link) const {
    std::uint64_t bytes = 0;
    for (const Launch& launch : sent)
      if (launch.link == link) bytes += launch.bytes;
    return bytes;
  }

 private:
  [[nodiscard]] double queue_us(const Launch& launch) const {
    const auto& link = setup_.links[launch.link];
    return link.latency_us + static_cast<double>(codecs_.on_wire(launch).bytes) / link.bytes_per_us;
  }
  Setup setup_;
  LaunchCodecs codecs_;
  std::map<model::LinkIndex, double> free_us_;
  std::set<std::pair<double, std::size_t>> running_;

 public:
  DueQueue queue;
  TimeUs now_us = 0;
  std::vector<Launch> sent;
  std::map<std::pair<model::BucketIndex, std::uint64_t>, std::uint64_t> covered;
  std::map<std::pair<model::BucketIndex, std::uint64_t>, double> ended_us;
};

TEST(DueQueue, sendsWhatIsDueFirstAndOfThatWhatIsUrgent) {
  Links links(setup_of({50'000, 50'000, 50'000}, {kRate}));
  links.queue.add({0, 0, 5, 0});
  links.queue.add({1, 0, 4, 7});
  links.queue.add({2, 0, 4, 3});
  links.take();
  links.finish_all();
  std::vector<model::BucketIndex> order;
  for (const Launch& launch : links.sent) order.push_back(launch.bucket);
  EXPECT_EQ(order, (std::vector<model::BucketIndex>{2, 1, 0}));
}

TEST(DueQueue, aRestThatIsLittleMoreThanAPartGoesWithIt) {
  Links links(setup_of({120'000}, {kRate}));  // a part is 100,000 bytes
  links.queue.add({0, 0, 5, 0});
  links.take();
  ASSERT_EQ(links.sent.size(), 1U);
  EXPECT_EQ(links.sent.front().bytes, 120'000U);
}

// Parameter servers answer an encoding with more bytes than they get. So the queue gives their link fewer encoded bytes.
TEST(DueQueue, aLinkThatTakesMoreOfAnEncodingGetsLess) {
  auto setup = setup_of({64'000'000}, {kRate, kRate});
  setup.buckets[0].coded_bytes = setup.buckets[0].bytes;
  setup.codecs = {{}, {.name = "half", .wire_share = 0.25, .link_shares = {0.25, 0.5}}};
  setup.codec = 1;
  Links links(setup);
  links.queue.add({0, 0, 5, 0, 1});
  links.take();
  links.finish_all();
  EXPECT_EQ((links.covered[{0, 0}]), 64'000'000U);
  EXPECT_NEAR(static_cast<double>(links.bytes_on(0)) / static_cast<double>(links.bytes_on(1)), 2, 0.1);
}

TEST(DueQueue, whatIsUrgentWaitsForTwoPartsOfWhatIsLate) {
  Links links(setup_of({50'000'000, 50'000}, {kRate}));
  links.queue.add({0, 0, 9, 0});
  links.take();
  for (int part = 0; part < 20; ++part) links.finish_one();
  const std::size_t before = links.sent.size();
  links.queue.add({1, 3, 5, 0});
  links.take();
  links.finish_one();
  ASSERT_EQ(links.sent.size(), before + 1);
  EXPECT_EQ(links.sent.back().bucket, 1U);
  EXPECT_EQ(links.sent.back().generation, 3U);
  links.finish_all();
  EXPECT_EQ((links.covered[{0, 0}]), 50'000'000U);
  EXPECT_EQ((links.covered[{1, 3}]), 50'000U);
}

constexpr double kLongLatencyUs = 500;  // a part lasts a tenth of a step, and the least one six latencies

TEST(DueQueue, whatIsUrgentWaitsForNoPartWhereItComesWhenExpected) {
  for (const TimeUs urgent_us : {3'000, 8'000, 47'300, 60'100}) {
    Links links(setup_of({50'000'000, 50'000}, {kRate}, kLongLatencyUs));
    links.queue.add({0, 0, 9, 0});
    links.queue.expect_urgent(static_cast<double>(urgent_us));
    links.take();
    links.finish_until(urgent_us);
    links.queue.expect_urgent({});
    links.queue.add({1, 3, 5, 0});
    links.take();
    links.finish_all();
    const double own_us = kLongLatencyUs + 50'000 / kRate;
    EXPECT_LE(links.ended_us.at({1, 3}), static_cast<double>(urgent_us) + kLongLatencyUs + own_us) << urgent_us;
  }
}

TEST(DueQueue, noLinkIdlesWhereTheUrgentComesLaterThanExpected) {
  Links links(setup_of({5'000'000}, {kRate}, kLongLatencyUs));
  links.queue.add({0, 0, 9, 0});
  links.queue.expect_urgent(8'000);
  links.take();
  links.finish_until(20'000);
  EXPECT_EQ(links.on_way(), 2U) << "one runs, the next waits behind it";
  links.finish_all();
  EXPECT_EQ((links.covered[{0, 0}]), 5'000'000U);
  const double busy_us = 5'000'000 / kRate + static_cast<double>(links.sent.size()) * kLongLatencyUs;
  EXPECT_NEAR(static_cast<double>(links.now_us), busy_us, 1);
}

// 64 KiB would keep this link for 6 % of a step.
TEST(DueQueue, partsAreShortOnASlowLinkTooWhereTheUrgentIsDue) {
  constexpr double kSlow = 4.4, kLongStepUs = 247'000;
  auto setup = setup_of({4'000'000, 147'712}, {kSlow, kSlow}, 120);
  for (auto& bucket : setup.buckets) bucket.coded_bytes = bucket.bytes;
  setup.codecs = {{}, {.name = "int4", .wire_share = 0.129}};
  Links links(setup);
  links.queue.pace(kLongStepUs);
  links.queue.expect_urgent(0);
  links.queue.add({0, 0, 5, 0, 1});
  links.take();
  ASSERT_EQ(links.sent.size(), 4U) << "one runs on each link, the next waits behind it";
  for (const Launch& launch : links.sent)
    EXPECT_LE(0.129 * static_cast<double>(launch.bytes) / kSlow, 0.02 * kLongStepUs);
}

TEST(DueQueue, allLinksEndTogetherWhereNothingElseWaits) {
  Links links(setup_of({300'000}, {kRate, kRate}));  // three parts would keep one link twice as long as the other
  links.queue.add({0, 0, 1, 0});
  links.take();
  links.finish_all();
  EXPECT_EQ((links.covered[{0, 0}]), 300'000U);
  EXPECT_LE(links.now_us, 1.15 * 150'000 / kRate);
}

TEST(DueQueue, whatIsSmallWaitsForNoRoom) {
  Links links(setup_of({1'000'000, 1000, 16384}, {kRate, kRate / 4}));
  links.queue.add({0, 0, 1, 0});
  links.take();
  const std::size_t before = links.sent.size();
  links.queue.add({1, 0, 5, 1});  // though it is due later
  links.queue.add({2, 0, 5, 2});
  links.take();
  ASSERT_EQ(links.sent.size(), before + 2);
  EXPECT_EQ(links.sent[before].link, 0U) << "the faster one";
  EXPECT_EQ(links.sent[before + 1].bytes, 16384U);
  links.finish_all();
  EXPECT_EQ((links.covered[{0, 0}]), 1'000'000U);
}

TEST(DueQueue, whatIsSmallAndEncodedTakesNoRoomEither) {
  auto setup = setup_of({1'000'000, 16384}, {kRate});
  for (auto& bucket : setup.buckets) bucket.coded_bytes = bucket.bytes;
  setup.codecs = {{}, {.name = "quarter", .wire_share = 0.25}};
  setup.codec = 1;
  Links links(setup);
  links.queue.add({1, 0, 1, 0, 1});
  links.take();
  ASSERT_EQ(links.sent.size(), 1U);
  links.queue.add({0, 0, 5, 1, 1});
  links.take();
  EXPECT_GT(links.sent.size(), 1U) << "the large one need not wait for the small one";
  links.finish_all();
}

// A link sees the encoding alone.
TEST(DueQueue, whatIsSmallOnTheWireWaitsForNoRoomEither) {
  for (const bool small_overtake : {true, false}) {
    auto setup = setup_of({1'000'000, 64 << 10}, {kRate});
    for (auto& bucket : setup.buckets) bucket.coded_bytes = bucket.bytes;
    setup.codecs = {{}, {.name = "int4", .wire_share = 0.129}};
    setup.small_overtake = small_overtake;
    Links links(setup);
    links.queue.add({0, 0, 1, 0});
    links.take();
    const std::size_t before = links.sent.size();
    links.queue.add({1, 0, 5, 1, 1});
    links.take();
    EXPECT_EQ(links.sent.size(), before + (small_overtake ? 1 : 0));
    links.finish_all();
    EXPECT_EQ((links.covered[{1, 0}]), 64U << 10);
  }
}

TEST(DueQueue, smallOnesGoByTheirDatesWhereThereAreMany) {
  Links links(setup_of(std::vector<std::uint64_t>(40, 16384), {kRate}));
  for (std::uint32_t b = 0; b < 40; ++b) links.queue.add({b, 0, 1, 39 - b});
  links.take();
  EXPECT_EQ(links.sent.size(), 4U);
  links.finish_all();
  ASSERT_EQ(links.sent.size(), 40U);
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(links.sent[i].bucket, 39 - i);
}

TEST(DueQueue, sharesABucketByWhatTheLinksCarry) {
  Links links(setup_of({50'000'000}, {kRate, kRate / 4}));
  links.queue.add({0, 0, 1, 0});
  links.take();
  links.finish_all();
  EXPECT_EQ((links.covered[{0, 0}]), 50'000'000U);
  EXPECT_NEAR(static_cast<double>(links.bytes_on(0)), 40e6, 0.5e6);
}

// A slow link would hold up what a fast one has sent by then.
TEST(DueQueue, sparesASlowLinkWhatAFastOneSendsSooner) {
  Links links(setup_of({120'000}, {kRate, kRate / 50}));
  links.queue.add({0, 0, 1, 0});
  links.take();
  links.finish_all();
  EXPECT_EQ(links.bytes_on(1), 0U);
}

TEST(DueQueue, leavesALostLinkAtOnce) {
  Links links(setup_of({50'000'000}, {kRate, kRate}));
  links.queue.add({0, 0, 1, 0});
  links.take();
  links.queue.remove(1);
  const std::uint64_t before = links.bytes_on(1);
  links.finish_all();
  EXPECT_EQ(links.bytes_on(1), before);
  EXPECT_EQ((links.covered[{0, 0}]), 50'000'000U);
}

TEST(DueQueue, followsTheDatesThatAFlushHasMoved) {
  std::vector<model::UpdateSchedule> schedules(3);
  model::follow(schedules, 0, {{2, {{0, 1, 6}}}, {{2, {2, {{0, 1, 3}}}}}});
  Links links(setup_of({2'000'000, 2'000'000, 2'000'000}, {kRate}));
  for (model::BucketIndex b = 0; b < 3; ++b) links.queue.add({b, 0, schedules[b].at(0).apply_step, b});
  links.take();
  ASSERT_EQ(links.sent.front().bucket, 2U);
  model::cut(schedules, 2);  // now all three are due before step 2, the first of them first
  links.queue.update_due_steps(schedules);
  const std::size_t before = links.sent.size();
  links.finish_one();
  ASSERT_GT(links.sent.size(), before);
  EXPECT_EQ(links.sent[before].bucket, 0U);
}

TEST(DueQueue, cutsPartsThatAreLongBesideTheLatency) {
  Links links(setup_of({50'000'000}, {kRate}, 200));
  links.queue.add({0, 0, 1, 0});
  links.take();
  links.finish_all();
  EXPECT_EQ(links.sent.front().bytes, 40 * 200 * 100 / model::kPartAlignBytes * model::kPartAlignBytes);
}

}  // namespace
}  // namespace deft::sched
