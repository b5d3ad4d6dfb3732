#include "core/optimize/climber.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "core/base/policy_traits.h"

namespace deft::optimize {
namespace {

constexpr std::uint64_t kKb = 1024;
constexpr std::uint64_t kFirstBuckets = 2048 * kKb;  // where the ladder of bucket sizes is entered

using Field = std::uint64_t Settings::*;
struct Ladder {
  Field field;
  std::uint64_t least, most;
};
// Buckets are the first, because a climb may leave them out.
constexpr std::array kLadders = {Ladder{&Settings::bucket_bytes, 64 * kKb, 65'536 * kKb},
                                 Ladder{&Settings::partition_bytes, 64 * kKb, 16'384 * kKb},
                                 Ladder{&Settings::credit_bytes, 256 * kKb, 65'536 * kKb}};

// False: the ladder ends.
bool take_step(Settings& settings, const Ladder& ladder, bool up) {
  std::uint64_t& value = settings.*ladder.field;
  value = value == 0 ? kFirstBuckets : up ? value * 2 : value / 2;
  return value >= ladder.least && value <= ladder.most;
}

// Some sizes together, in one direction, as long as that helps. True: it did.
bool climb(Replays& replays, Candidate& best, std::span<const Ladder> ladders, bool up) {
  bool better = false;
  while (true) {
    Settings next = best.settings;
    for (const Ladder& ladder : ladders)
      if (!take_step(next, ladder, up)) return better;
    const double us = replays.us(next);
    if (us <= 0 || us > best.us * (1 - kLeastClimb)) return better;
    best = {std::move(next), us};
    better = true;
  }
}

}  // namespace

bool uses_sizes(const std::string& policy, std::size_t links, const SearchLimits& limits) {
  if (!limits.speedups.used_sizes_only || links > 1) return true;
  const PolicyTraits* const traits = find_policy(policy);
  return traits == nullptr || traits->urgent_first;
}

Candidate Climber::from(Candidate candidate) const {
  const auto& own_links = candidate.settings.links;
  const std::size_t links = own_links.empty() ? measured_.profile.links.size() : own_links.size();
  const std::size_t end = uses_sizes(candidate.settings.policy, links, limits_) ? kLadders.size() : 1;
  const auto ladders = std::span(kLadders).first(end).subspan(limits_.keeps_buckets ? 1 : 0);
  bool better = true;
  while (better) {
    better = false;
    for (std::size_t count = 1; count <= 2; ++count)  // neighbours on the list depend on each other
      for (std::size_t first = 0; first + count <= ladders.size(); ++first)
        for (const bool up : {true, false})
          better = climb(replays_, candidate, ladders.subspan(first, count), up) || better;
  }
  return candidate;
}

Candidate Climber::best_of(const std::vector<Candidate>& candidates, Candidate best, double least_gain) const {
  const double least_us = best.us * (1 - least_gain);
  for (const Candidate& candidate : candidates) {
    Candidate found = from(candidate);
    if (found.us > 0 && found.us < std::min(best.us, least_us)) best = std::move(found);
  }
  return best;
}

}  // namespace deft::optimize
