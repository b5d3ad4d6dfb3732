#include "core/plan/timetable.h"

#include <algorithm>

namespace deft::plan {
namespace {

// Runs a timetable for some cycles.
class Run {
 public:
  Run(const Timetable& table, const Problem& problem, std::size_t cycles)
      : table_(table),
        problem_(problem),
        compute_(problem),
        cursors_(table.links.size()),
        ready_(cycles * table.plan.cycles.period_steps() * problem.buckets()),
        buckets_(problem.buckets()),
        arrival_(problem.buckets()) {
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      buckets_[b].generations = &table.plan.cycles.of(static_cast<model::BucketIndex>(b)).generations;
      const std::size_t count = buckets_[b].generations->size();
      buckets_[b].finish_us.resize(cycles * count);
      buckets_[b].left.resize(cycles * count);
    }
    for (const auto& link : table.links)
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
    compute_.run_step(arrival_.data(), &ready_[step_ * problem_.buckets()]);
    ++step_;
    for (std::size_t l = 0; l < cursors_.size(); ++l) advance(l);
    return true;
  }
  [[nodiscard]] double now_us() const { return compute_.now_us(); }

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
    return bucket.applied / count * table_.plan.cycles.period_steps() +
           (*bucket.generations)[bucket.applied % count].apply_step;
  }
  void advance(std::size_t link);

  const Timetable& table_;
  const Problem& problem_;
  ComputeTimeline compute_;
  std::vector<Cursor> cursors_;
  std::vector<double> ready_;  // [step][bucket]
  std::vector<Bucket> buckets_;
  std::vector<double> arrival_;
  std::size_t step_ = 0;
};

// Sends on `link` all that is ready by the steps that have run.
void Run::advance(std::size_t link) {
  Cursor& at = cursors_[link];
  const auto& list = table_.links[link];
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
    const std::size_t last =
        cycle * table_.plan.cycles.period_steps() + (*bucket.generations)[part.generation].last_step;
    if (generation >= bucket.left.size() || last >= step_) return;
    const double start = std::max(at.free_us, ready_[last * problem_.buckets() + part.bucket]);
    at.free_us = start + problem_.cost(link, part.bucket).us(part.bytes);
    bucket.finish_us[generation] = std::max(bucket.finish_us[generation], at.free_us);
    --bucket.left[generation];
    ++at.next;
  }
}

std::size_t latest_apply_step(const model::Plan& plan) {
  std::size_t latest = plan.cycles.usual.generations.back().apply_step;
  for (const auto& [bucket, cycle] : plan.cycles.own)
    latest = std::max<std::size_t>(latest, cycle.generations.back().apply_step);
  return latest;
}

// A link cannot send more in a cycle than the cycle is long, however slowly the backlog grows.
double busiest_link_us(const Timetable& table, const Problem& problem) {
  double most = 0;
  for (std::size_t l = 0; l < table.links.size(); ++l) {
    double sum = 0;
    for (const auto& part : table.links[l]) sum += problem.cost(l, part.bucket).us(part.bytes);
    most = std::max(most, sum);
  }
  return most;
}

}  // namespace

Evaluation evaluate(const Timetable& table, const Problem& problem) {
  const std::size_t period = table.plan.cycles.period_steps();
  const std::size_t reach = latest_apply_step(table.plan);
  const std::size_t warm = (reach + period - 1) / period + (period >= 8 ? 1 : 2);
  const std::size_t measured = std::max<std::size_t>(1, 8 / period);
  Run run(table, problem, warm + measured);
  for (std::size_t s = 0; s < warm * period; ++s)
    if (!run.step()) return {};
  const double began = run.now_us();
  for (std::size_t s = 0; s < measured * period; ++s)
    if (!run.step()) return {};
  const double step_us = (run.now_us() - began) / static_cast<double>(measured * period);
  return {true, std::max(step_us, busiest_link_us(table, problem) / static_cast<double>(period))};
}

std::optional<Timetable> timed(std::optional<Timetable> timetable, const Problem& problem) {
  if (!timetable) return std::nullopt;
  const Evaluation result = evaluate(*timetable, problem);
  if (!result.runs) return std::nullopt;
  timetable->plan.step_us = result.step_us;
  timetable->plan.compute_us = problem.compute_us();
  return timetable;
}

}  // namespace deft::plan
