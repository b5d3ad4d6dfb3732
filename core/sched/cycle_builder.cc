#include "core/sched/cycle_builder.h"

#include <algorithm>
#include <cmath>
#include <queue>

#include "core/sched/parts.h"

namespace deft::sched {
namespace {

constexpr std::uint32_t kCycles = 3;  // that are run at least, and
constexpr std::uint32_t kSteps = 16;  // so many steps: by then the backlog repeats
constexpr double kRounding = 1e-7;    // of compute: not late but arithmetic
constexpr double kFixedShare = 6;     // a part lasts at least this many times its link's latency

// A part as placed: offsets come later, when it is known which neighbours stay together.
struct Placed {
  std::uint32_t generation;  // from the first cycle on
  model::BucketIndex bucket;
  std::uint64_t bytes;
};

// The links' time, filled generation by generation.
class LinkTime {
 public:
  LinkTime(const PlanProblem& problem, double part_us)
      : problem_(problem),
        part_us_(part_us),
        free_us_(problem.links()),
        placed_(problem.links()),
        rest_(problem.buckets()) {}

  // Sends `generation`, whose buckets are ready at `ready_us`; writes when each has arrived to `finish_us`.
  void send(std::uint32_t generation, const double* ready_us, double* finish_us);

  [[nodiscard]] std::vector<std::vector<Placed>>& placed() { return placed_; }
  [[nodiscard]] double busy_us() const { return busy_us_; }

 private:
  [[nodiscard]] std::uint64_t piece(std::size_t link, std::size_t bucket) const;
  [[nodiscard]] double finish(std::size_t link, std::size_t bucket, std::uint64_t bytes, double ready_us) const {
    return std::max(free_us_[link], ready_us) + problem_.cost(link, bucket).us(bytes);
  }
  void place(std::uint32_t generation, std::size_t link, std::size_t bucket, double ready_us, double* finish_us);

  const PlanProblem& problem_;
  double part_us_;
  std::vector<double> free_us_;
  std::vector<std::vector<Placed>> placed_;
  std::vector<std::uint64_t> rest_;  // bytes of each bucket that are still to be sent
  std::vector<std::size_t> urgent_;  // a heap of ready buckets: the highest index is the first that forward needs
  double busy_us_ = 0;
};

// How much of `bucket` goes to `link` at once.
std::uint64_t LinkTime::piece(std::size_t link, std::size_t bucket) const {
  const auto& cost = problem_.cost(link, bucket);
  const double us = std::max(part_us_, kFixedShare * cost.fixed_us) - cost.fixed_us;
  const std::uint64_t rest = rest_[bucket];
  if (cost.us_per_byte * static_cast<double>(rest) <= us * 1.25) return rest;  // leave no sliver
  const auto units = static_cast<std::uint64_t>(us / cost.us_per_byte / kPartAlignBytes);
  return std::min(rest, std::max<std::uint64_t>(units, 1) * kPartAlignBytes);
}

void LinkTime::place(std::uint32_t generation, std::size_t link, std::size_t bucket, double ready_us,
                     double* finish_us) {
  const std::uint64_t bytes = piece(link, bucket);
  const auto& cost = problem_.cost(link, bucket);
  const double start = std::max(free_us_[link], ready_us);
  auto& list = placed_[link];
  const bool joins = !list.empty() && list.back().generation == generation && list.back().bucket == bucket;
  const double us = joins ? static_cast<double>(bytes) * cost.us_per_byte : cost.us(bytes);
  if (joins)
    list.back().bytes += bytes;
  else
    list.push_back({generation, static_cast<model::BucketIndex>(bucket), bytes});
  free_us_[link] = start + us;
  busy_us_ += us;
  finish_us[bucket] = std::max(finish_us[bucket], free_us_[link]);
  rest_[bucket] -= bytes;
}

void LinkTime::send(std::uint32_t generation, const double* ready_us, double* finish_us) {
  const std::size_t count = problem_.buckets();
  for (std::size_t b = 0; b < count; ++b) rest_[b] = problem_.bucket(b).bytes, finish_us[b] = 0;
  std::size_t next = 0;
  while (next < count || !urgent_.empty()) {
    const std::size_t idle = std::min_element(free_us_.begin(), free_us_.end()) - free_us_.begin();
    if (urgent_.empty()) free_us_[idle] = std::max(free_us_[idle], ready_us[next]);
    for (; next < count && ready_us[next] <= free_us_[idle]; ++next) {
      urgent_.push_back(next);
      std::push_heap(urgent_.begin(), urgent_.end());
    }
    const std::size_t bucket = urgent_.front();
    std::size_t best = idle;
    double best_us = finish(idle, bucket, piece(idle, bucket), ready_us[bucket]);
    for (std::size_t l = 0; l < free_us_.size(); ++l) {
      const double us = finish(l, bucket, rest_[bucket], ready_us[bucket]);
      if (us < best_us) best = l, best_us = us;
    }
    place(generation, best, bucket, ready_us[bucket], finish_us);
    if (rest_[bucket] > 0) continue;
    std::pop_heap(urgent_.begin(), urgent_.end());
    urgent_.pop_back();
  }
}

class Builder {
 public:
  Builder(const PlanProblem& problem, const PlanLimits& limits, Rhythm rhythm, double part_us)
      : problem_(problem),
        limits_(limits),
        rhythm_(rhythm),
        lane_(problem),
        links_(problem, part_us),
        ready_(problem.buckets()),
        cycles_(std::max(kCycles, kSteps / rhythm.steps)),
        finish_(std::size_t{cycles_} * rhythm.generations * problem.buckets()) {}

