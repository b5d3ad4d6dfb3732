// Chooses which neighbouring buckets go together, so that a step's communication ends early (MergeComp, Wang et al., 2021).
//
//   const GroupingProblem problem = grouping_problem(profile, apart, costs);
//   starts = exact_groups(problem);                     // the best partition
//   starts = searched_groups(problem, {.most = 2});     // MergeComp's Algorithm 2
//   starts = even_groups(problem, 2);                   // naive: the same number of buckets in each group
//   starts = fewer_groups(problem, starts, 0.01);       // without the borders that gain less than 1 %
//   pipeline_us(problem, starts);                       // when the last group is decoded
//
// A group is encoded when its last bucket is ready, then sent, then decoded. Each of the three stages takes one group at a time,
// in order, and the stages work side by side. But a link has one thread, which encodes and decodes: behind the end of a group it takes
// the time of both until the next one ends. If groups are cut into parts, a stage begins with the first part of a group and works
// beside the stage before it. A stage takes a fixed time for each group and a time for each byte, so few
// groups save fixed times, and many groups begin earlier. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "core/model/buckets.h"
#include "core/model/profile.h"

namespace deft::model {

// What each stage takes for a group of so many bytes of gradients. Without a codec encode and decode take nothing.
struct GroupCosts {
  PartCost encode, wire, decode;
};

struct GroupingProblem {
  std::vector<double> ready_us;      // [bucket], in the order of production; never falls
  std::vector<std::uint64_t> bytes;  // [bucket]
  std::vector<bool> apart;           // [bucket] begins a group in any case; empty: none does
  GroupCosts costs;
  std::uint64_t part_bytes = 0;  // of a group, which a stage hands on at once; 0: whole groups
};

// The groups' first buckets: ascending, and the first is 0.
using GroupStarts = std::vector<BucketIndex>;

// The problem of a profile, whose buckets stand in forward order. Backward begins at 0. `costs.wire` is replaced by the costs of the
// profile's links together: their throughputs add up, and the largest latency counts. `costs.encode` and `costs.decode` are those of one
// thread. Each link has one and works on its share of a group, so their times a byte are divided by the number of links.
GroupingProblem grouping_problem(const Profile& profile, const std::vector<bool>& apart, GroupCosts costs);

// The time from the beginning of backward until the last group is decoded.
double pipeline_us(const GroupingProblem& problem, const GroupStarts& starts);

// The partition with the least pipeline_us. With more than kMostExactBuckets buckets, neighbours are joined first so that
// there are no more.
inline constexpr std::size_t kMostExactBuckets = 400;
GroupStarts exact_groups(const GroupingProblem& problem);

// `starts` without the borders, from the first one on, whose loss costs pipeline_us at most the share `slack` together. Each transfer takes
// processor time from compute, which pipeline_us does not count.
GroupStarts fewer_groups(const GroupingProblem& problem, const GroupStarts& starts, double slack);

// Algorithm 2: the best partition of y groups for y = 1, 2, ..., until another group gains less than `least_gain` of the time, or
// there are `most` groups. The last border is found by bisection, as the time first falls and then rises with it; the
// others are tried one by one. `most` is 1 to 3, because a fourth group would cost buckets^2 trials. With more than kMostSearchedBuckets
// buckets, neighbours are joined first: each trial looks at all buckets, and the daemon does nothing else meanwhile.
inline constexpr std::size_t kMostSearchedBuckets = 1000;
struct GroupSearch {
  unsigned most = 2;
  double least_gain = 0.01;
};
GroupStarts searched_groups(const GroupingProblem& problem, const GroupSearch& search);

// `groups` groups of equal numbers of buckets.
GroupStarts even_groups(const GroupingProblem& problem, std::size_t groups);

}  // namespace deft::model
