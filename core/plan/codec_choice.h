// Chooses a codec for each bucket so that all of them take at most a given time, and the encodings leave out as little as possible: a
// multiple-choice knapsack.
//
//   CodecChoice choice(options);                     // options[b]: one for each codec that bucket b may have, exact first
//   auto codecs = choice.within(budget_us);          // the index of an option for each bucket
//   choice.error_bound(budget_us);                   // no choice within the budget has less: the linear relaxation
//
// A branch and bound search from the greedy solution, in which each bucket's options are on their lower convex hull. It is exact
// for small problems, and stops after a number of nodes for large ones, of which the greedy solution is close to the bound: it
// differs by one bucket at most. Pure.
#pragma once

#include <cstddef>
#include <vector>

namespace deft::plan {

struct CodecOption {
  double us = 0;     // of the links' time
  double error = 0;  // weighted by the bucket's share
};

class CodecChoice {
 public:
  // Every bucket has an option.
  explicit CodecChoice(std::vector<std::vector<CodecOption>> options);

  // The options of least time if nothing is within the budget.
  [[nodiscard]] std::vector<std::size_t> within(double budget_us) const;
  [[nodiscard]] double error_bound(double budget_us) const;
  [[nodiscard]] double least_us() const { return least_us_; }
  [[nodiscard]] double error(const std::vector<std::size_t>& chosen) const;
  [[nodiscard]] double us(const std::vector<std::size_t>& chosen) const;

 private:
  // One step of a bucket to the next option on its hull: saves time, and costs error.
  struct Step {
    std::size_t bucket = 0;
    std::size_t option = 0;
    double saved_us = 0;
    double error = 0;
  };
  class Search;

  [[nodiscard]] std::vector<std::size_t> greedy(double budget_us) const;

  std::vector<std::vector<CodecOption>> options_;
  std::vector<Step> steps_;            // the cheapest error for a saved microsecond first; a bucket's in order
  std::vector<std::size_t> best_;      // [bucket]: the option of least error; of several the fastest
  double best_us_ = 0, least_us_ = 0;  // of all buckets
};

}  // namespace deft::plan
