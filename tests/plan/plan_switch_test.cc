// The knapsack policy as the daemon drives it: plans that change, and flushes between any two steps.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <optional>
#include <utility>

#include "core/model/update_schedule.h"
#include "core/sched/profile_meter.h"
#include "core/sched/scheduler.h"

namespace deft::sched {
namespace {

Setup small_setup(std::size_t buckets, std::size_t links) {
  Setup setup;
  setup.policy = "knapsack";
  std::uint64_t offset = 0;
  for (std::uint32_t b = 0; b < buckets; ++b) {
    const auto bytes = *rc::gen::inRange<std::uint64_t>(1, 2000) * 64;
    setup.buckets.push_back({"b", offset, bytes, model::DType::kFloat32, b, b, 1});
    offset += bytes;
  }
  for (std::size_t l = 0; l < links; ++l) setup.links.push_back({"link", 10, 100});
  setup.limits.max_generations = 4;
  return setup;
}

// Runs steps of random length, within `spread_us` of 2750, over a scheduler and keeps the workers' schedule beside it.
class Driver {
 public:
  explicit Driver(const Setup& setup, TimeUs spread_us = 2250)
      : setup_(setup),
        spread_us_(spread_us),
        scheduler_(measured(make_scheduler(setup).value(), setup)),
        schedules_(setup.buckets.size()) {}

  void step() {
    const auto backward_us = 2750 + *rc::gen::inRange<TimeUs>(-spread_us_, spread_us_);
    scheduler_->stage_began(Stage::kForward, step_, now_, 0);
    take();
    now_ += backward_us / 2;
    scheduler_->stage_began(Stage::kBackward, step_, now_, 0);
    for (model::BucketIndex b = 0; b < setup_.buckets.size(); ++b) {
      now_ += backward_us / static_cast<TimeUs>(setup_.buckets.size());
      ready_[b] = step_ + 1;
      if (schedules_[b].of_step(step_).last_step == step_) scheduler_->bucket_ready(b, step_, now_);
      take();
    }
    ++step_;
  }

  // The daemon has the same order: the flush first, then what was gathered.
  void flush() {
    std::vector<model::BucketIndex> under_way;
    for (model::BucketIndex b = 0; b < setup_.buckets.size(); ++b)
      if (schedules_[b].of_step(step_ - 1).last_step >= step_) under_way.push_back(b);
    model::cut(schedules_, step_);
    scheduler_->flushed(step_, now_);
    for (const auto bucket : under_way) scheduler_->bucket_ready(bucket, step_ - 1, now_);
    do take();
    while (!on_way_.empty());
    check_complete();
  }

  void change_links(double bytes_per_us) {
    for (model::LinkIndex l = 0; l < setup_.links.size(); ++l) scheduler_->link_measured(l, {"link", 10, bytes_per_us});
  }

  void lose(model::LinkIndex link) {
    lost_ = link;
    scheduler_->link_lost(link);
  }
  // Every byte of every generation so far was launched once.
  void check_complete() const {
    for (model::BucketIndex b = 0; b < setup_.buckets.size(); ++b)
      for (std::uint64_t g = 0; schedules_[b].at(g).last_step < step_; ++g) {
        const auto sent = sent_.find({g, b});
        RC_ASSERT(sent != sent_.end());
        RC_ASSERT(sent->second == setup_.buckets[b].bytes);
      }
  }
  [[nodiscard]] unsigned switches() const { return switches_; }
  [[nodiscard]] unsigned mixed() const { return mixed_; }

