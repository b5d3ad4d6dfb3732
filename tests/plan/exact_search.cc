#include "tests/plan/exact_search.h"

#include <algorithm>
#include <numeric>

namespace deft::plan {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;              // of compute
constexpr std::uint64_t kEffort = 100'000'000;  // steps of dynamic programming in one search

// True if the generations of one update ratio can all arrive in time, compute never waiting. Then all times are known: bucket b
// of generation g is released and due at fixed times in a cycle that repeats, and each link is a machine of its own.
class UpdateRatioCheck {
 public:
  UpdateRatioCheck(const Problem& problem, const std::vector<std::uint32_t>& last_steps, std::uint32_t staleness)
      : problem_(problem),
        last_(last_steps),
        staleness_(staleness),
        cycle_us_((last_steps.back() + 1) * problem.compute_us()),
        slack_us_(kRounding * problem.compute_us()),
        known_(problem.links()),
        mask_(problem.links(), 0),
        order_(problem.buckets()) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::sort(order_.begin(), order_.end(), [&](auto a, auto b) { return cheapest_us(a) > cheapest_us(b); });
    for (const auto bucket : order_) rest_us_ += cheapest_us(bucket) * static_cast<double>(last_.size());
  }

  std::optional<bool> run() {
    const bool found = assign(0, 0);
    if (!found && effort_ > kEffort) return std::nullopt;
    return found;
  }

 private:
  using Mask = std::uint32_t;  // bit g * buckets + b: bucket b of generation g

  [[nodiscard]] double whole_us(std::size_t link, std::size_t bucket) const {
    return problem_.cost(link, bucket).us(problem_.bucket(bucket).bytes);
  }
  [[nodiscard]] double cheapest_us(std::size_t bucket) const {
    double least = kNever;
    for (std::size_t l = 0; l < problem_.links(); ++l) least = std::min(least, whole_us(l, bucket));
    return least;
  }

  // The largest buckets first; what is sent so far must fit by itself, whatever comes after it.
  bool assign(std::size_t position, std::size_t generation) {
    if (position == order_.size()) return true;
    if (effort_ > kEffort) return false;
    if (generation == last_.size()) return assign(position + 1, 0);
    const std::size_t bucket = order_[position];
    const Mask bit = Mask{1} << (generation * problem_.buckets() + bucket);
    rest_us_ -= cheapest_us(bucket);
    bool found = false;
    for (std::size_t l = 0; l < problem_.links() && !found; ++l) {
      const double us = whole_us(l, bucket);
      mask_[l] |= bit;
      used_us_ += us;
      const double room = cycle_us_ * static_cast<double>(problem_.links()) + slack_us_;
      found = used_us_ + rest_us_ <= room && link_runs(l, mask_[l]) && assign(position, generation + 1);
      used_us_ -= us;
      mask_[l] &= ~bit;
    }
    rest_us_ += cheapest_us(bucket);
    return found;
  }

  bool link_runs(std::size_t link, Mask mask) {
    const auto [known, is_new] = known_[link].try_emplace(mask, false);
    if (is_new) known->second = schedule(link, mask);
    return known->second;
  }

  // A link that runs the parts of one cycle in any one order, cycle after cycle, begins each cycle where the one before
  // ended. The earlier it can end, the better: the least end for which beginning there does not end later is found from
  // below.
  bool schedule(std::size_t link, Mask mask) {
    double load_us = 0;
    std::vector<Queue> queues;
    for (std::size_t b = 0; b < problem_.buckets(); ++b) {
      Queue queue{b, whole_us(link, b), {}};
      for (std::uint32_t g = 0; g < last_.size(); ++g)
        if (mask >> (g * problem_.buckets() + b) & 1U) queue.generations.push_back(g);
      load_us += queue.us * static_cast<double>(queue.generations.size());
      if (!queue.generations.empty()) queues.push_back(std::move(queue));
    }
    if (load_us > cycle_us_ + slack_us_) return false;
    for (double end = earliest_end(queues, -kNever); end < kNever;) {
      const double next = earliest_end(queues, end - cycle_us_);
      if (next <= end + slack_us_) return true;
      end = next;
    }
    return false;
  }

  struct Queue {  // the generations of one bucket on one link: of equal cost, so the older one goes first
    std::size_t bucket;
    double us;
    std::vector<std::uint32_t> generations;
  };

