// Builds timetables in which all buckets have the same dates.
#include <algorithm>
#include <utility>

#include "core/plan/list_scheduler.h"
#include "core/plan/schedule_builder.h"

namespace deft::plan {
namespace {

constexpr std::uint32_t kUniformCycles = 3;  // a uniform schedule runs for at least so many cycles
constexpr std::uint32_t kUniformSteps = 16;  // and so many steps; by then the backlog repeats

class UniformBuilder {
 public:
  UniformBuilder(const Problem& problem, const PlanLimits& limits, UpdateRatio ratio, double part_us)
      : problem_(problem),
        limits_(limits),
        ratio_(ratio),
        runner_(problem),
        list_(problem, part_us),
        sending_(problem.buckets()),
        cycles_(std::max(kUniformCycles, kUniformSteps / ratio.steps)),
        finish_(std::size_t{cycles_} * ratio.generations * problem.buckets()) {}

  std::optional<Timetable> build();

 private:
  [[nodiscard]] std::uint32_t first_step(std::uint64_t generation) const { return ratio_.first_step(generation); }
  void run_steps(std::uint32_t until);
  void apply(std::uint32_t generation);
  [[nodiscard]] bool fits_the_arena() const;
  [[nodiscard]] Timetable last_cycle() const;
  void send(std::uint32_t generation);

  const Problem& problem_;
  const PlanLimits& limits_;
  UpdateRatio ratio_;
  StepRunner runner_;
  ListScheduler list_;
  std::vector<Sending> sending_;  // of each bucket, of one generation
  std::uint32_t cycles_;
  std::vector<double> finish_;             // [generation][bucket]
  std::vector<std::uint32_t> apply_step_;  // of each generation
  std::uint32_t applied_ = 0;
};

// Runs compute through step `until`.
void UniformBuilder::run_steps(std::uint32_t until) {
  while (runner_.steps() <= until) {
    const std::uint32_t step = runner_.steps();
    const double* arrival = nullptr;
    if (applied_ < apply_step_.size() && apply_step_[applied_] == step)
      arrival = &finish_[std::size_t{applied_++} * problem_.buckets()];
    runner_.run(arrival);
  }
}

// Chooses the step that sees `generation`: the first step whose forward does not have to wait for it, but at most
// max_staleness_steps after it could be applied first. The generation before merges earlier steps, and keeps this limit, too. So
// the step after its apply step is never beyond the limit of this one.
void UniformBuilder::apply(std::uint32_t generation) {
  const double* finish = &finish_[std::size_t{generation} * problem_.buckets()];
  const std::uint32_t last = first_step(std::uint64_t{generation} + 1) - 1;
  double behind_us = 0;
  for (std::size_t b = 0; b < problem_.buckets(); ++b)
    behind_us = std::max(behind_us, finish[b] - runner_.now_us() - problem_.bucket(b).forward_start_us);
  const double delay =
      std::min(steps_late(behind_us, problem_, limits_), static_cast<double>(limits_.max_staleness_steps));
  std::uint32_t step = last + 1 + static_cast<std::uint32_t>(delay);
  if (!apply_step_.empty()) step = std::max(step, apply_step_.back() + 1);
  apply_step_.push_back(step);
}

// Generations that are being gathered, sent or waiting to be applied at the same time.
bool UniformBuilder::fits_the_arena() const {
  const std::uint32_t count = ratio_.generations;
  for (std::uint32_t g = 0; g < count; ++g) {
    const std::uint32_t applied = apply_step_[(cycles_ - 1) * count + g] - (cycles_ - 1) * ratio_.steps;
    std::uint32_t open = 0;
    while (first_step(std::uint64_t{g} + open) <= applied) ++open;
    if (open > limits_.max_generations) return false;
  }
  return true;
}

// Sends `generation`, whose buckets the newest step has made ready.
void UniformBuilder::send(std::uint32_t generation) {
  for (std::size_t b = 0; b < problem_.buckets(); ++b)
    sending_[b] = {generation, static_cast<model::BucketIndex>(b), runner_.ready_us(b), problem_.bucket(b).bytes};
  double* const finish = &finish_[std::size_t{generation} * problem_.buckets()];
  list_.send(
      sending_,
      [this](std::size_t link, double until_us) {
        list_.links().wait(link, until_us);
        return true;
      },
      [finish](const Sending& sent) { finish[sent.bucket] = sent.finish_us; });
}

Timetable UniformBuilder::last_cycle() const {
  const std::uint32_t count = ratio_.generations;
  const std::uint32_t begin = (cycles_ - 1) * ratio_.steps;
  Timetable table;
  model::UpdateCycle& cycle = table.plan.cycles.usual;
  cycle = {ratio_.steps, {}};
  for (std::uint32_t g = 0; g < count; ++g)
    cycle.generations.push_back({first_step(g), first_step(g + 1) - 1, apply_step_[(cycles_ - 1) * count + g] - begin});
  std::vector<std::uint64_t> sent(std::size_t{count} * problem_.buckets());
  for (std::size_t l = 0; l < problem_.links(); ++l) {
    auto& list = table.links.emplace_back();
    for (const auto& p : list_.links().placed(l)) {
      if (p.generation < (cycles_ - 1) * count) continue;
      const std::uint32_t g = p.generation - (cycles_ - 1) * count;
      std::uint64_t& offset = sent[g * problem_.buckets() + p.bucket];
      list.push_back({p.bucket, g, offset, p.bytes, 0});
      offset += p.bytes;
    }
  }
  return table;
}

std::optional<Timetable> UniformBuilder::build() {
  const std::uint32_t total = cycles_ * ratio_.generations;
  for (std::uint32_t g = 0; g < total; ++g) {
    run_steps(first_step(std::uint64_t{g} + 1) - 1);
    send(g);
    apply(g);
  }
  const bool repeats = apply_step_[total - 1] < apply_step_[total - ratio_.generations] + ratio_.steps;
  if (!repeats || !fits_the_arena()) return std::nullopt;
  return last_cycle();
}

}  // namespace

std::optional<Timetable> build_uniform(const Problem& problem, const PlanLimits& limits, UpdateRatio ratio,
                                       double part_us) {
  auto table = UniformBuilder(problem, limits, ratio, part_us).build();
  if (table) table->part_us = part_us;
  return table;
}

}  // namespace deft::plan