 private:
  void take() {
    scheduler_->take_updates();
    if (const auto change = scheduler_->take_switch()) {
      RC_ASSERT(change->step > step_);
      // A worker that waits for what is due before that step has waited for something launched after this. It hears of a
      // plan that is given before the first update.
      const auto next = schedules_[0].of_step(step_ + 1);
      RC_ASSERT(next.apply_step < change->step || (setup_.pinned && switches_ == 0));
      RC_ASSERT(!sent_.contains({next.generation, 0}));
      model::follow(schedules_, change->step, change->plan.cycles);
      if (!change->plan.cycles.own.empty()) ++mixed_;
      ++switches_;
    }
    std::map<std::pair<model::LinkIndex, model::BucketIndex>, std::uint64_t> newest;
    for (const auto& launch : std::exchange(on_way_, {})) scheduler_->part_finished(launch, now_);
    on_way_ = scheduler_->take_launches(now_);
    for (const auto& launch : on_way_) {
      RC_ASSERT(schedules_[launch.bucket].at(launch.generation).last_step < ready_[launch.bucket]);
      auto& before = newest[{launch.link, launch.bucket}];
      RC_ASSERT(launch.link != lost_);
      RC_ASSERT(launch.generation >= before);
      before = launch.generation;
      sent_[{launch.generation, launch.bucket}] += launch.bytes;
    }
  }

  Setup setup_;
  TimeUs spread_us_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<model::UpdateSchedule> schedules_;  // of the buckets
  std::map<model::BucketIndex, std::uint64_t> ready_;
  std::map<std::pair<std::uint64_t, model::BucketIndex>, std::uint64_t> sent_;
  std::vector<Launch> on_way_;  // until the next event
  std::uint64_t step_ = 0;
  TimeUs now_ = 0;
  std::optional<model::LinkIndex> lost_;
  unsigned switches_ = 0;
  unsigned mixed_ = 0;  // to plans with dates of their own for some buckets
};

RC_GTEST_PROP(PlanSwitch, ALostLinkIsLeftAtOnceBeThePlanGivenOrMade, ()) {
  auto setup = small_setup(*rc::gen::inRange<std::size_t>(1, 8), 3);
  setup.limits.max_staleness_steps = 2;
  if (*rc::gen::arbitrary<bool>()) setup.pinned = model::parse_cycles(*rc::gen::element("0@1", "0-1@3,2@4")).value();
  Driver driver(setup);
  const auto lost_at = *rc::gen::inRange(0, 60);
  for (int step = 0; step < 120; ++step) {
    if (step == lost_at) driver.lose(*rc::gen::inRange<model::LinkIndex>(0, 3));
    driver.step();
  }
  driver.flush();
}

// Steps with links that change now and then, and with flushes at any step.
void run_steps(Driver& driver, int steps) {
  const auto flush_every = *rc::gen::inRange(1, 40);
  for (int step = 0; step < steps; ++step) {
    driver.step();
    if (step % 30 == 29) driver.change_links(*rc::gen::element(20.0, 100.0, 150.0, 400.0));
    if (*rc::gen::inRange(0, flush_every) == 0) driver.flush();
  }
  driver.flush();
}

// In each case one training whose buckets are alike, and one whose largest bucket is stale while the others are fresh.
RC_GTEST_PROP(PlanSwitch, EveryGenerationIsSentOnceWhateverIsFlushedWhen, ()) {
  Driver alike(small_setup(*rc::gen::inRange<std::size_t>(1, 8), *rc::gen::inRange<std::size_t>(1, 3)));
  run_steps(alike, *rc::gen::inRange(1, 120));
  Setup setup = small_setup(*rc::gen::inRange<std::size_t>(3, 8), *rc::gen::inRange<std::size_t>(1, 3));
  setup.buckets[1].bytes = 400'000;
  setup.limits.fresh_tolerance = 0.05;
  Driver mixed(setup);
  mixed.change_links(200);
  run_steps(mixed, 90);
  RC_TAG(mixed.mixed() > 0 ? "with stale buckets" : "without");
}

// After eight measured steps there is a plan, and another one when the links have become far too slow for it.
RC_GTEST_PROP(PlanSwitch, ComesWithTheFirstProfileAndWithAChangedLink, ()) {
  Driver driver(small_setup(4, 2), 100);  // medians of eight steps stay within the hysteresis
  for (int step = 0; step < 20; ++step) driver.step();
  const unsigned first = driver.switches();  // 0 if training has begun with the plan
  RC_ASSERT(first <= 1U);
  driver.change_links(0.1);
  for (int step = 0; step < 60; ++step) driver.step();
  RC_ASSERT(driver.switches() == first + 1);
}

}  // namespace
}  // namespace deft::sched