  // The least time at which all can have been sent, each when it is released and before it is due, beginning at
  // `begin_us`; kNever if that cannot be. Dynamic programming over how much of each queue has gone: of two ways to
  // send the same parts the one that ends earlier is as good in all that follows.
  double earliest_end(const std::vector<Queue>& queues, double begin_us) {
    std::vector<std::size_t> stride;
    std::size_t states = 1;
    for (const auto& queue : queues) stride.push_back(states), states *= queue.generations.size() + 1;
    effort_ += states * queues.size();
    end_us_.assign(states, kNever);
    end_us_[0] = begin_us;
    for (std::size_t state = 0; state < states; ++state) {
      if (end_us_[state] == kNever) continue;
      for (std::size_t q = 0; q < queues.size(); ++q) {
        const Queue& queue = queues[q];
        const std::size_t sent = state / stride[q] % (queue.generations.size() + 1);
        if (sent == queue.generations.size()) continue;
        const std::uint32_t last = last_[queue.generations[sent]];
        const auto& bucket = problem_.bucket(queue.bucket);
        const double release = last * problem_.compute_us() + bucket.ready_us;
        const double due = (last + 1 + staleness_) * problem_.compute_us() + bucket.forward_start_us + slack_us_;
        const double end = std::max(end_us_[state], release) + queue.us;
        if (end <= due) end_us_[state + stride[q]] = std::min(end_us_[state + stride[q]], end);
      }
    }
    return end_us_.back();
  }

  const Problem& problem_;
  std::vector<std::uint32_t> last_;
  std::uint32_t staleness_;
  double cycle_us_;
  double slack_us_;
  std::vector<std::unordered_map<Mask, bool>> known_;  // of each link
  std::vector<Mask> mask_;                             // of each link, as assigned so far
  std::vector<std::size_t> order_;                     // of the buckets
  double used_us_ = 0;                                 // of all links, by what is assigned
  double rest_us_ = 0;                                 // what is not yet needs at least
  std::vector<double> end_us_;
  std::uint64_t effort_ = 0;
};

}  // namespace

ExactSearch::ExactSearch(const Problem& problem, std::uint32_t max_staleness)
    : problem_(problem), max_staleness_(max_staleness) {}

// One generation on empty links. A set of buckets can be sent by one link if the earliest end of it, each bucket in time,
// exists; the sets grow bucket by bucket.
bool ExactSearch::arrives(std::uint32_t staleness, double wait_us) const {
  const std::size_t sets = std::size_t{1} << problem_.buckets();
  std::vector<bool> covered(sets, false);  // by the links so far
  covered[0] = true;
  for (std::size_t l = 0; l < problem_.links(); ++l) {
    std::vector<double> end_us(sets, kNever);
    end_us[0] = 0;
    for (std::size_t set = 0; set < sets; ++set)
      for (std::size_t b = 0; b < problem_.buckets() && end_us[set] < kNever; ++b) {
        if (set >> b & 1U) continue;
        const auto& bucket = problem_.bucket(b);
        const double end = std::max(end_us[set], bucket.ready_us) + problem_.cost(l, b).us(bucket.bytes);
        const double due = (1 + staleness) * problem_.compute_us() + bucket.forward_start_us + wait_us;
        if (end <= due) end_us[set | std::size_t{1} << b] = std::min(end_us[set | std::size_t{1} << b], end);
      }
    std::vector<bool> more = covered;
    for (std::size_t set = 0; set < sets; ++set)
      if (covered[set])
        for (std::size_t rest = sets - 1 - set, part = rest; part > 0; part = (part - 1) & rest)
          if (end_us[part] < kNever) more[set | part] = true;
    covered = std::move(more);
  }
  return covered.back();
}

double ExactSearch::least_wait_us(std::uint32_t staleness) const {
  if (arrives(staleness, 0)) return 0;
  double low = 0;
  double high = problem_.compute_us();
  while (!arrives(staleness, high)) low = high, high *= 2;
  while (high - low > kRounding * problem_.compute_us()) {
    const double middle = (low + high) / 2;
    (arrives(staleness, middle) ? high : low) = middle;
  }
  return low;
}

double ExactSearch::least_step_us(std::uint32_t most_steps) const {
  std::uint32_t shared = 1;
  for (std::uint32_t steps = 1; steps <= most_steps; ++steps)
    shared = std::max(shared, steps * (1 + max_staleness_ / steps));
  const double carried = problem_.generation_bound_us() / most_steps;
  return std::max(carried, problem_.compute_us() + least_wait_us(max_staleness_) / shared);
}

std::optional<bool> ExactSearch::runs_without_waiting(const std::vector<std::uint32_t>& last_steps) {
  return UpdateRatioCheck(problem_, last_steps, max_staleness_).run();
}

}  // namespace deft::plan
