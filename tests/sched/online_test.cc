// What must hold for every synchronous policy, whatever becomes ready when: driven here by random events, with links
// that finish at random times.
#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <deque>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "core/base/policy_traits.h"
#include "core/model/buckets.h"
#include "core/sched/profile_meter.h"
#include "core/sched/scheduler.h"

namespace deft::sched {
namespace {

using model::BucketIndex;

Setup random_setup(std::string_view policy) {
  Setup setup;
  setup.policy = policy;
  const auto buckets = *rc::gen::inRange<std::uint32_t>(1, 24);
  std::uint64_t offset = 0;
  for (std::uint32_t i = 0; i < buckets; ++i) {
    const auto bytes = 4 * *rc::gen::inRange<std::uint64_t>(1, 1 << *rc::gen::inRange(1, 20));
    setup.buckets.push_back({"b", offset, bytes, model::DType::kFloat32, (buckets - 1 - i) / 2, i, 1});
    setup.buckets.back().uncut = *rc::gen::inRange(0, 4) == 0;
    offset += bytes;
  }
  const auto links = *rc::gen::inRange(1, 5);
  for (int i = 0; i < links; ++i)
    setup.links.push_back({"l", *rc::gen::inRange(0, 100) * 1.0, *rc::gen::inRange(1, 1000) * 1.0});
  setup.partition_bytes = *rc::gen::inRange<std::uint64_t>(model::kPartAlignBytes, 1 << 20);
  setup.credit_bytes = *rc::gen::inRange<std::uint64_t>(1, 1 << 21);
  return setup;
}

// Without a profile `knapsack` is synchronous for the first steps too; `knapsack-paper` needs one.
std::string_view any_policy() {
  const PolicyTraits& traits = kPolicyTraits[*rc::gen::inRange<std::size_t>(0, kPolicyTraits.size())];
  return traits.simulator_only ? std::string_view("knapsack") : traits.name;
}

// Plays steps with random readiness and random finishes, and checks each launch when it comes.
class Play {
 public:
  explicit Play(const Setup& setup)
      : setup_(setup), scheduler_(measured(*make_scheduler(setup), setup)), flights_(setup.links.size()) {}

  // From some moment of the next step on.
  void lose_a_link() { losing_ = true; }

  void step(std::uint64_t step) {
    scheduler_->stage_began(Stage::kForward, step, now_, 0);
    collect();
    scheduler_->stage_began(Stage::kBackward, step, now_, 0);
    collect();
    std::vector<BucketIndex> waiting(setup_.buckets.size());
    std::iota(waiting.begin(), waiting.end(), 0);
    while (!waiting.empty() || in_flight() > 0) {
      now_ += *rc::gen::inRange(0, 1000);
      if (losing_ && *rc::gen::inRange(0, 5) == 0) lose_one();
      if (waiting.empty() || (in_flight() > 0 && *rc::gen::arbitrary<bool>())) {
        finish_one();
      } else {
        const auto at = waiting.begin() + *rc::gen::inRange<std::ptrdiff_t>(0, std::ssize(waiting));
        ready_.insert({*at, step});
        scheduler_->bucket_ready(*at, step, now_);
        waiting.erase(at);
      }
      collect();
    }
    check_complete(step);
  }

  [[nodiscard]] const std::vector<Launch>& launches() const { return launches_; }

 private:
  [[nodiscard]] std::size_t in_flight() const {
    std::size_t count = 0;
    for (const auto& queue : flights_) count += queue.size();
    return count;
  }

  void finish_one() {
    auto link = *rc::gen::inRange<std::size_t>(0, flights_.size());
    while (flights_[link].empty()) link = (link + 1) % flights_.size();
    const Launch done = flights_[link].front();
    flights_[link].pop_front();
    if (done.half == AllReduceHalf::kReduceScatter) ended_halves_.insert({done.generation, done.bucket, done.offset});
    scheduler_->part_finished(done, now_);
    if (*rc::gen::inRange(0, 4) == 0)
      scheduler_->link_measured(done.link, {"l", 1.0 * *rc::gen::inRange(0, 50), 1.0 + *rc::gen::inRange(0, 500)});
  }

  void lose_one() {
    losing_ = false;
    if (lost_.size() + 1 == flights_.size()) return;
    auto link = *rc::gen::inRange<model::LinkIndex>(0, static_cast<model::LinkIndex>(flights_.size()));
    while (lost_.contains(link)) link = (link + 1) % static_cast<model::LinkIndex>(flights_.size());
    lost_.insert(link);
    scheduler_->link_lost(link);
  }

  void collect() {
    for (const Launch& launch : scheduler_->take_launches(now_)) {
      check(launch);
      flights_[launch.link].push_back(launch);
      launches_.push_back(launch);
    }
    for (const Update& update : scheduler_->take_updates()) updates_.push_back(update);
  }

