#include "core/plan/schedule_builder.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "core/model/update_cycle.h"
#include "core/plan/link_time.h"

namespace deft::plan {
namespace {

constexpr std::uint32_t kUniformCycles = 3;  // a uniform schedule runs for at least so many cycles
constexpr std::uint32_t kUniformSteps = 16;  // and so many steps; by then the backlog repeats
constexpr std::uint32_t kMixedSteps = 12;    // the same for a mixed schedule
constexpr double kRounding = 1e-7;           // of compute: a delay below it comes from arithmetic

// List scheduling: of the ready buckets, the bucket that forward needs first is sent first, on the link where it
// finishes first.
class ListScheduler {
 public:
  ListScheduler(const Problem& problem, double part_us) : links_(problem, part_us) {}

  [[nodiscard]] LinkTime& links() { return links_; }
  [[nodiscard]] const LinkTime& links() const { return links_; }

  // Sends all of `sendings`, which stand in the order in which they become ready; forward needs the last one first.
  // `use_gap(link, until_us)`: nothing is ready before until_us, and the link is idle. True: it now waits until then; false:
  // another link may be free earlier. `arrived(sending)` is called for each bucket that has been sent whole.
  template <typename UseGap, typename Arrived>
  void send(std::vector<Sending>& sendings, const UseGap& use_gap, const Arrived& arrived) {
    std::size_t next = 0;
    while (next < sendings.size() || !urgent_.empty()) {
      const std::size_t idle = links_.idle();
      next = take_ready(sendings, next, idle);
      if (urgent_.empty()) {
        if (!use_gap(idle, sendings[next].ready_us)) continue;
        next = take_ready(sendings, next, idle);
      }
      Sending& sending = sendings[urgent_.front()];
      links_.place(sending, links_.best(idle, sending));
      if (sending.rest > 0) continue;
      arrived(sending);
      std::pop_heap(urgent_.begin(), urgent_.end());
      urgent_.pop_back();
    }
  }

 private:
  std::size_t take_ready(const std::vector<Sending>& sendings, std::size_t next, std::size_t link) {
    for (; next < sendings.size() && sendings[next].ready_us <= links_.free_us(link); ++next) {
      urgent_.push_back(next);
      std::push_heap(urgent_.begin(), urgent_.end());
    }
    return next;
  }

  LinkTime links_;
  std::vector<std::size_t> urgent_;  // a heap of ready buckets: the highest index is the first that forward needs
};

// Runs steps, and keeps when they began and when their buckets were ready.
class StepRunner {
 public:
  explicit StepRunner(const Problem& problem) : timeline_(problem), ready_us_(problem.buckets()) {}

  // The next step; `arrival_us` as ComputeTimeline has it.
  void run(const double* arrival_us) {
    began_us_.push_back(timeline_.now_us());
    timeline_.run_step(arrival_us, ready_us_.data());
  }
  [[nodiscard]] std::uint32_t steps() const { return static_cast<std::uint32_t>(began_us_.size()); }  // that have run
  [[nodiscard]] double now_us() const { return timeline_.now_us(); }
  [[nodiscard]] double ready_us(std::size_t bucket) const { return ready_us_[bucket]; }  // in the newest step
  [[nodiscard]] double began_us(std::size_t step) const { return began_us_[step]; }

 private:
  ComputeTimeline timeline_;
  std::vector<double> ready_us_;
  std::vector<double> began_us_;  // of each step
};

// All buckets have the same dates.
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
  behind_us -= (limits_.bubble_tolerance + kRounding) * problem_.compute_us();
  const double delay =
      std::clamp(std::ceil(behind_us / problem_.compute_us()), 0.0, static_cast<double>(limits_.max_staleness_steps));
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
  model::Plan& plan = table.plan;
  plan.period_steps = ratio_.steps;
  for (std::uint32_t g = 0; g < count; ++g)
    plan.generations.push_back({first_step(g), first_step(g + 1) - 1, apply_step_[(cycles_ - 1) * count + g] - begin});
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

// Where the backlog does not repeat exactly, parts of a bucket may have changed places; the older ones go first. False:
// in the next cycle older ones would still come behind newer ones.
bool put_older_first(std::vector<TimetablePart>& list) {
  std::map<model::BucketIndex, std::vector<std::size_t>> places;
  for (std::size_t i = 0; i < list.size(); ++i) places[list[i].bucket].push_back(i);
  for (const auto& [bucket, at] : places) {
    std::vector<TimetablePart> parts;
    for (const auto i : at) parts.push_back(list[i]);
    std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) {
      return std::tie(b.cycles_back, a.generation, a.offset) < std::tie(a.cycles_back, b.generation, b.offset);
    });
    for (std::size_t i = 0; i < at.size(); ++i) list[at[i]] = parts[i];
    const std::uint32_t next_back = std::max(parts.front().cycles_back, 1U) - 1;  // one cycle later, seen from this one
    const auto &newest = parts.back(), &next = parts.front();
    if (next.cycles_back > 0 && std::tie(next_back, newest.generation) > std::tie(newest.cycles_back, next.generation))
      return false;
  }
  return true;
}

