#include "core/plan/problem.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace deft::plan {

Problem::Problem(const model::Profile& profile) {
  const std::size_t count = profile.buckets.size();
  buckets_.resize(count);
  costs_.assign(profile.links.size(), std::vector<model::PartCost>(count));
  forward_us_ = profile.forward_us();
  double forward_end = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& from = profile.buckets[i];
    ProblemBucket& to = buckets_[count - 1 - i];
    to = {from.bytes, from.forward_us, from.backward_us, forward_end, 0};
    forward_end += from.forward_us;
    for (std::size_t link = 0; link < profile.links.size(); ++link) costs_[link][count - 1 - i] = profile.cost(i, link);
  }
  double backward_end = forward_us_;
  for (auto& bucket : buckets_) bucket.ready_us = backward_end += bucket.backward_us;
  compute_us_ = backward_end;
}

Problem Problem::scaled(double compute, double communication) const {
  Problem out = *this;
  for (auto& bucket : out.buckets_) {
    bucket.forward_us *= compute;
    bucket.backward_us *= compute;
    bucket.forward_start_us *= compute;
    bucket.ready_us *= compute;
  }
  out.compute_us_ *= compute;
  out.forward_us_ *= compute;
  for (auto& link : out.costs_)
    for (auto& cost : link) cost = {cost.fixed_us * communication, cost.us_per_byte * communication};
  return out;
}

// Any prices of the links' time that sum to 1 give a bound: each bucket goes where it costs least. Prices of overloaded
// links rise until the bound is close to the optimum.
double Problem::generation_bound_us() const {
  constexpr int kRounds = 60;
  std::vector<double> price(links());
  double sum = 0;
  for (std::size_t l = 0; l < links(); ++l) {
    double total = 0;
    for (std::size_t b = 0; b < buckets(); ++b) total += costs_[l][b].us(buckets_[b].bytes);
    sum += price[l] = 1 / std::max(total, 1e-9);
  }
  for (auto& p : price) p /= sum;
  double best = 0;
  std::vector<double> load(links());
  for (int round = 0; round < kRounds; ++round) {
    std::fill(load.begin(), load.end(), 0);
    double bound = 0;
    for (std::size_t b = 0; b < buckets(); ++b) {
      std::size_t cheapest = 0;
      double least = std::numeric_limits<double>::infinity();
      for (std::size_t l = 0; l < links(); ++l) {
        const double us = costs_[l][b].us(buckets_[b].bytes);
        if (price[l] * us < least) least = price[l] * us, cheapest = l;
      }
      bound += least;
      load[cheapest] += costs_[cheapest][b].us(buckets_[b].bytes);
    }
    best = std::max(best, bound);
    const double most = *std::max_element(load.begin(), load.end());
    if (most <= 0) break;
    double total = 0;
    for (std::size_t l = 0; l < links(); ++l)
      total += price[l] *= std::exp(0.3 / std::sqrt(round + 1.0) * load[l] / most);
    for (auto& p : price) p /= total;
  }
  return best;
}

void ComputeTimeline::run_step(const double* arrival_us, double* ready_us) {
  for (std::size_t b = problem_.buckets(); b-- > 0;) {
    if (arrival_us != nullptr) now_us_ = std::max(now_us_, arrival_us[b]);
    now_us_ += problem_.bucket(b).forward_us;
  }
  for (std::size_t b = 0; b < problem_.buckets(); ++b) ready_us[b] = now_us_ += problem_.bucket(b).backward_us;
}

namespace {

// Executes a plan for some cycles.
class Run {
 public:
  Run(const model::Plan& plan, const Problem& problem, std::size_t cycles)
      : plan_(plan),
        problem_(problem),
        lane_(problem),
        cursors_(plan.links.size()),
        ready_(cycles * plan.period_steps * problem.buckets()),
        buckets_(problem.buckets()),
        arrival_(problem.buckets()) {
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      buckets_[b].generations = &plan.generations_of(static_cast<model::BucketIndex>(b));
      const std::size_t count = buckets_[b].generations->size();
      buckets_[b].finish_us.resize(cycles * count);
      buckets_[b].left.resize(cycles * count);
    }
    for (const auto& link : plan.links)
      for (const auto& part : link) ++buckets_[part.bucket].left[part.generation];
    for (auto& bucket : buckets_)
      for (std::size_t i = bucket.generations->size(); i < bucket.left.size(); ++i)
        bucket.left[i] = bucket.left[i - bucket.generations->size()];
  }