  std::optional<model::Plan> build();

 private:
  [[nodiscard]] std::uint32_t first_step(std::uint64_t generation) const {
    return static_cast<std::uint32_t>(generation * rhythm_.steps / rhythm_.generations);
  }
  void run_steps(std::uint32_t until);
  bool apply(std::uint32_t generation);
  [[nodiscard]] bool fits_the_arena() const;
  [[nodiscard]] model::Plan last_cycle();

  const PlanProblem& problem_;
  const PlanLimits& limits_;
  Rhythm rhythm_;
  ComputeLane lane_;
  LinkTime links_;
  std::vector<double> ready_;  // of the newest step
  std::uint32_t cycles_;
  std::vector<double> finish_;             // [generation][bucket]
  std::vector<double> began_us_;           // of each step
  std::vector<std::uint32_t> apply_step_;  // of each generation
  std::uint32_t applied_ = 0;
};

// Runs compute through step `until`.
void Builder::run_steps(std::uint32_t until) {
  while (began_us_.size() <= until) {
    const auto step = static_cast<std::uint32_t>(began_us_.size());
    const double* arrival = nullptr;
    if (applied_ < apply_step_.size() && apply_step_[applied_] == step)
      arrival = &finish_[std::size_t{applied_++} * problem_.buckets()];
    began_us_.push_back(lane_.now_us());
    lane_.run_step(arrival, ready_.data());
  }
}

// Chooses the step that sees `generation`: the first whose forward does not have to wait for it. False: the limits
// leave no such step after the one before.
bool Builder::apply(std::uint32_t generation) {
  const double* finish = &finish_[std::size_t{generation} * problem_.buckets()];
  const std::uint32_t last = first_step(std::uint64_t{generation} + 1) - 1;
  double late = 0;
  for (std::size_t b = 0; b < problem_.buckets(); ++b)
    late = std::max(late, finish[b] - lane_.now_us() - problem_.bucket(b).forward_start_us);
  late -= (limits_.bubble_tolerance + kRounding) * problem_.compute_us();
  const double delay =
      std::clamp(std::ceil(late / problem_.compute_us()), 0.0, static_cast<double>(limits_.max_staleness_steps));
  std::uint32_t step = last + 1 + static_cast<std::uint32_t>(delay);
  if (!apply_step_.empty()) step = std::max(step, apply_step_.back() + 1);
  apply_step_.push_back(step);
  return step - last - 1 <= limits_.max_staleness_steps;
}

// Generations that are being gathered, sent or waiting to be applied at the same time.
bool Builder::fits_the_arena() const {
  const std::uint32_t count = rhythm_.generations;
  for (std::uint32_t g = 0; g < count; ++g) {
    const std::uint32_t applied = apply_step_[(cycles_ - 1) * count + g] - (cycles_ - 1) * rhythm_.steps;
    std::uint32_t open = 0;
    while (first_step(std::uint64_t{g} + open) <= applied) ++open;
    if (open > limits_.max_generations) return false;
  }
  return true;
}

model::Plan Builder::last_cycle() {
  const std::uint32_t count = rhythm_.generations;
  const std::uint32_t begin = (cycles_ - 1) * rhythm_.steps;
  model::Plan plan;
  plan.period_steps = rhythm_.steps;
  for (std::uint32_t g = 0; g < count; ++g)
    plan.generations.push_back({first_step(g), first_step(g + 1) - 1, apply_step_[(cycles_ - 1) * count + g] - begin});
  std::vector<std::uint64_t> sent(std::size_t{count} * problem_.buckets());
  for (const auto& placed : links_.placed()) {
    auto& list = plan.links.emplace_back();
    for (const auto& p : placed) {
      if (p.generation < (cycles_ - 1) * count) continue;
      const std::uint32_t g = p.generation - (cycles_ - 1) * count;
      std::uint64_t& offset = sent[g * problem_.buckets() + p.bucket];
      list.push_back({p.bucket, g, offset, p.bytes});
      offset += p.bytes;
    }
  }
  return plan;
}

std::optional<model::Plan> Builder::build() {
  const std::uint32_t total = cycles_ * rhythm_.generations;
  for (std::uint32_t g = 0; g < total; ++g) {
    run_steps(first_step(std::uint64_t{g} + 1) - 1);
    links_.send(g, ready_.data(), &finish_[std::size_t{g} * problem_.buckets()]);
    if (!apply(g)) return std::nullopt;
  }
  const bool repeats = apply_step_[total - 1] < apply_step_[total - rhythm_.generations] + rhythm_.steps;
  if (!repeats || !fits_the_arena()) return std::nullopt;
  return last_cycle();
}

}  // namespace

std::optional<model::Plan> build_cycle(const PlanProblem& problem, const PlanLimits& limits, Rhythm rhythm,
                                       double part_us) {
  return Builder(problem, limits, rhythm, part_us).build();
}

double generation_share_us(const PlanProblem& problem, double part_us) {
  LinkTime links(problem, part_us);
  const std::vector<double> ready(problem.buckets(), 0);
  std::vector<double> finish(problem.buckets());
  links.send(0, ready.data(), finish.data());
  return links.busy_us() / static_cast<double>(problem.links());
}

}  // namespace deft::sched