// The dates of the stale buckets. Buckets that a tensor joins are a block, and have the same dates.
class StaleDates {
 public:
  struct Arrival {
    std::size_t bucket;
    double us;
  };

  StaleDates(std::size_t buckets, const std::vector<bool>& joined)
      : block_(buckets), block_size_(buckets), dates_(buckets) {
    for (std::size_t b = 0; b < buckets; ++b) {
      block_[b] = b > 0 && b < joined.size() && joined[b] ? block_[b - 1] : b;
      ++block_size_[block_[b]];
    }
  }

  // A bucket of a generation has been sent. All arrivals of its block, once they are complete; empty before.
  std::vector<Arrival> sent(const Sending& sending) {
    const std::pair key{block_[sending.bucket], sending.generation};
    auto& arrivals = arrived_[key];
    arrivals.push_back({sending.bucket, sending.finish_us});
    if (arrivals.size() < block_size_[key.first]) return {};
    auto complete = std::move(arrivals);
    arrived_.erase(key);
    return complete;
  }
  // These arrivals of a block are seen by `step`, or by the first step after the generation before them.
  void date(const std::vector<Arrival>& arrivals, std::uint32_t step) {
    const auto& dates = dates_[block_[arrivals.front().bucket]];
    if (!dates.empty()) step = std::max(step, dates.back() + 1);
    for (const Arrival& arrival : arrivals) {
      dates_[arrival.bucket].push_back(step);
      due_[step].push_back(arrival);
    }
  }
  // Writes when the buckets arrive that `step` must see.
  void write_due(std::uint32_t step, std::vector<double>& arrival_us) const {
    const auto due = due_.find(step);
    if (due == due_.end()) return;
    for (const Arrival& arrival : due->second) arrival_us[arrival.bucket] = arrival.us;
  }
  // The step that sees each generation of `bucket`.
  [[nodiscard]] const std::vector<std::uint32_t>& of(std::size_t bucket) const { return dates_[bucket]; }

 private:
  std::vector<std::size_t> block_;       // of each bucket: the first of its block
  std::vector<std::size_t> block_size_;  // of each first one
  std::map<std::pair<std::size_t, std::uint32_t>, std::vector<Arrival>> arrived_;  // of a block and generation
  std::vector<std::vector<std::uint32_t>> dates_;
  std::map<std::uint32_t, std::vector<Arrival>> due_;  // by the step that sees them
};

class MixedBuilder {
 public:
  MixedBuilder(const Problem& problem, const PlanLimits& limits, const std::vector<bool>& stale, UpdateRatio ratio,
               double part_us)
      : problem_(problem),
        limits_(limits),
        stale_(stale),
        ratio_(ratio),
        runner_(problem),
        list_(problem, part_us),
        arrival_(problem.buckets()),
        dates_(problem.buckets(), limits.joined),
        cycle_(std::max(2U, (kMixedSteps + ratio.steps - 1) / ratio.steps)) {}

  std::optional<Timetable> build();

 private:
  using Arrival = StaleDates::Arrival;
  [[nodiscard]] std::uint32_t first_step(std::uint32_t generation) const { return ratio_.first_step(generation); }
  [[nodiscard]] std::uint32_t last_step(std::uint32_t generation) const { return first_step(generation + 1) - 1; }
  [[nodiscard]] bool complete() const;
  void run_step();
  void gather();
  void send_fresh();
  bool fill(std::size_t link, double until_us);
  void send_overdue();
  void sent(const Sending& sending);
  [[nodiscard]] std::uint32_t step_that_sees(std::uint32_t generation, const std::vector<Arrival>& arrivals) const;
  [[nodiscard]] std::uint32_t cycles_back(double start_us) const;
  std::optional<Timetable> chosen_cycle();
  bool list_parts(Timetable& table);