  void check(const Launch& launch) {
    RC_ASSERT(launch.id == launches_.size());
    RC_ASSERT(launch.link < setup_.links.size());
    if (setup_.policy != "knapsack") RC_ASSERT(!lost_.contains(launch.link));  // its plan ends later
    RC_ASSERT(launch.bytes > 0u);
    RC_ASSERT(launch.offset < setup_.buckets[launch.bucket].bytes);
    if (setup_.policy != "mgwfbp" && setup_.policy != "mergecomp" && setup_.policy != "auto" && setup_.policy != "dear")
      RC_ASSERT(launch.offset + launch.bytes <= setup_.buckets[launch.bucket].bytes);
    check_pieces(launch);
    check_end(launch);
    if (launch.half == AllReduceHalf::kAllGather)
      RC_ASSERT((ended_halves_.contains({launch.generation, launch.bucket, launch.offset})));
    const bool urgent_first = find_policy(setup_.policy)->urgent_first;
    RC_ASSERT(launch.priority == (urgent_first ? setup_.buckets[launch.bucket].forward_position : 0));
    const bool uncut = setup_.buckets[launch.bucket].uncut;
    if (setup_.policy == "bytescheduler" || setup_.policy == "p3")
      RC_ASSERT(uncut || launch.bytes <= setup_.partition_bytes);
    if (setup_.policy == "bytescheduler") {
      std::uint64_t before = 0;
      for (const auto& flight : flights_[launch.link]) before += flight.bytes;
      RC_ASSERT(before == 0u || before + launch.bytes <= setup_.credit_bytes);
    }
  }

  // Blocks of codecs begin at multiples of kPartAlignBytes in the arena. Whatever cuts a bucket cuts no block.
  void check_end(const Launch& launch) {
    const std::uint64_t end = setup_.buckets[launch.bucket].offset + launch.offset + launch.bytes;
    const bool ends_a_bucket =
        std::ranges::any_of(setup_.buckets, [end](const auto& b) { return b.offset + b.bytes == end; });
    RC_ASSERT(ends_a_bucket || end % model::kPartAlignBytes == 0);
  }

  void check_pieces(const Launch& launch) {
    const auto bytes_of = [this](BucketIndex bucket) { return setup_.buckets[bucket].bytes; };
    const model::BucketPiece run{launch.bucket, launch.offset, launch.bytes};
    RC_ASSERT(model::for_each_piece(run, setup_.buckets.size(), bytes_of, [&](const model::BucketPiece& piece) {
      RC_ASSERT((ready_.contains({piece.bucket, launch.generation})));
      const model::Bucket& bucket = setup_.buckets[piece.bucket];
      RC_ASSERT(bucket.dtype == setup_.buckets[launch.bucket].dtype);
      RC_ASSERT(!bucket.uncut || piece.bytes == bucket.bytes);
      if (launch.half != AllReduceHalf::kAllGather) {
        RC_ASSERT((reduced_.insert({piece.bucket, launch.generation, piece.offset, piece.bytes}).second));
        if (launch.half == AllReduceHalf::kReduceScatter) return true;
      }
      RC_ASSERT((reduced_.contains({piece.bucket, launch.generation, piece.offset, piece.bytes})));
      RC_ASSERT((ranges_[{piece.bucket, launch.generation}].emplace(piece.offset, piece.bytes).second));
      return true;
    }));
  }

  void check_complete(std::uint64_t step) {
    for (BucketIndex bucket = 0; bucket < setup_.buckets.size(); ++bucket) {
      std::uint64_t at = 0;
      for (const auto& [offset, bytes] : ranges_[{bucket, step}]) {
        RC_ASSERT(offset == at);
        at += bytes;
      }
      RC_ASSERT(at == setup_.buckets[bucket].bytes);
    }
    RC_ASSERT(updates_.size() == setup_.buckets.size());
    std::set<BucketIndex> updated;
    for (const auto& update : updates_) {
      RC_ASSERT(updated.insert(update.bucket).second);
      RC_ASSERT(update.generation == step);
      RC_ASSERT(update.first_step == step);
      RC_ASSERT(update.last_step == step);
      RC_ASSERT(update.apply_step == step + 1);
    }
    updates_.clear();
  }

