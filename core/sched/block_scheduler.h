// The common part of the policies that cut blocks to measure: a block is as much of the most urgent ready bucket as fits before
// the next bucket becomes ready, and all of it if nothing more is to come. Blocks are not interrupted.
//
// With several links a bucket is shared so that all links end together; each takes its share when it becomes idle.
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
    std::vector<std::uint32_t> ranks;  // of each bucket: lower goes first
    std::uint64_t unit_bytes;          // the least that goes where the gap is too short
    bool any_bucket_ends_gap;          // otherwise only one that is more urgent than what would be sent
    bool whole_units;                  // round up to units, a little beyond the gap; otherwise stay within it
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
  // Lower goes first; for buckets that become ready from now on.
  void change_ranks(std::vector<std::uint32_t> ranks) { rules_.ranks = std::move(ranks); }
  void forecast_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us) {
    forecast_.ready(bucket, step, now_us);
  }

 private:
  // What `link` should take of `bytes` so that all links end together, each beginning when it is free.
  [[nodiscard]] std::uint64_t fair_share(model::LinkIndex link, std::uint64_t bytes,
                                         std::vector<double>& free_at_us) const;
  // The largest block that the forecast allows on an idle link.
  [[nodiscard]] std::uint64_t fitting(const ReadyTask& task, model::LinkIndex link, TimeUs now_us) const;
  bool launch_on(model::LinkIndex link, TimeUs now_us, std::vector<Launch>& launches);

  Rules rules_;
  ReadyForecast forecast_;
};

}  // namespace deft::sched