  const Problem& problem_;
  const PlanLimits& limits_;
  const std::vector<bool>& stale_;
  UpdateRatio ratio_;
  StepRunner runner_;
  ListScheduler list_;
  std::vector<double> arrival_;   // of each bucket that the next step's forward must see
  std::uint32_t gathered_ = 0;    // generations of the stale buckets
  std::vector<Sending> backlog_;  // stale buckets, the oldest and most urgent first
  StaleDates dates_;
  std::uint32_t cycle_;  // the cycle that becomes the timetable
};

// True if all generations of the chosen cycle have their dates, and the compute that goes on meanwhile has run.
bool MixedBuilder::complete() const {
  const std::size_t wanted = std::size_t{cycle_ + 1} * ratio_.generations;
  for (std::size_t b = 0; b < problem_.buckets(); ++b)
    if (stale_[b] && (dates_.of(b).size() < wanted || dates_.of(b)[wanted - 1] >= runner_.steps())) return false;
  return runner_.steps() > (cycle_ + 1) * ratio_.steps;
}

void MixedBuilder::run_step() {
  dates_.write_due(runner_.steps(), arrival_);
  runner_.run(arrival_.data());
  std::fill(arrival_.begin(), arrival_.end(), 0);
  gather();
  send_fresh();
  send_overdue();
}

// The stale buckets of a generation that ends with this step.
void MixedBuilder::gather() {
  if (first_step(gathered_ + 1) != runner_.steps()) return;
  for (std::size_t b = problem_.buckets(); b-- > 0;)
    if (stale_[b])
      backlog_.push_back(
          {gathered_, static_cast<model::BucketIndex>(b), runner_.ready_us(b), problem_.bucket(b).bytes});
  ++gathered_;
}

void MixedBuilder::send_fresh() {
  std::vector<Sending> fresh;
  for (std::size_t b = 0; b < problem_.buckets(); ++b)
    if (!stale_[b])
      fresh.push_back(
          {runner_.steps() - 1, static_cast<model::BucketIndex>(b), runner_.ready_us(b), problem_.bucket(b).bytes});
  list_.send(
      fresh,
      [this](std::size_t link, double until_us) {
        if (!fill(link, until_us)) list_.links().wait(link, until_us);
        return false;
      },
      [this](const Sending& sent) { arrival_[sent.bucket] = sent.finish_us; });
}

// Sends a part of a stale bucket that `link` finishes by `until_us`; false: none fits.
bool MixedBuilder::fill(std::size_t link, double until_us) {
  for (auto sending = backlog_.begin(); sending != backlog_.end(); ++sending) {
    const double room_us = until_us - std::max(list_.links().free_us(link), sending->ready_us);
    if (room_us < list_.links().least_us(link, sending->bucket)) continue;
    list_.links().place(*sending, link, room_us);
    if (sending->rest == 0) {
      sent(*sending);
      backlog_.erase(sending);
    }
    return true;
  }
  return false;
}

// Sends the updates that the next step must see, whatever else waits.
void MixedBuilder::send_overdue() {
  while (!backlog_.empty() &&
         last_step(backlog_.front().generation) + 1 + limits_.max_staleness_steps <= runner_.steps()) {
    Sending& sending = backlog_.front();
    while (sending.rest > 0) list_.links().place(sending, list_.links().best(list_.links().idle(), sending));
    sent(sending);
    backlog_.erase(backlog_.begin());
  }
}

// The first step whose forward does not have to wait, as far as the limit allows it.
std::uint32_t MixedBuilder::step_that_sees(std::uint32_t generation, const std::vector<Arrival>& arrivals) const {
  double behind_us = 0;
  for (const Arrival& arrival : arrivals)
    behind_us = std::max(behind_us, arrival.us - runner_.now_us() - problem_.bucket(arrival.bucket).forward_start_us);
  behind_us -= (limits_.bubble_tolerance + kRounding) * problem_.compute_us();
  const auto delay = static_cast<std::uint32_t>(std::max(0.0, std::ceil(behind_us / problem_.compute_us())));
  const std::uint32_t latest = last_step(generation) + 1 + limits_.max_staleness_steps;
  return std::clamp(runner_.steps() + delay, runner_.steps(), std::max(runner_.steps(), latest));
}

