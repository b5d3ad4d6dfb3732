// The base of the policies that send blocks (prophet, usbyte). A block is as much of the most urgent ready bucket as fits before
// the next bucket becomes ready, or all of it if backward makes no more buckets ready. Nothing interrupts a block.
//
// With several links a bucket is divided so that all links end together. Each link takes its share when it becomes idle. If its share
// is less than the smallest block, it takes such a block only if no other link would end one much sooner.
//
// A policy derives from this class and gives its Rules to the constructor.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/sched/ready_forecast.h"
#include "core/sched/synchronous_scheduler.h"

namespace deft::sched {

class BlockScheduler : public SynchronousScheduler {
 public:
  struct Rules {
    std::vector<std::uint32_t> ranks;  // [bucket]: a lower rank goes first
    std::uint64_t unit_bytes;          // the smallest block, which is sent even if the gap is too short for it
    bool any_bucket_ends_gap;          // false: only a bucket that is more urgent than the block ends the gap
    bool whole_units;  // true: blocks are rounded up to units, a little beyond the gap; false: they stay in it
  };
  BlockScheduler(const Setup& setup, Rules rules);

  void stage_began(Stage stage, std::uint64_t step, TimeUs now_us, TimeUs) override {
    if (stage == Stage::kBackward) forecast_.backward_began(step, now_us);
  }
  void bucket_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us) override;
  std::vector<Launch> take_launches(TimeUs now_us) override;
  void profile_measured(const model::Profile& profile, std::uint64_t, TimeUs) override { forecast_.learn(profile); }
  [[nodiscard]] bool wants_profile(std::uint64_t) const override { return forecast_.is_incomplete(); }

 protected:
  // Changes the ranks of the buckets that become ready from now on.
  void change_ranks(std::vector<std::uint32_t> ranks) { rules_.ranks = std::move(ranks); }
  void forecast_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us) {
    forecast_.ready(bucket, step, now_us);
  }

 private:
  // The share of `bytes` for `link` with which all links end together, if each begins when it is free.
  [[nodiscard]] std::uint64_t fair_share(model::LinkIndex link, std::uint64_t bytes,
                                         std::vector<double>& free_at_us) const;
  // What `link` takes of the task. Nothing if other links are done with it sooner.
  [[nodiscard]] std::uint64_t share_of(const ReadyTask& task, model::LinkIndex link,
                                       std::vector<double>& free_at_us) const;
  // All of `bytes`, if they end first on `link`; else nothing.
  [[nodiscard]] std::uint64_t undivided(model::LinkIndex link, std::uint64_t bytes,
                                        std::vector<double>& free_at_us) const;
  // The largest block that the forecast allows on an idle link.
  [[nodiscard]] std::uint64_t fitting(const ReadyTask& task, model::LinkIndex link, TimeUs now_us) const;
  bool launch_on(model::LinkIndex link, TimeUs now_us, std::vector<Launch>& launches);

  Rules rules_;
  ReadyForecast forecast_;
};

}  // namespace deft::sched
