// The base of the synchronous policies that send ready buckets one part at a time (fifo, mgwfbp, p3, bytescheduler). The Rules of
// a policy say in which order buckets go and how large a launch may be. PartPlacer spreads the parts over the links.
//
//   class Fifo : public QueueScheduler { public: explicit Fifo(const Setup& s) : QueueScheduler(s, in_order(s, largest)) {} };
#pragma once

#include <cstdint>
#include <vector>

#include "core/sched/part_placer.h"
#include "core/sched/synchronous_scheduler.h"

namespace deft::sched {

class QueueScheduler : public SynchronousScheduler {
 public:
  void stage_began(Stage, std::uint64_t, TimeUs, TimeUs) override {}
  void bucket_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us) override;
  std::vector<Launch> take_launches(TimeUs now_us) override;

 protected:
  using Rules = PartPlacer::Rules;
  QueueScheduler(const Setup& setup, const Rules& rules);

  // Rules that send whole buckets in the order of readiness. `largest_bytes` is the size of the largest bucket.
  static Rules in_order(const Setup& setup, std::uint64_t largest_bytes);
  void change_rules(const Rules& rules) { parts_.change_rules(rules); }
  [[nodiscard]] std::uint64_t part_limit() const { return parts_.part_limit(); }

 private:
  PartPlacer parts_;
};

}  // namespace deft::sched
