// Measures the steady state of a run: finds the period of the pattern of updates, and averages over whole periods.
//
//   steady.step_began(step, now_us, computed_us, {sent_bytes, wire_bytes, launches});   // for each step of the leader, in order
//   steady.decided(update);
//   steady.measure(warmup_steps, buckets, outcome);
#pragma once

#include <cstdint>
#include <vector>

#include "core/sched/scheduler.h"
#include "core/sim/simulation.h"

namespace deft::sim {

class SteadyState {
 public:
  explicit SteadyState(std::uint64_t steps) : steps_(steps + 1) {}

  struct Sent {
    std::uint64_t gradient_bytes = 0;
    double wire_bytes = 0;  // that they took encoded
    std::uint64_t launches = 0;
  };
  // The leader begins `step`. `computed_us` and `sent` are totals since the beginning of the run.
  void step_began(std::uint64_t step, double now_us, double computed_us, const Sent& sent);
  void decided(const sched::Update& update);

  // Writes the measures of the steps from `warmup` on to `outcome`.
  void measure(std::uint64_t warmup, std::size_t buckets, Outcome& outcome) const;

 private:
  struct Step {
    double began_us = 0;
    double computed_us = 0;
    Sent sent;
    std::uint64_t updates = 0;  // how many updates of buckets are applied before its forward
    std::uint64_t staleness = 0;
    std::uint64_t merged = 0;
    std::uint64_t pattern = 0;  // a digest of its updates, which is the same in every period
  };
  [[nodiscard]] std::uint64_t period(std::uint64_t first, std::uint64_t end) const;
  std::vector<Step> steps_;
};

}  // namespace deft::sim