// Dates a generation once all buckets of its block have been sent.
void MixedBuilder::sent(const Sending& sending) {
  const auto arrivals = dates_.sent(sending);
  if (!arrivals.empty()) dates_.date(arrivals, step_that_sees(sending.generation, arrivals));
}

// How many cycles after the chosen one a part starts.
std::uint32_t MixedBuilder::cycles_back(double start_us) const {
  std::uint32_t back = 0;
  while (std::size_t{cycle_ + back + 1} * ratio_.steps < runner_.steps() &&
         runner_.began_us((cycle_ + back + 1) * ratio_.steps) <= start_us)
    ++back;
  return back;
}

bool MixedBuilder::list_parts(Timetable& table) {
  const std::uint32_t steps = ratio_.steps, generations = ratio_.generations;
  struct Start {
    double at_us;  // in the cycle in which it starts
    double start_us;
    std::size_t link;
    TimetablePart part;
  };
  std::vector<Start> parts;
  for (std::size_t l = 0; l < problem_.links(); ++l)
    for (const Placed& placed : list_.links().placed(l)) {
      const std::uint32_t count = stale_[placed.bucket] ? generations : steps, first = cycle_ * count;
      if (placed.generation < first || placed.generation >= first + count) continue;
      const std::uint32_t back = cycles_back(placed.start_us);
      parts.push_back({placed.start_us - runner_.began_us((cycle_ + back) * steps),
                       placed.start_us,
                       l,
                       {placed.bucket, placed.generation - first, 0, placed.bytes, back}});
    }
  std::sort(parts.begin(), parts.end(), [](const Start& a, const Start& b) { return a.start_us < b.start_us; });
  std::map<std::pair<model::BucketIndex, std::uint32_t>, std::uint64_t> sent;
  for (Start& dated : parts) {
    std::uint64_t& offset = sent[{dated.part.bucket, dated.part.generation}];
    dated.part.offset = offset;
    offset += dated.part.bytes;
  }
  std::stable_sort(parts.begin(), parts.end(), [](const Start& a, const Start& b) { return a.at_us < b.at_us; });
  table.links.resize(problem_.links());
  for (const Start& dated : parts) table.links[dated.link].push_back(dated.part);
  return std::ranges::all_of(table.links, put_older_first);
}

std::optional<Timetable> MixedBuilder::chosen_cycle() {
  const std::uint32_t begin = cycle_ * ratio_.steps, first = cycle_ * ratio_.generations;
  Timetable table;
  model::Plan& plan = table.plan;
  plan.period_steps = ratio_.steps;
  plan.generations.clear();
  for (std::uint32_t s = 0; s < ratio_.steps; ++s) plan.generations.push_back({s, s, s + 1});
  for (std::size_t b = 0; b < problem_.buckets(); ++b) {
    if (!stale_[b]) continue;
    model::UpdateCycle own{ratio_.steps, {}};
    for (std::uint32_t g = first; g < first + ratio_.generations; ++g)
      own.generations.push_back({first_step(g) - begin, first_step(g + 1) - 1 - begin, dates_.of(b)[g] - begin});
    const bool too_stale = std::ranges::any_of(
        own.generations, [&](const auto& g) { return g.staleness() > limits_.max_staleness_steps; });
    if (too_stale || !model::check_cycle(own) || model::slots_needed(own) > limits_.max_generations)
      return std::nullopt;
    plan.own_generations.emplace(static_cast<model::BucketIndex>(b), std::move(own.generations));
  }
  if (!list_parts(table)) return std::nullopt;
  return table;
}

std::optional<Timetable> MixedBuilder::build() {
  const std::uint32_t longest = (cycle_ + 2) * ratio_.steps + limits_.max_staleness_steps + 2;
  while (!complete()) {
    if (runner_.steps() > longest) return std::nullopt;
    run_step();
  }
  return chosen_cycle();
}

}  // namespace

std::optional<Timetable> build_uniform(const Problem& problem, const PlanLimits& limits, UpdateRatio ratio,
                                       double part_us) {
  auto table = UniformBuilder(problem, limits, ratio, part_us).build();
  if (table) table->part_us = part_us;
  return table;
}

std::optional<Timetable> build_mixed(const Problem& problem, const PlanLimits& limits, const std::vector<bool>& stale,
                                     UpdateRatio ratio, double part_us) {
  auto table = MixedBuilder(problem, limits, stale, ratio, part_us).build();
  if (table) table->part_us = part_us;
  return table;
}

}  // namespace deft::plan
