// The exact optimum over all plans of whole buckets on up to two links: what the planner is judged by.
//
// "All" is every update ratio of the given steps, every delay up to the cap for each generation, each bucket of each generation
// on any link, and any order on each link. There are far too many to run one by one (8 buckets in 3 generations on 2
// links: 24! orders for one link alone), so two questions are answered exactly instead. Both use that all is monotone:
// what is released earlier, due later or not sent at all makes nothing later.
//
//   ExactSearch search(problem, max_staleness);
//   search.least_step_us(3);                 // no plan of at most so many steps has a shorter step
//   search.runs_without_waiting({0, 2}, 3);  // is there one that merges steps 0 and 1..2 and never waits?
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/plan/problem.h"

namespace deft::plan {

class ExactSearch {
 public:
  ExactSearch(const Problem& problem, std::uint32_t max_staleness);

  // A step that no plan of up to `most_steps` steps a cycle is shorter than; with staleness below `most_steps` (but for 2
  // in 3, where 2 steps may be below 3) a plan reaches it.
  //
  // Leaving out all generations of a cycle but one, which then merges the others' steps too, makes no step longer: only
  // cycles of one generation count. From the last step of a generation to its application there are the compute of the
  // steps between, and the waiting of the floor(staleness / steps) applications between and of its own. Even on links that
  // are empty this must be enough to send it, so a step takes at least
  //     compute + W / (steps * (1 + floor(staleness / steps)))
  // where W is what one generation alone would wait for; and with less staleness than steps the links are empty.
  [[nodiscard]] double least_step_us(std::uint32_t most_steps) const;

  // True if a plan exists that merges the steps up to each of `last_steps` into one generation and in which compute never
  // waits. Nothing: given up after too much effort.
  [[nodiscard]] std::optional<bool> runs_without_waiting(const std::vector<std::uint32_t>& last_steps);

 private:
  // Waiting in the forward that applies a generation sent on empty links, `staleness` steps late; the least of all ways
  // to share the buckets among the links.
  [[nodiscard]] double least_wait_us(std::uint32_t staleness) const;
  [[nodiscard]] bool arrives(std::uint32_t staleness, double wait_us) const;

  const Problem& problem_;
  std::uint32_t max_staleness_;
};

}  // namespace deft::plan
