// A plan says which steps each update of a bucket merges, and before which step it is applied. It describes one cycle of
// steps, which repeats for ever.
//
//   auto ok = check_cycles(plan.cycles, buckets);   // checks a plan that another process made (update_cycle.h)
//   ledger.follow(step, plan.cycles);               // workers and scheduler follow the cycles
//
// Every step of a bucket is merged into exactly one generation. A generation is applied before the bucket's forward in step
// `apply_step`. Forward waits for a bucket that has not arrived, so a wrong estimate costs time and never changes the result.
// All steps count from the beginning of a cycle. A plan says nothing about links: core/sched/due_queue sends the buckets by
// their due steps. Only the planner has a timetable of the links (core/plan/timetable.h), to prove that the dates can be kept.
#pragma once

#include <cstdint>
#include <vector>

#include "core/model/buckets.h"
#include "core/model/codec_cost.h"
#include "core/model/update_cycle.h"

namespace deft::model {

struct Plan {
  UpdateCycles cycles;

  // The times that the planner expects in the steady state. They decide nothing, so the hash leaves them out.
  double step_us = 0;
  double compute_us = 0;

  // The sizes of the buckets are the weights of the means below. Every node knows them, so the hash and the message leave them
  // out.
  std::vector<std::uint64_t> bucket_bytes = {};

  // The codec of each bucket, in a list that the leader has (Profile::codecs); empty: all are exact. Launches tell the nodes, so
  // the hash and the message leave codecs out.
  std::vector<CodecIndex> codecs = {};
  double codec_error = 0;        // the relative squared error of an encoding, a mean over all bytes
  double codec_error_bound = 0;  // no choice of codecs that the links can carry in time, with these updates, has less

  [[nodiscard]] CodecIndex codec_of(BucketIndex bucket) const {
    return bucket < codecs.size() ? codecs[bucket] : CodecIndex{0};
  }
  [[nodiscard]] double updates_per_step() const;  // the mean over the bytes of all buckets
  [[nodiscard]] std::uint32_t max_staleness() const;
  [[nodiscard]] std::uint32_t max_merged() const;
  [[nodiscard]] bool is_late() const { return max_staleness() > 0 || max_merged() > 1; }
  [[nodiscard]] double stale_share() const;  // the bytes of buckets that are merged or stale, as a share of all bytes
  // A hash of everything that the nodes must agree on; it is the same on every machine.
  [[nodiscard]] std::uint64_t hash() const;
  bool operator==(const Plan&) const = default;
};

}  // namespace deft::model
