#include "core/plan/stale_builder.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "core/model/update_cycle.h"
#include "core/plan/link_time.h"

namespace deft::plan {
namespace {

constexpr std::uint32_t kSettleSteps = 12;  // by then the backlog repeats
constexpr double kRounding = 1e-7;          // of compute: not late but arithmetic

// Where the backlog does not repeat exactly, parts of a bucket may have changed places; the older ones go first. False:
// in the next cycle older ones would still come behind newer ones.
bool put_older_first(std::vector<model::PlanPart>& list) {
  std::map<model::BucketIndex, std::vector<std::size_t>> places;
  for (std::size_t i = 0; i < list.size(); ++i) places[list[i].bucket].push_back(i);
  for (const auto& [bucket, at] : places) {
    std::vector<model::PlanPart> parts;
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

class StaleBuilder {
 public:
  StaleBuilder(const Problem& problem, const Limits& limits, const std::vector<bool>& late, UpdateRatio ratio,
               double part_us)
      : problem_(problem),
        limits_(limits),
        late_(late),
        ratio_(ratio),
        lane_(problem),
        links_(problem, part_us),
        ready_(problem.buckets()),
        arrival_(problem.buckets()),
        dates_(problem.buckets()),
        block_(problem.buckets()),
        block_size_(problem.buckets()),
        cycle_(std::max(2U, (kSettleSteps + ratio.steps - 1) / ratio.steps)) {
    for (std::size_t b = 0; b < block_.size(); ++b) {
      block_[b] = b > 0 && b < limits.joined.size() && limits.joined[b] ? block_[b - 1] : b;
      ++block_size_[block_[b]];
    }
  }

  std::optional<model::Plan> build();

 private:
  struct Arrival {
    std::size_t bucket;
    double us;
  };
  [[nodiscard]] std::uint32_t first_step(std::uint32_t generation) const {
    return static_cast<std::uint32_t>(std::uint64_t{generation} * ratio_.steps / ratio_.generations);
  }
  [[nodiscard]] std::uint32_t last_step(std::uint32_t generation) const { return first_step(generation + 1) - 1; }
  [[nodiscard]] bool complete() const;
  void run_step();
  void gather();
  void send();
  void send_fresh();
  bool fill(std::size_t link, double until_us);
  void send_overdue();
  void sent(const Sending& sending);
  [[nodiscard]] std::uint32_t step_that_sees(std::uint32_t generation, const std::vector<Arrival>& arrivals) const;
  [[nodiscard]] std::uint32_t cycles_back(double start_us) const;
  std::optional<model::Plan> chosen_cycle();
  bool list_parts(model::Plan& plan);

  const Problem& problem_;
  const Limits& limits_;
  const std::vector<bool>& late_;
  UpdateRatio ratio_;
  ComputeTimeline lane_;
  LinkTime links_;
  std::uint32_t step_ = 0;                             // the next one to run
  std::vector<double> began_us_;                       // of each step
  std::vector<double> ready_;                          // of the newest step
  std::vector<double> arrival_;                        // of what the next step's forward must see
  std::map<std::uint32_t, std::vector<Arrival>> due_;  // late buckets by the step that sees them
  std::uint32_t gathered_ = 0;                         // generations of the late buckets
  std::vector<Sending> backlog_;                       // late buckets, the oldest and most urgent first
  std::vector<std::vector<std::uint32_t>> dates_;      // of each late bucket the step that sees each generation
  std::vector<std::size_t> block_;                     // of each bucket: the first of those that have its dates
  std::vector<std::size_t> block_size_;                // of each first one: how many they are
  std::map<std::pair<std::size_t, std::uint32_t>, std::vector<Arrival>> arrived_;  // of a block and generation
  std::uint32_t cycle_;                                                            // the one that becomes the plan
};

// Whether all generations of the chosen cycle have their dates, and the compute that goes on meanwhile has run.
bool StaleBuilder::complete() const {
  const std::size_t wanted = std::size_t{cycle_ + 1} * ratio_.generations;
  for (std::size_t b = 0; b < dates_.size(); ++b)
    if (late_[b] && (dates_[b].size() < wanted || dates_[b][wanted - 1] >= step_)) return false;
  return step_ > (cycle_ + 1) * ratio_.steps;
}

void StaleBuilder::run_step() {
  if (const auto due = due_.find(step_); due != due_.end())
    for (const Arrival& arrival : due->second) arrival_[arrival.bucket] = arrival.us;
  began_us_.push_back(lane_.now_us());
  lane_.run_step(arrival_.data(), ready_.data());
  std::fill(arrival_.begin(), arrival_.end(), 0);
  ++step_;
  gather();
  send_fresh();
  send_overdue();
}

// The late buckets of a generation that ends with this step.
void StaleBuilder::gather() {
  if (first_step(gathered_ + 1) != step_) return;
  for (std::size_t b = problem_.buckets(); b-- > 0;)
    if (late_[b])
      backlog_.push_back({gathered_, static_cast<model::BucketIndex>(b), ready_[b], problem_.bucket(b).bytes});
  ++gathered_;
}

void StaleBuilder::send_fresh() {
  std::vector<Sending> fresh;
  for (std::size_t b = 0; b < problem_.buckets(); ++b)
    if (!late_[b])
      fresh.push_back({step_ - 1, static_cast<model::BucketIndex>(b), ready_[b], problem_.bucket(b).bytes});
  std::vector<std::size_t> urgent;  // a heap: the highest index is the first that forward needs
  std::size_t next = 0;
  while (next < fresh.size() || !urgent.empty()) {
    const std::size_t idle = links_.idle();
    for (; next < fresh.size() && fresh[next].ready_us <= links_.free_us(idle); ++next) {
      urgent.push_back(next);
      std::push_heap(urgent.begin(), urgent.end());
    }
    if (urgent.empty()) {
      if (!fill(idle, fresh[next].ready_us)) links_.wait(idle, fresh[next].ready_us);
      continue;
    }
    Sending& sending = fresh[urgent.front()];
    links_.place(sending, links_.best(idle, sending));
    if (sending.rest > 0) continue;
    arrival_[sending.bucket] = sending.finish_us;
    std::pop_heap(urgent.begin(), urgent.end());
    urgent.pop_back();
  }
}

// A part of what is late, which `link` has sent by `until_us`; false: none fits.
bool StaleBuilder::fill(std::size_t link, double until_us) {
  for (auto sending = backlog_.begin(); sending != backlog_.end(); ++sending) {
    const double room_us = until_us - std::max(links_.free_us(link), sending->ready_us);
    if (room_us < links_.least_us(link, sending->bucket)) continue;
    links_.place(*sending, link, room_us);
    if (sending->rest == 0) {
      sent(*sending);
      backlog_.erase(sending);
    }
    return true;
  }
  return false;
}

// What the next step must see, whatever waits for it.
void StaleBuilder::send_overdue() {
  while (!backlog_.empty() && last_step(backlog_.front().generation) + 1 + limits_.max_staleness_steps <= step_) {
    Sending& sending = backlog_.front();
    while (sending.rest > 0) links_.place(sending, links_.best(links_.idle(), sending));
    sent(sending);
    backlog_.erase(backlog_.begin());
  }
}

// The first step whose forward does not have to wait, as far as the limit allows it.
std::uint32_t StaleBuilder::step_that_sees(std::uint32_t generation, const std::vector<Arrival>& arrivals) const {
  double late_us = 0;
  for (const Arrival& arrival : arrivals)
    late_us = std::max(late_us, arrival.us - lane_.now_us() - problem_.bucket(arrival.bucket).forward_start_us);
  late_us -= (limits_.bubble_tolerance + kRounding) * problem_.compute_us();
  const auto delay = static_cast<std::uint32_t>(std::max(0.0, std::ceil(late_us / problem_.compute_us())));
  const std::uint32_t latest = last_step(generation) + 1 + limits_.max_staleness_steps;
  return std::clamp(step_ + delay, step_, std::max(step_, latest));
}

// Dates a generation once all buckets of its block have been sent.
void StaleBuilder::sent(const Sending& sending) {
  const std::size_t block = block_[sending.bucket];
  auto& arrivals = arrived_[{block, sending.generation}];
  arrivals.push_back({sending.bucket, sending.finish_us});
  if (arrivals.size() < block_size_[block]) return;
  std::uint32_t step = step_that_sees(sending.generation, arrivals);
  if (!dates_[block].empty()) step = std::max(step, dates_[block].back() + 1);
  for (const Arrival& arrival : arrivals) {
    dates_[arrival.bucket].push_back(step);
    due_[step].push_back(arrival);
  }
  arrived_.erase({block, sending.generation});
}

// How many cycles after the chosen one a part starts.
std::uint32_t StaleBuilder::cycles_back(double start_us) const {
  std::uint32_t back = 0;
  while (std::size_t{cycle_ + back + 1} * ratio_.steps < began_us_.size() &&
         began_us_[(cycle_ + back + 1) * ratio_.steps] <= start_us)
    ++back;
  return back;
}

bool StaleBuilder::list_parts(model::Plan& plan) {
  const std::uint32_t steps = ratio_.steps, generations = ratio_.generations;
  struct Dated {
    double at_us;  // in the cycle in which it starts
    double start_us;
    std::size_t link;
    model::PlanPart part;
  };
  std::vector<Dated> parts;
  for (std::size_t l = 0; l < problem_.links(); ++l)
    for (const Placed& placed : links_.placed(l)) {
      const std::uint32_t count = late_[placed.bucket] ? generations : steps;
      if (placed.generation / count != cycle_) continue;
      const std::uint32_t back = cycles_back(placed.start_us);
      parts.push_back({placed.start_us - began_us_[(cycle_ + back) * steps],
                       placed.start_us,
                       l,
                       {placed.bucket, placed.generation % count, 0, placed.bytes, back}});
    }
  std::sort(parts.begin(), parts.end(), [](const Dated& a, const Dated& b) { return a.start_us < b.start_us; });
  std::map<std::pair<model::BucketIndex, std::uint32_t>, std::uint64_t> sent;
  for (Dated& dated : parts) {
    std::uint64_t& offset = sent[{dated.part.bucket, dated.part.generation}];
    dated.part.offset = offset;
    offset += dated.part.bytes;
  }
  std::stable_sort(parts.begin(), parts.end(), [](const Dated& a, const Dated& b) { return a.at_us < b.at_us; });
  plan.links.resize(problem_.links());
  for (const Dated& dated : parts) plan.links[dated.link].push_back(dated.part);
  return std::ranges::all_of(plan.links, put_older_first);
}

std::optional<model::Plan> StaleBuilder::chosen_cycle() {
  const std::uint32_t begin = cycle_ * ratio_.steps, first = cycle_ * ratio_.generations;
  model::Plan plan;
  plan.period_steps = ratio_.steps;
  plan.generations.clear();
  for (std::uint32_t s = 0; s < ratio_.steps; ++s) plan.generations.push_back({s, s, s + 1});
  for (std::size_t b = 0; b < problem_.buckets(); ++b) {
    if (!late_[b]) continue;
    model::UpdateCycle own{ratio_.steps, {}};
    for (std::uint32_t g = first; g < first + ratio_.generations; ++g)
      own.generations.push_back({first_step(g) - begin, first_step(g + 1) - 1 - begin, dates_[b][g] - begin});
    const bool too_late = std::ranges::any_of(
        own.generations, [&](const auto& g) { return g.staleness() > limits_.max_staleness_steps; });
    if (too_late || !model::check_cycle(own) || model::slots_needed(own) > limits_.max_generations) return std::nullopt;
    plan.own_generations.emplace(static_cast<model::BucketIndex>(b), std::move(own.generations));
  }
  if (!list_parts(plan)) return std::nullopt;
  return plan;
}

std::optional<model::Plan> StaleBuilder::build() {
  const std::uint32_t longest = (cycle_ + 2) * ratio_.steps + limits_.max_staleness_steps + 2;
  while (!complete()) {
    if (step_ > longest) return std::nullopt;
    run_step();
  }
  return chosen_cycle();
}

}  // namespace

std::optional<model::Plan> build_stale_cycle(const Problem& problem, const Limits& limits,
                                             const std::vector<bool>& late, UpdateRatio ratio, double part_us) {
  return StaleBuilder(problem, limits, late, ratio, part_us).build();
}

}  // namespace deft::plan
