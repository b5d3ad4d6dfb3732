#include "core/model/grouping.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <utility>

namespace deft::model {
namespace {

// The times at which the stages end the groups so far.
struct Ends {
  double encoded_us = 0, sent_us = 0, decoded_us = 0;

  // True if these ends are as early as `other` in every stage, so that nothing behind them can be later.
  [[nodiscard]] bool as_early_as(const Ends& other) const {
    return encoded_us <= other.encoded_us && sent_us <= other.sent_us && decoded_us <= other.decoded_us;
  }
};

// The stage before hands over the first part at `first_us` and the last one at `last_us`.
struct StageTimes {
  double first_us = 0, last_us = 0;
};

StageTimes run_stage(double free_us, const StageTimes& handed, const PartCost& cost, std::uint64_t bytes,
                     std::uint64_t part_bytes) {
  const double part_us = cost.us(part_bytes);
  const double begin_us = std::max(free_us, handed.first_us);
  return {begin_us + part_us, std::max(begin_us + cost.us(bytes), handed.last_us + part_us)};
}

Ends after_group(const Ends& before, const GroupingProblem& problem, double ready_us, std::uint64_t bytes) {
  const std::uint64_t part = problem.part_bytes == 0 ? bytes : std::min(bytes, problem.part_bytes);
  const GroupCosts& costs = problem.costs;
  const auto encoded = run_stage(before.encoded_us, {ready_us, ready_us}, costs.encode, bytes, part);
  const auto sent = run_stage(before.sent_us, encoded, costs.wire, bytes, part);
  const auto decoded = run_stage(before.decoded_us, sent, costs.decode, bytes, part);
  // Between the ends of two groups the thread decodes one of them, and has encoded one.
  const double thread_us = std::max(before.decoded_us, ready_us) + costs.encode.us(bytes) + costs.decode.us(bytes);
  return {encoded.last_us, sent.last_us, std::max(decoded.last_us, thread_us)};
}

bool begins_group(const GroupingProblem& problem, std::size_t bucket) {
  return bucket == 0 || (bucket < problem.apart.size() && problem.apart[bucket]);
}

// The borders that no partition may leave out, and `more`.
GroupStarts with_borders(const GroupingProblem& problem, const GroupStarts& more) {
  GroupStarts starts;
  for (BucketIndex bucket = 0; bucket < problem.bytes.size(); ++bucket)
    if (begins_group(problem, bucket) || std::ranges::binary_search(more, bucket)) starts.push_back(bucket);
  return starts;
}

// Neighbours are joined until at most `most` are left; `first[i]` is the first bucket of the joined bucket i.
GroupingProblem joined(const GroupingProblem& problem, std::size_t most, std::vector<BucketIndex>& first) {
  const std::uint64_t all = std::accumulate(problem.bytes.begin(), problem.bytes.end(), std::uint64_t{0});
  const auto forced = with_borders(problem, {}).size();
  const std::uint64_t least = problem.bytes.size() <= most ? 0 : 2 * all / (most > forced ? most - forced : 1);
  GroupingProblem small{
      .ready_us = {}, .bytes = {}, .apart = {}, .costs = problem.costs, .part_bytes = problem.part_bytes};
  for (std::size_t bucket = 0; bucket < problem.bytes.size(); ++bucket) {
    const bool begins = begins_group(problem, bucket);
    if (begins || small.bytes.back() + problem.bytes[bucket] > least) {
      first.push_back(static_cast<BucketIndex>(bucket));
      small.ready_us.push_back(0);
      small.bytes.push_back(0);
      small.apart.push_back(begins);
    }
    small.ready_us.back() = problem.ready_us[bucket];
    small.bytes.back() += problem.bytes[bucket];
  }
  return small;
}

// One way to group the buckets up to some bucket: its ends, and the group before.
struct Way {
  Ends ends;
  std::size_t starts = 0;  // the first bucket of its last group
  std::size_t before = 0;  // the way to the bucket in front, by its place in that bucket's list
};

// Keeps only ways that are not later than another way in every stage.
void keep_best(std::vector<Way>& ways, const Way& way) {
  if (std::ranges::any_of(ways, [&](const Way& other) { return other.ends.as_early_as(way.ends); })) return;
  std::erase_if(ways, [&](const Way& other) { return way.ends.as_early_as(other.ends); });
  ways.push_back(way);
}

// By bucket: the ways to group all buckets before it.
std::vector<std::vector<Way>> all_ways(const GroupingProblem& problem) {
  const std::size_t count = problem.bytes.size();
  std::vector<std::vector<Way>> ways(count + 1);
  ways[0].push_back({});
  for (std::size_t end = 1; end <= count; ++end) {
    std::uint64_t bytes = 0;
    for (std::size_t start = end; start-- > 0;) {
      bytes += problem.bytes[start];
      for (std::size_t before = 0; before < ways[start].size(); ++before)
        keep_best(ways[end],
                  {after_group(ways[start][before].ends, problem, problem.ready_us[end - 1], bytes), start, before});
      if (begins_group(problem, start)) break;
    }
  }
  return ways;
}

// The last border by bisection: the best bucket in (after, count) to begin the last group.
GroupStarts with_last_border(const GroupingProblem& problem, GroupStarts starts) {
  auto low = starts.empty() ? BucketIndex{1} : starts.back() + 1;
  auto high = static_cast<BucketIndex>(problem.bytes.size()) - 1;
  const auto time_us = [&](BucketIndex border) {
    GroupStarts tried = starts;
    tried.push_back(border);
    return pipeline_us(problem, with_borders(problem, tried));
  };
  while (low < high) {
    const BucketIndex middle = low + (high - low) / 2;
    if (time_us(middle) <= time_us(middle + 1))
      high = middle;
    else
      low = middle + 1;
  }
  starts.push_back(low);
  return starts;
}

}  // namespace

GroupingProblem grouping_problem(const Profile& profile, const std::vector<bool>& apart, GroupCosts costs) {
  GroupingProblem problem{.ready_us = ready_times(profile), .bytes = {}, .apart = apart, .costs = costs};
  for (auto bucket = profile.buckets.rbegin(); bucket != profile.buckets.rend(); ++bucket)
    problem.bytes.push_back(bucket->bytes);
  double bytes_per_us = 0, latency_us = 0;
  for (std::size_t link = 0; link < profile.links.size(); ++link) {
    const LinkModel model = profile.link_model(link);
    bytes_per_us += model.bytes_per_us;
    latency_us = std::max(latency_us, model.latency_us);
  }
  problem.costs.wire = {latency_us, 1 / bytes_per_us};
  for (PartCost* const cost : {&problem.costs.encode, &problem.costs.decode})
    cost->us_per_byte /= static_cast<double>(std::max<std::size_t>(1, profile.links.size()));
  return problem;
}

double pipeline_us(const GroupingProblem& problem, const GroupStarts& starts) {
  Ends ends;
  for (std::size_t group = 0; group < starts.size(); ++group) {
    const std::size_t end = group + 1 < starts.size() ? starts[group + 1] : problem.bytes.size();
    const auto bytes = std::accumulate(problem.bytes.begin() + starts[group],
                                       problem.bytes.begin() + static_cast<std::ptrdiff_t>(end), std::uint64_t{0});
    ends = after_group(ends, problem, problem.ready_us[end - 1], bytes);
  }
  return ends.decoded_us;
}

GroupStarts exact_groups(const GroupingProblem& problem) {
  std::vector<BucketIndex> first;
  const GroupingProblem small = joined(problem, kMostExactBuckets, first);
  const auto ways = all_ways(small);
  GroupStarts starts;
  std::size_t end = small.bytes.size();
  const auto best = std::ranges::min_element(ways[end], {}, [](const Way& way) { return way.ends.decoded_us; });
  for (const Way* way = &*best; end > 0; way = &ways[end][way->before]) {
    starts.push_back(first[way->starts]);
    end = way->starts;
  }
  std::ranges::reverse(starts);
  return starts;
}

GroupStarts fewer_groups(const GroupingProblem& problem, const GroupStarts& starts, double slack) {
  const double most_us = (1 + slack) * pipeline_us(problem, starts);
  GroupStarts fewer = starts;
  for (std::size_t border = 1; border < fewer.size();) {
    GroupStarts tried = fewer;
    tried.erase(tried.begin() + static_cast<std::ptrdiff_t>(border));
    if (!begins_group(problem, fewer[border]) && pipeline_us(problem, tried) <= most_us)
      fewer = std::move(tried);
    else
      ++border;
  }
  return fewer;
}

GroupStarts searched_groups(const GroupingProblem& whole, const GroupSearch& search) {
  std::vector<BucketIndex> first;
  const GroupingProblem problem = joined(whole, kMostSearchedBuckets, first);
  GroupStarts best = with_borders(problem, {});
  double best_us = pipeline_us(problem, best);
  const auto count = static_cast<BucketIndex>(problem.bytes.size());
  for (unsigned groups = 2; groups <= search.most && groups <= count; ++groups) {
    GroupStarts found = best;
    double found_us = std::numeric_limits<double>::infinity();
    for (BucketIndex fixed = 1; fixed <= (groups == 2 ? 1 : count - 2); ++fixed) {
      const auto tried =
          with_borders(problem, with_last_border(problem, groups == 2 ? GroupStarts{} : GroupStarts{fixed}));
      const double us = pipeline_us(problem, tried);
      if (us < found_us) found = tried, found_us = us;
    }
    if (found_us > (1 - search.least_gain) * best_us) break;
    best = std::move(found);
    best_us = found_us;
  }
  for (BucketIndex& start : best) start = first[start];
  return best;
}

GroupStarts even_groups(const GroupingProblem& problem, std::size_t groups) {
  GroupStarts starts;
  const std::size_t count = problem.bytes.size();
  for (std::size_t group = 0; group < std::min(groups, count); ++group)
    starts.push_back(static_cast<BucketIndex>(group * count / std::min(groups, count)));
  return with_borders(problem, starts);
}

}  // namespace deft::model
