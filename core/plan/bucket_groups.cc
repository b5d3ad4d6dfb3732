#include "core/plan/bucket_groups.h"

#include <algorithm>

namespace deft::plan {
namespace {

constexpr double kMostShare = 0.006;  // of compute, and of the links' time for all buckets, in one group of several

// The time that a group takes.
struct Load {
  double links_us = 0, compute_us = 0;

  Load& operator+=(const Load& other) {
    links_us += other.links_us, compute_us += other.compute_us;
    return *this;
  }
  [[nodiscard]] bool fits(const Load& most) const { return links_us <= most.links_us && compute_us <= most.compute_us; }
};

Load load_of(const Problem& problem, std::size_t begin, std::size_t end) {
  Load load;
  for (std::size_t b = begin; b < end; ++b)
    load += {problem.shared_us(b), problem.bucket(b).forward_us + problem.bucket(b).backward_us};
  return load;
}

// Whole tensors, or pieces of one.
std::vector<std::size_t> first_buckets(const Problem& problem, const std::vector<bool>& joined) {
  Load most = load_of(problem, 0, problem.buckets());
  most.links_us *= kMostShare, most.compute_us *= kMostShare;
  std::vector<std::size_t> firsts;
  Load newest = most;  // group: full
  const auto add = [&](std::size_t first, const Load& load) {
    Load with = newest;
    if (!(with += load).fits(most)) firsts.push_back(first), with = load;
    newest = with;
  };
  for (std::size_t begin = 0, end = 1; begin < problem.buckets(); begin = end++) {
    while (end < problem.buckets() && end < joined.size() && joined[end]) ++end;
    const Load tensor = load_of(problem, begin, end);
    if (tensor.fits(most)) {
      add(begin, tensor);
      continue;
    }
    newest = most;
    for (std::size_t b = begin; b < end; ++b) add(b, load_of(problem, b, b + 1));
    newest = most;
  }
  return firsts;
}

}  // namespace

BucketGroups::BucketGroups(const Problem& problem, const PlanLimits& limits)
    : firsts_(first_buckets(problem, limits.joined)),
      bytes_(problem.bucket_bytes()),
      merged_(problem.merged(firsts_)),
      limits_(limits) {
  limits_.joined.clear();
  for (const std::size_t first : firsts_)
    limits_.joined.push_back(first < limits.joined.size() && limits.joined[first]);
  for (std::size_t group = 0; group < firsts_.size(); ++group) {
    std::uint64_t tensor = 0, largest = 0;
    for (std::size_t b = firsts_[group]; b < end_of(group); ++b) {
      tensor = b < limits.joined.size() && limits.joined[b] ? tensor + bytes_[b] : bytes_[b];
      largest = std::max(largest, tensor);
    }
    sizes_.push_back(static_cast<double>(largest));
  }
}

Timetable BucketGroups::expand(const Timetable& of_groups) const {
  Timetable table{.plan = of_groups.plan, .links = {}, .part_us = of_groups.part_us};
  table.plan.cycles.own.clear();
  for (const auto& [group, cycle] : of_groups.plan.cycles.own)
    for (std::size_t b = firsts_[group]; b < end_of(group); ++b)
      table.plan.cycles.own.emplace(static_cast<model::BucketIndex>(b), cycle);
  for (const auto& link : of_groups.links) {
    auto& parts = table.links.emplace_back();
    for (const TimetablePart& part : link) expand(part, parts);
  }
  return table;
}

void BucketGroups::expand(const TimetablePart& of_group, std::vector<TimetablePart>& parts) const {
  const std::uint64_t end = of_group.offset + of_group.bytes;
  std::uint64_t begin = 0;  // of the bucket, in the group
  for (std::size_t b = firsts_[of_group.bucket]; b < end_of(of_group.bucket); begin += bytes_[b], ++b) {
    const std::uint64_t from = std::max(begin, of_group.offset), to = std::min(begin + bytes_[b], end);
    if (from >= to) continue;
    TimetablePart part = of_group;
    part.bucket = static_cast<model::BucketIndex>(b);
    part.offset = from - begin, part.bytes = to - from;
    parts.push_back(part);
  }
}

}  // namespace deft::plan