  // Runs the next step; false: it waits for ever.
  bool step() {
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      Bucket& bucket = buckets_[b];
      arrival_[b] = 0;
      for (; bucket.applied < bucket.left.size() && apply_step(bucket) <= step_; ++bucket.applied) {
        if (bucket.left[bucket.applied] > 0) return false;
        arrival_[b] = bucket.finish_us[bucket.applied];
      }
    }
    lane_.run_step(arrival_.data(), &ready_[step_ * problem_.buckets()]);
    ++step_;
    for (std::size_t l = 0; l < cursors_.size(); ++l) advance(l);
    return true;
  }
  [[nodiscard]] double now_us() const { return lane_.now_us(); }

 private:
  struct Cursor {
    std::size_t cycle = 0;
    std::size_t next = 0;
    double free_us = 0;
  };
  struct Bucket {
    const std::vector<model::PlanGeneration>* generations = nullptr;  // of a cycle
    std::vector<double> finish_us;                                    // of each generation
    std::vector<int> left;                                            // parts of each that have not been sent
    std::size_t applied = 0;
  };
  [[nodiscard]] std::size_t apply_step(const Bucket& bucket) const {
    const std::size_t count = bucket.generations->size();
    return bucket.applied / count * plan_.period_steps + (*bucket.generations)[bucket.applied % count].apply_step;
  }
  void advance(std::size_t link);

  const model::Plan& plan_;
  const Problem& problem_;
  ComputeTimeline lane_;
  std::vector<Cursor> cursors_;
  std::vector<double> ready_;  // [step][bucket]
  std::vector<Bucket> buckets_;
  std::vector<double> arrival_;
  std::size_t step_ = 0;
};

// Sends on `link` all that is ready by the steps that have run.
void Run::advance(std::size_t link) {
  Cursor& at = cursors_[link];
  const auto& list = plan_.links[link];
  while (!list.empty()) {
    if (at.next == list.size()) at.next = 0, ++at.cycle;
    const auto& part = list[at.next];
    if (at.cycle < part.cycles_back) {
      ++at.next;
      continue;
    }
    Bucket& bucket = buckets_[part.bucket];
    const std::size_t cycle = at.cycle - part.cycles_back;
    const std::size_t generation = cycle * bucket.generations->size() + part.generation;
    const std::size_t last = cycle * plan_.period_steps + (*bucket.generations)[part.generation].last_step;
    if (generation >= bucket.left.size() || last >= step_) return;
    const double start = std::max(at.free_us, ready_[last * problem_.buckets() + part.bucket]);
    at.free_us = start + problem_.cost(link, part.bucket).us(part.bytes);
    bucket.finish_us[generation] = std::max(bucket.finish_us[generation], at.free_us);
    --bucket.left[generation];
    ++at.next;
  }
}

std::size_t latest_apply_step(const model::Plan& plan) {
  std::size_t latest = plan.generations.back().apply_step;
  for (const auto& [bucket, generations] : plan.own_generations)
    latest = std::max<std::size_t>(latest, generations.back().apply_step);
  return latest;
}

// A link cannot send more in a cycle than the cycle is long, however slowly the backlog grows.
double busiest_link_us(const model::Plan& plan, const Problem& problem) {
  double most = 0;
  for (std::size_t l = 0; l < plan.links.size(); ++l) {
    double sum = 0;
    for (const auto& part : plan.links[l]) sum += problem.cost(l, part.bucket).us(part.bytes);
    most = std::max(most, sum);
  }
  return most;
}

}  // namespace

Evaluation evaluate(const model::Plan& plan, const Problem& problem) {
  const std::size_t period = plan.period_steps;
  const std::size_t reach = latest_apply_step(plan);
  const std::size_t warm = (reach + period - 1) / period + (period >= 8 ? 1 : 2);
  const std::size_t measured = std::max<std::size_t>(1, 8 / period);
  Run run(plan, problem, warm + measured);
  for (std::size_t s = 0; s < warm * period; ++s)
    if (!run.step()) return {};
  const double began = run.now_us();
  for (std::size_t s = 0; s < measured * period; ++s)
    if (!run.step()) return {};
  const double step_us = (run.now_us() - began) / static_cast<double>(measured * period);
  return {true, std::max(step_us, busiest_link_us(plan, problem) / static_cast<double>(period))};
}

}  // namespace deft::plan