  Setup setup_;
  std::unique_ptr<Scheduler> scheduler_;
  TimeUs now_ = 0;
  std::vector<std::deque<Launch>> flights_;
  std::set<std::pair<BucketIndex, std::uint64_t>> ready_;
  std::map<std::pair<BucketIndex, std::uint64_t>, std::map<std::uint64_t, std::uint64_t>> ranges_;
  std::set<std::tuple<BucketIndex, std::uint64_t, std::uint64_t, std::uint64_t>> reduced_;
  std::set<std::tuple<std::uint64_t, BucketIndex, std::uint64_t>> ended_halves_;  // reduce-scatters
  std::vector<Launch> launches_;
  std::vector<Update> updates_;
  bool losing_ = false;
  std::set<model::LinkIndex> lost_;
};

RC_GTEST_PROP(Online, EveryByteIsLaunchedOnceAfterItIsReadyAndWithinTheCredit, ()) {
  Play play(random_setup(any_policy()));
  const auto steps = *rc::gen::inRange<std::uint64_t>(1, 4);
  for (std::uint64_t step = 0; step < steps; ++step) play.step(step);
}

// Long enough that it merges by what it has measured, and changes its mind; with two types, that never share a launch.
RC_GTEST_PROP(Online, MgWfbpSendsEveryByteOnceWhileItMergesAndChangesItsGroups, ()) {
  auto setup = random_setup("mgwfbp");
  const auto border = *rc::gen::inRange<std::size_t>(0, setup.buckets.size());
  for (std::size_t i = border; i < setup.buckets.size(); ++i) setup.buckets[i].dtype = model::DType::kInt32;
  for (auto& link : setup.links) link.latency_us *= 20;
  Play play(setup);
  for (std::uint64_t step = 0; step < 14; ++step) {
    if (step == 11 && *rc::gen::arbitrary<bool>()) play.lose_a_link();
    play.step(step);
  }
  const bool merged = std::ranges::any_of(play.launches(), [&](const Launch& launch) {
    return launch.offset + launch.bytes > setup.buckets[launch.bucket].bytes;
  });
  RC_CLASSIFY(merged);
}

// Long enough that its model has measurements, and changes between blocks and equal parts with the links.
RC_GTEST_PROP(Online, UsByteSendsEveryByteOnceWhileItsModelChangesItsMind, ()) {
  Play play(random_setup("usbyte"));
  for (std::uint64_t step = 0; step < 40; ++step) {
    if (step == 11 && *rc::gen::arbitrary<bool>()) play.lose_a_link();
    play.step(step);
  }
}

RC_GTEST_PROP(Online, WhatIsOnALostLinkStillEndsAndNothingMoreIsLaunchedThere, ()) {
  Play play(random_setup(any_policy()));
  for (std::uint64_t step = 0; step < 4; ++step) {
    play.lose_a_link();
    play.step(step);
  }
}

Setup plain(std::string_view policy, std::initializer_list<std::uint64_t> bytes,
            std::vector<model::LinkModel> links = {{"a", 0, 1}}) {
  Setup setup;
  setup.policy = policy;
  setup.links = std::move(links);
  const auto count = static_cast<std::uint32_t>(bytes.size());
  std::uint32_t i = 0;
  for (const auto size : bytes)
    setup.buckets.push_back({"b", 0, size, model::DType::kFloat32, count - 1 - i, i, 1}), ++i;
  setup.partition_bytes = 16'000;
  setup.credit_bytes = 16'000;
  return setup;
}

MATCHER_P3(Part, bucket, offset, bytes, "") {
  return arg.bucket == static_cast<BucketIndex>(bucket) && arg.offset == static_cast<std::uint64_t>(offset) &&
         arg.bytes == static_cast<std::uint64_t>(bytes);
}

TEST(Fifo, SendsWholeBucketsInOrderOfReadinessOnOneLink) {
  auto scheduler = *make_scheduler(plain("fifo", {5000, 64, 3000}));
  for (const BucketIndex bucket : {1, 0, 2}) scheduler->bucket_ready(bucket, 0, 0);
  EXPECT_THAT(scheduler->take_launches(0), testing::ElementsAre(Part(1, 0, 64), Part(0, 0, 5000), Part(2, 0, 3000)));
}

TEST(Fifo, SharesABucketAmongLinksByTheirSpeed) {
  auto setup = plain("fifo", {102'400}, {{"slow", 0, 1}, {"fast", 0, 3}});
  setup.partition_bytes = 10'240;
  setup.credit_bytes = 1 << 20;
  auto scheduler = *make_scheduler(setup);
  scheduler->bucket_ready(0, 0, 0);
  std::vector<std::uint64_t> bytes(2);
  for (const auto& launch : scheduler->take_launches(0)) bytes[launch.link] += launch.bytes;
  EXPECT_THAT(bytes, testing::ElementsAre(20'480u, 81'920u));  // ends after 20 and 27 ms; 31 and 24 would be later
}

TEST(ByteScheduler, AnUrgentBucketOvertakesAtThePartBoundary) {
  auto scheduler = *make_scheduler(plain("bytescheduler", {30'720, 30'720}));  // two parts of 15'360 each
  scheduler->bucket_ready(0, 0, 0);
  auto first = scheduler->take_launches(0);
  ASSERT_THAT(first, testing::ElementsAre(Part(0, 0, 15'360)));
  scheduler->bucket_ready(1, 0, 10);
  EXPECT_TRUE(scheduler->take_launches(10).empty());  // no credit
  std::vector<Launch> order;
  for (TimeUs now = 16'000; !first.empty(); now += 16'000) {
    scheduler->part_finished(first[0], now);
    first = scheduler->take_launches(now);
    order.insert(order.end(), first.begin(), first.end());
  }
  EXPECT_THAT(order, testing::ElementsAre(Part(1, 0, 15'360), Part(1, 15'360, 15'360), Part(0, 15'360, 15'360)));
}

TEST(ByteScheduler, APartLargerThanTheCreditGoesAlone) {
  auto setup = plain("bytescheduler", {64'000});
  setup.credit_bytes = 10;
  auto scheduler = *make_scheduler(setup);
  scheduler->bucket_ready(0, 0, 0);
  const auto first = scheduler->take_launches(0);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_TRUE(scheduler->take_launches(0).empty());
  scheduler->part_finished(first[0], 1000);
  EXPECT_EQ(scheduler->take_launches(1000).size(), 1u);
}

TEST(ByteScheduler, WaitsForTheFastLinkWhereTheSlowOneWouldFinishLater) {
  auto scheduler = *make_scheduler(plain("bytescheduler", {30'720}, {{"fast", 0, 100}, {"slow", 0, 1}}));
  scheduler->bucket_ready(0, 0, 0);
  const auto first = scheduler->take_launches(0);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].link, 0u);
  scheduler->part_finished(first[0], 10);
  EXPECT_EQ(scheduler->take_launches(10).at(0).link, 0u);
}

// The slow link takes a hundred times as long for a part of the same size, and urgent gradients would wait for it.
TEST(ByteScheduler, PartsAreShortOnTheSlowLinkThatIsLeft) {
  auto setup = plain("bytescheduler", {2 << 20}, {{"fast", 0, 1000}, {"slow", 0, 10}});
  setup.partition_bytes = 1 << 20;
  setup.credit_bytes = 4 << 20;
  auto scheduler = *make_scheduler(setup);
  scheduler->link_lost(0);
  scheduler->bucket_ready(0, 0, 0);
  EXPECT_EQ(scheduler->take_launches(0).at(0).bytes, 256U << 10);
}

// All of it is less than the smallest block, so the slow link's share of it, too, is all of it once it is rounded up.
TEST(BlockScheduler, ASmallBucketGoesToTheLinkThatEndsItSooner) {
  for (const std::string_view policy : {"prophet", "usbyte"}) {
    auto scheduler = *make_scheduler(plain(policy, {269}, {{"slow", 0, 0.44}, {"fast", 0, 4}}));
    scheduler->bucket_ready(0, 0, 0);
    const auto launches = scheduler->take_launches(0);
    ASSERT_EQ(launches.size(), 1U) << policy;
    EXPECT_EQ(launches[0].link, 1U) << policy;
    EXPECT_EQ(launches[0].bytes, 269U) << policy;
  }
}

TEST(ByteScheduler, AMeasuredLinkIsUsedForWhatItIsWorth) {
  auto scheduler = *make_scheduler(plain("bytescheduler", {960, 960}, {{"a", 0, 1}, {"b", 0, 1}}));
  scheduler->link_measured(0, {"a", 0, 0.001});
  scheduler->link_measured(1, {"b", 0, std::numeric_limits<double>::quiet_NaN()});  // no news
  scheduler->bucket_ready(0, 0, 0);
  EXPECT_EQ(scheduler->take_launches(0).at(0).link, 1u);
}

TEST(MakeScheduler, ImpossibleSetupsAreErrorsThatNameThePlace) {
  const auto message = [](const auto& setup) {
    const auto scheduler = make_scheduler(setup);
    return scheduler ? std::string() : scheduler.error().message();
  };
  const auto good = plain("fifo", {64});
  auto setup = good;
  setup.policy = "fife";
  EXPECT_THAT(message(setup), testing::HasSubstr("fife"));
  setup = good;
  setup.buckets.clear();
  EXPECT_THAT(message(setup), testing::HasSubstr("no buckets"));
  setup = good;
  setup.buckets[0] = {"conv1", 0, 0, model::DType::kFloat32, 0, 0, 1};
  EXPECT_THAT(message(setup), testing::HasSubstr("conv1"));
  setup = good;
  setup.links.clear();
  EXPECT_THAT(message(setup), testing::HasSubstr("no links"));
  setup = good;
  setup.links[0] = {"eth7", 0, 0};
  EXPECT_THAT(message(setup), testing::HasSubstr("eth7"));
  setup = good;
  setup.partition_bytes = 0;
  EXPECT_THAT(message(setup), testing::HasSubstr("partition_bytes"));
}

}  // namespace
}  // namespace deft::sched
