// Builds timetables in which some buckets are stale, and all others are updated in every step.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "core/model/update_cycle.h"
#include "core/plan/list_scheduler.h"
#include "core/plan/schedule_builder.h"

namespace deft::plan {
namespace {

constexpr std::uint32_t kMixedSteps =
    12;  // a mixed schedule runs for at least so many steps; by then the backlog repeats

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
  const auto delay = static_cast<std::uint32_t>(steps_late(behind_us, problem_, limits_));
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
  model::UpdateCycles& cycles = table.plan.cycles;
  cycles.usual = {ratio_.steps, {}};
  for (std::uint32_t s = 0; s < ratio_.steps; ++s) cycles.usual.generations.push_back({s, s, s + 1});
  for (std::size_t b = 0; b < problem_.buckets(); ++b) {
    if (!stale_[b]) continue;
    model::UpdateCycle own{ratio_.steps, {}};
    for (std::uint32_t g = first; g < first + ratio_.generations; ++g)
      own.generations.push_back({first_step(g) - begin, first_step(g + 1) - 1 - begin, dates_.of(b)[g] - begin});
    const bool too_stale = std::ranges::any_of(
        own.generations, [&](const auto& g) { return g.staleness() > limits_.max_staleness_steps; });
    if (too_stale || !model::check_cycle(own) || model::slots_needed(own) > limits_.max_generations)
      return std::nullopt;
    cycles.own.emplace(static_cast<model::BucketIndex>(b), std::move(own));
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

std::optional<Timetable> build_mixed(const Problem& problem, const PlanLimits& limits, const std::vector<bool>& stale,
                                     UpdateRatio ratio, double part_us) {
  auto table = MixedBuilder(problem, limits, stale, ratio, part_us).build();
  if (table) table->part_us = part_us;
  return table;
}

}  // namespace deft::plan
