#include "core/plan/schedule_builder.h"

#include <algorithm>
#include <cmath>

#include "core/plan/link_time.h"

namespace deft::plan {
namespace {

constexpr std::uint32_t kCycles = 3;  // that are run at least, and
constexpr std::uint32_t kSteps = 16;  // so many steps: by then the backlog repeats
constexpr double kRounding = 1e-7;    // of compute: not late but arithmetic

// The links' time, filled generation by generation.
class Sender {
 public:
  Sender(const Problem& problem, double part_us)
      : problem_(problem), links_(problem, part_us), sending_(problem.buckets()) {}

  // Sends `generation`, whose buckets are ready at `ready_us`; writes when each has arrived to `finish_us`.
  void send(std::uint32_t generation, const double* ready_us, double* finish_us);

  [[nodiscard]] const LinkTime& links() const { return links_; }

 private:
  const Problem& problem_;
  LinkTime links_;
  std::vector<Sending> sending_;     // of each bucket
  std::vector<std::size_t> urgent_;  // a heap of ready buckets: the highest index is the first that forward needs
};

void Sender::send(std::uint32_t generation, const double* ready_us, double* finish_us) {
  const std::size_t count = problem_.buckets();
  for (std::size_t b = 0; b < count; ++b)
    sending_[b] = {generation, static_cast<model::BucketIndex>(b), ready_us[b], problem_.bucket(b).bytes};
  std::size_t next = 0;
  while (next < count || !urgent_.empty()) {
    const std::size_t idle = links_.idle();
    if (urgent_.empty()) links_.wait(idle, ready_us[next]);
    for (; next < count && ready_us[next] <= links_.free_us(idle); ++next) {
      urgent_.push_back(next);
      std::push_heap(urgent_.begin(), urgent_.end());
    }
    Sending& sending = sending_[urgent_.front()];
    links_.place(sending, links_.best(idle, sending));
    if (sending.rest > 0) continue;
    finish_us[sending.bucket] = sending.finish_us;
    std::pop_heap(urgent_.begin(), urgent_.end());
    urgent_.pop_back();
  }
}

class Builder {
 public:
  Builder(const Problem& problem, const Limits& limits, UpdateRatio ratio, double part_us)
      : problem_(problem),
        limits_(limits),
        ratio_(ratio),
        lane_(problem),
        sender_(problem, part_us),
        ready_(problem.buckets()),
        cycles_(std::max(kCycles, kSteps / ratio.steps)),
        finish_(std::size_t{cycles_} * ratio.generations * problem.buckets()) {}

  std::optional<model::Plan> build();

 private:
  [[nodiscard]] std::uint32_t first_step(std::uint64_t generation) const {
    return static_cast<std::uint32_t>(generation * ratio_.steps / ratio_.generations);
  }
  void run_steps(std::uint32_t until);
  bool apply(std::uint32_t generation);
  [[nodiscard]] bool fits_the_arena() const;
  [[nodiscard]] model::Plan last_cycle();

  const Problem& problem_;
  const Limits& limits_;
  UpdateRatio ratio_;
  ComputeTimeline lane_;
  Sender sender_;
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
  const std::uint32_t count = ratio_.generations;
  for (std::uint32_t g = 0; g < count; ++g) {
    const std::uint32_t applied = apply_step_[(cycles_ - 1) * count + g] - (cycles_ - 1) * ratio_.steps;
    std::uint32_t open = 0;
    while (first_step(std::uint64_t{g} + open) <= applied) ++open;
    if (open > limits_.max_generations) return false;
  }
  return true;
}

model::Plan Builder::last_cycle() {
  const std::uint32_t count = ratio_.generations;
  const std::uint32_t begin = (cycles_ - 1) * ratio_.steps;
  model::Plan plan;
  plan.period_steps = ratio_.steps;
  for (std::uint32_t g = 0; g < count; ++g)
    plan.generations.push_back({first_step(g), first_step(g + 1) - 1, apply_step_[(cycles_ - 1) * count + g] - begin});
  std::vector<std::uint64_t> sent(std::size_t{count} * problem_.buckets());
  for (std::size_t l = 0; l < problem_.links(); ++l) {
    auto& list = plan.links.emplace_back();
    for (const auto& p : sender_.links().placed(l)) {
      if (p.generation < (cycles_ - 1) * count) continue;
      const std::uint32_t g = p.generation - (cycles_ - 1) * count;
      std::uint64_t& offset = sent[g * problem_.buckets() + p.bucket];
      list.push_back({p.bucket, g, offset, p.bytes, 0});
      offset += p.bytes;
    }
  }
  return plan;
}

std::optional<model::Plan> Builder::build() {
  const std::uint32_t total = cycles_ * ratio_.generations;
  for (std::uint32_t g = 0; g < total; ++g) {
    run_steps(first_step(std::uint64_t{g} + 1) - 1);
    sender_.send(g, ready_.data(), &finish_[std::size_t{g} * problem_.buckets()]);
    if (!apply(g)) return std::nullopt;
  }
  const bool repeats = apply_step_[total - 1] < apply_step_[total - ratio_.generations] + ratio_.steps;
  if (!repeats || !fits_the_arena()) return std::nullopt;
  return last_cycle();
}

}  // namespace

std::optional<model::Plan> build_cycle(const Problem& problem, const Limits& limits, UpdateRatio ratio,
                                       double part_us) {
  return Builder(problem, limits, ratio, part_us).build();
}

double generation_share_us(const Problem& problem, double part_us) {
  Sender sender(problem, part_us);
  const std::vector<double> ready(problem.buckets(), 0);
  std::vector<double> finish(problem.buckets());
  sender.send(0, ready.data(), finish.data());
  return sender.links().busy_us() / static_cast<double>(problem.links());
}

}  // namespace deft::plan
