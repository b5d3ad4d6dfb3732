// Neighbouring buckets as one, so that a search over thousands of buckets takes as long as one over a few hundred.
//
//   const BucketGroups groups(problem, limits);
//   auto found = search(groups.problem(), groups.limits());   // plans a group as if it were a bucket
//   const Timetable table = groups.expand(*found);            // the same dates for each bucket of a group
//
// A group takes at most a small share of compute and of the links' time; a bucket above it is a group of its own. So a plan of groups is
// nearly as good as one of buckets. It is on the safe side: a group is ready with its last bucket, and forward waits for all of it.
#pragma once

#include <cstddef>
#include <vector>

#include "core/plan/plan_limits.h"
#include "core/plan/problem.h"
#include "core/plan/timetable.h"

namespace deft::plan {

class BucketGroups {
 public:
  static constexpr std::size_t kFewBuckets = 300;  // so many need no groups

  BucketGroups(const Problem& problem, const PlanLimits& limits);

  [[nodiscard]] const Problem& problem() const { return merged_; }
  // Groups that share a tensor are joined, as buckets are.
  [[nodiscard]] const PlanLimits& limits() const { return limits_; }
  // [group]: the bytes of its largest tensor.
  [[nodiscard]] const std::vector<double>& sizes() const { return sizes_; }
  // Links send the buckets of a group in the order in which they become ready. step_us stays that of the groups.
  [[nodiscard]] Timetable expand(const Timetable& of_groups) const;

 private:
  [[nodiscard]] std::size_t end_of(std::size_t group) const {
    return group + 1 < firsts_.size() ? firsts_[group + 1] : bytes_.size();
  }
  void expand(const TimetablePart& of_group, std::vector<TimetablePart>& parts) const;

  std::vector<std::size_t> firsts_;   // [group]: its first bucket
  std::vector<std::uint64_t> bytes_;  // [bucket]
  Problem merged_;
  PlanLimits limits_;
  std::vector<double> sizes_;
};

}  // namespace deft::plan
