// The base of the synchronous policies that send runs of neighbouring buckets as one transfer.
//
//   class Fused : public RunScheduler {
//     explicit Fused(const Setup& s) : RunScheduler(s, runs_as_ddp(s.buckets, s.fused_bytes)) {}
//   };
//   change_runs(starts);                     // from the next step on; nobody waits for that
//
// A run goes when its last bucket is ready, in that order. Each step keeps the runs with which its first bucket came, so a
// change never leaves a byte out or sends it twice. Buckets of a run lie next to each other in memory of one type, so fusing
// copies nothing. Pure and not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/sched/queue_scheduler.h"

namespace deft::sched {

// The first bucket of each run: ascending, and the first is 0.
using RunStarts = std::vector<model::BucketIndex>;

// apart[b]: bucket b is not next to the bucket before it, in memory of the same type. It then begins a run.
std::vector<bool> apart_buckets(const std::vector<model::Bucket>& buckets);

// Each bucket is a run of its own.
RunStarts single_runs(std::size_t buckets);

// Fuses whole buckets until a run holds `bytes`, and the first run until it holds kDdpFirstBucketBytes.
RunStarts runs_as_ddp(const std::vector<model::Bucket>& buckets, std::uint64_t bytes);

// Fuses from the last bucket on, which forward needs first: the last run holds `last_bytes`.
RunStarts runs_of_bytes_from_end(const std::vector<model::Bucket>& buckets, std::uint64_t last_bytes,
                                 std::uint64_t bytes);

class RunScheduler : public QueueScheduler {
 public:
  RunScheduler(const Setup& setup, RunStarts starts);

  void bucket_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us) override;
  std::vector<Launch> take_launches(TimeUs now_us) override;

 protected:
  void change_runs(RunStarts starts);
  [[nodiscard]] const RunStarts& starts() const { return runs_->starts; }
  [[nodiscard]] const std::vector<bool>& apart() const { return apart_; }

 private:
  struct Runs {
    RunStarts starts;
    std::vector<std::uint32_t> of;    // the run of each bucket
    std::vector<std::uint32_t> size;  // buckets in each run
  };
  struct Step {  // of which not all buckets are ready
    std::shared_ptr<const Runs> runs;
    std::vector<std::uint32_t> missing;  // of each run
    std::uint32_t left = 0;
  };
  [[nodiscard]] static Runs make_runs(RunStarts starts, std::size_t buckets);

  Setup setup_;
  std::vector<bool> apart_;
  std::shared_ptr<const Runs> runs_;
  std::map<std::uint64_t, Step> steps_;
};

}  // namespace deft::sched
