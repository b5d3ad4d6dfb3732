#include "core/plan/codec_choice.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

namespace deft::plan {
namespace {

constexpr std::size_t kMostNodes = 10'000;  // of the search: some milliseconds

constexpr std::size_t kMostSearched = 32;  // buckets: for more, the greedy choice is close to the bound

// The options on the lower convex hull of error over time, from the option of least error to that of least time.
std::vector<std::size_t> hull_of(const std::vector<CodecOption>& options) {
  std::vector<std::size_t> order(options.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return std::pair(options[i].error, options[i].us); });
  std::vector<std::size_t> hull;
  for (const std::size_t next : order) {
    if (!hull.empty() && options[next].us >= options[hull.back()].us) continue;  // slower, and not better
    while (hull.size() > 1) {
      const CodecOption &a = options[hull[hull.size() - 2]], &b = options[hull.back()], &c = options[next];
      if ((b.error - a.error) * (b.us - c.us) < (c.error - b.error) * (a.us - b.us)) break;
      hull.pop_back();
    }
    hull.push_back(next);
  }
  return hull;
}

}  // namespace

CodecChoice::CodecChoice(std::vector<std::vector<CodecOption>> options) : options_(std::move(options)) {
  for (std::size_t b = 0; b < options_.size(); ++b) {
    const auto hull = hull_of(options_[b]);
    best_.push_back(hull.front());
    best_us_ += options_[b][hull.front()].us;
    least_us_ += options_[b][hull.back()].us;
    for (std::size_t i = 1; i < hull.size(); ++i) {
      const CodecOption &from = options_[b][hull[i - 1]], &to = options_[b][hull[i]];
      steps_.push_back({b, hull[i], from.us - to.us, to.error - from.error});
    }
  }
  std::ranges::stable_sort(steps_,
                           [](const Step& a, const Step& b) { return a.error * b.saved_us < b.error * a.saved_us; });
}

double CodecChoice::error(const std::vector<std::size_t>& chosen) const {
  double sum = 0;
  for (std::size_t b = 0; b < chosen.size(); ++b) sum += options_[b][chosen[b]].error;
  return sum;
}

double CodecChoice::us(const std::vector<std::size_t>& chosen) const {
  double sum = 0;
  for (std::size_t b = 0; b < chosen.size(); ++b) sum += options_[b][chosen[b]].us;
  return sum;
}

double CodecChoice::error_bound(double budget_us) const {
  double us = best_us_, error = this->error(best_);
  for (const Step& step : steps_) {
    if (us <= budget_us) break;
    const double share = step.saved_us > 0 ? std::min(1.0, (us - budget_us) / step.saved_us) : 1;
    us -= step.saved_us;
    error += share * step.error;
  }
  return error;
}

// The cheapest steps until all fits. Then steps that turn out not to be needed are taken back, the dearest first.
std::vector<std::size_t> CodecChoice::greedy(double budget_us) const {
  std::vector<std::size_t> chosen = best_;
  double us = best_us_;
  for (const Step& step : steps_) {
    if (us <= budget_us) break;
    chosen[step.bucket] = step.option;
    us -= step.saved_us;
  }
  for (std::size_t b = 0; b < chosen.size(); ++b)
    for (std::size_t option = 0; option < options_[b].size(); ++option) {
      const CodecOption &now = options_[b][chosen[b]], &other = options_[b][option];
      if (other.error >= now.error || us - now.us + other.us > budget_us) continue;
      us += other.us - now.us;
      chosen[b] = option;
    }
  return chosen;
}

// Depth first, the buckets with most error at stake first. The bound of the rest is its linear relaxation.
class CodecChoice::Search {
 public:
  Search(const CodecChoice& choice, double budget_us, std::vector<std::size_t> incumbent)
      : choice_(choice), budget_us_(budget_us), found_(std::move(incumbent)), found_error_(choice.error(found_)) {
    order_.resize(choice.options_.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    const auto stake = [&](std::size_t b) {
      double most = 0;
      for (const CodecOption& option : choice.options_[b]) most = std::max(most, option.error);
      return -most;
    };
    std::ranges::stable_sort(order_, {}, stake);
    place_.resize(order_.size());
    for (std::size_t i = 0; i < order_.size(); ++i) place_[order_[i]] = i;
    chosen_ = choice.best_;
  }

  std::vector<std::size_t> run() {
    if (choice_.us(found_) <= budget_us_) descend(0, 0, 0);
    return std::move(found_);
  }

 private:
  // The least error of the buckets from `depth` on in `left_us`; infinite if they do not fit.
  [[nodiscard]] double bound(std::size_t depth, double left_us) const {
    double us = 0, error = 0;
    for (std::size_t i = depth; i < order_.size(); ++i) {
      const CodecOption& best = choice_.options_[order_[i]][choice_.best_[order_[i]]];
      us += best.us, error += best.error;
    }
    for (const Step& step : choice_.steps_) {
      if (us <= left_us) return error;
      if (place_[step.bucket] < depth) continue;
      const double share = std::min(1.0, (us - left_us) / std::max(step.saved_us, 1e-12));
      us -= step.saved_us;
      error += share * step.error;
    }
    return us <= left_us * (1 + 1e-12) ? error : std::numeric_limits<double>::infinity();
  }

  void descend(std::size_t depth, double us, double error) {
    if (++nodes_ > kMostNodes || error + bound(depth, budget_us_ - us) >= found_error_ - 1e-15) return;
    if (depth == order_.size()) {
      found_ = chosen_, found_error_ = error;
      return;
    }
    const std::size_t bucket = order_[depth];
    const auto& options = choice_.options_[bucket];
    std::vector<std::size_t> by_error(options.size());
    std::iota(by_error.begin(), by_error.end(), std::size_t{0});
    std::ranges::sort(by_error, {}, [&](std::size_t i) { return std::pair(options[i].error, options[i].us); });
    for (const std::size_t option : by_error) {
      chosen_[bucket] = option;
      descend(depth + 1, us + options[option].us, error + options[option].error);
    }
  }

  const CodecChoice& choice_;
  const double budget_us_;
  std::vector<std::size_t> order_, place_, chosen_, found_;
  double found_error_;
  std::size_t nodes_ = 0;
};

std::vector<std::size_t> CodecChoice::within(double budget_us) const {
  auto chosen = greedy(budget_us);
  const double gap = error(chosen) - error_bound(budget_us);
  if (gap <= 1e-12 * std::max(1.0, error(chosen)) || options_.size() > kMostSearched) return chosen;
  return Search(*this, budget_us, std::move(chosen)).run();
}

}  // namespace deft::plan
