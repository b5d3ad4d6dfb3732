// DeFT's Algorithm 2 with its greedy multi-knapsack, to compare with.
//
// Two queues: CURRENT, the unsent rest of a generation, and FUTURE, the local sums of the steps after it.
//   forward   case 1: of CURRENT what fits into the forward time
//   backward  case 2: CURRENT does not fit: send what fits; the new gradients join FUTURE; no update
//             case 3: it fits: send it all, then of FUTURE what Algorithm 1 chooses for the time that is left
//             case 4: CURRENT is empty: Algorithm 1 over FUTURE
// Cases 3 and 4 close a generation: what of FUTURE was not chosen becomes CURRENT, and the generation before is applied
// when this backward ends.
//
// Decided where the paper is silent: "fits" means that it can be packed; time that a link still owes to earlier choices
// is no capacity; with one link the knapsack is exact (the greedy rule otherwise, as published); a generation that was
// sent whole in its own backward is applied at once if forward would hardly wait for it; what no knapsack holds for a
// whole step is sent all the same, so that nothing starves.
#include <algorithm>
#include <deque>
#include <optional>
#include <stdexcept>
#include <utility>

#include "core/base/policy_traits.h"
#include "core/papers/knapsack_solver.h"
#include "core/papers/policies.h"
#include "core/plan/problem.h"

namespace deft::papers {
namespace {

using sched::Launch;
using sched::Scheduler;
using sched::Setup;
using sched::Stage;
using sched::Update;

constexpr std::uint64_t kEffort = 20'000;  // of one exact knapsack
constexpr double kGap = 1e-4;

// A generation that is not applied yet.
struct Open {
  std::uint64_t number = 0;
  std::uint64_t first_step = 0;
  std::uint64_t last_step = 0;
};

Packing pack(std::span<const KnapsackItem> items, std::span<const double> capacity_us) {
  return capacity_us.size() == 1 ? exact_knapsack(items, capacity_us, kEffort, kGap)
                                 : greedy_knapsack(items, capacity_us);
}

// The unsent rest of earlier choices on each link. It is estimated: decisions must not depend on the clock.
class LinkDebt {
 public:
  explicit LinkDebt(std::size_t links) : owed_us_(links) {}

  // A stage of this length begins, and the one before is over.
  void begin_stage(double length_us) {
    for (auto& owed : owed_us_) owed = std::max(0.0, owed - stage_us_);
    stage_us_ = length_us;
  }
  // The time that each link has left in a stage of this length.
  [[nodiscard]] std::vector<double> room(double length_us) const {
    std::vector<double> out;
    for (const double owed : owed_us_) out.push_back(length_us - owed);
    return out;
  }
  void add(std::size_t link, double us) { owed_us_[link] += us; }
  [[nodiscard]] const std::vector<double>& owed_us() const { return owed_us_; }
  [[nodiscard]] bool is_none() const {
    return std::ranges::all_of(owed_us_, [](double owed) { return owed == 0; });
  }

 private:
  std::vector<double> owed_us_;  // of each link, as this stage begins
  double stage_us_ = 0;          // the stage that runs
};

// The chosen buckets of each link, in order, until they are ready.
class SendQueues {
 public:
  explicit SendQueues(const plan::Problem& problem)
      : bytes_(problem.bucket_bytes()), ready_(problem.buckets()), queues_(problem.links()) {}

  void push(std::size_t link, model::BucketIndex bucket, const Open& generation) {
    queues_[link].push_back({bucket, generation});
  }
  void bucket_ready(model::BucketIndex bucket, std::uint64_t step) { ready_[bucket] = step + 1; }
  std::vector<Launch> take() {
    std::vector<Launch> launches;
    for (std::size_t link = 0; link < queues_.size(); ++link)
      for (auto& queue = queues_[link]; !queue.empty(); queue.pop_front()) {
        const auto& [bucket, generation] = queue.front();
        if (ready_[bucket] <= generation.last_step) break;
        launches.push_back(
            {launches_++, static_cast<model::LinkIndex>(link), bucket, generation.number, 0, bytes_[bucket]});
      }
    return launches;
  }

 private:
  struct Queued {
    model::BucketIndex bucket;
    Open generation;
  };
  std::vector<std::uint64_t> bytes_;
  std::vector<std::uint64_t> ready_;  // of each bucket, one more than the newest step
  std::vector<std::deque<Queued>> queues_;
  std::uint64_t launches_ = 0;
};

class Algorithm2 {
 public:
  Algorithm2(const model::Profile& profile, double bubble_tolerance)
      : problem_(profile),
        tolerance_us_(bubble_tolerance * problem_.compute_us()),
        queues_(problem_),
        debt_(problem_.links()) {
    for (std::size_t b = 0; b < problem_.buckets(); ++b) {
      KnapsackItem item;
      for (std::size_t l = 0; l < problem_.links(); ++l)
        item.cost_us.push_back(problem_.cost(l, b).us(problem_.bucket(b).bytes));
      item.value = *std::min_element(item.cost_us.begin(), item.cost_us.end());
      items_.push_back(std::move(item));
      backward_us_.push_back(problem_.bucket(b).backward_us);
    }
  }

  void forward();
  void backward(std::uint64_t step);
  void bucket_ready(model::BucketIndex bucket, std::uint64_t step) { queues_.bucket_ready(bucket, step); }
  std::vector<Launch> take_launches() { return queues_.take(); }
  std::vector<Update> take_updates() { return std::exchange(updates_, {}); }

 private:
  void close(std::uint64_t step, std::vector<double> capacity);
  [[nodiscard]] std::vector<KnapsackItem> items(const std::vector<model::BucketIndex>& buckets) const;
  // Sends what `packing` chose of `buckets` and takes it out of them. How many that were.
  std::size_t send(std::vector<model::BucketIndex>& buckets, const Open& generation, const Packing& packing);
  void force_largest();
  [[nodiscard]] bool arrives_in_time(const Packing& packing, std::vector<double> owed) const;
  void apply(const Open& generation, std::uint64_t step);

  plan::Problem problem_;
  double tolerance_us_;
  std::vector<KnapsackItem> items_;
  std::vector<double> backward_us_;
  SendQueues queues_;
  LinkDebt debt_;
  std::vector<model::BucketIndex> current_;
  std::optional<Open> pending_;          // the generation of CURRENT, or one that is sent and not applied
  std::optional<std::uint64_t> future_;  // the first step in FUTURE
  bool stuck_ = false;                   // nothing of CURRENT was chosen in the last stage
  std::uint64_t generations_ = 0;
  std::vector<Update> updates_;
};

std::vector<KnapsackItem> Algorithm2::items(const std::vector<model::BucketIndex>& buckets) const {
  std::vector<KnapsackItem> out;
  for (const auto bucket : buckets) out.push_back(items_[bucket]);
  return out;
}

std::size_t Algorithm2::send(std::vector<model::BucketIndex>& buckets, const Open& generation, const Packing& packing) {
  std::vector<model::BucketIndex> left;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const int link = packing.link[i];
    if (link == Packing::kNone) {
      left.push_back(buckets[i]);
      continue;
    }
    queues_.push(static_cast<std::size_t>(link), buckets[i], generation);
    debt_.add(static_cast<std::size_t>(link), items_[buckets[i]].cost_us[static_cast<std::size_t>(link)]);
  }
  const std::size_t sent = buckets.size() - left.size();
  buckets = std::move(left);
  return sent;
}

// The bucket that no knapsack takes goes to the link on which it ends first.
void Algorithm2::force_largest() {
  const auto largest = std::max_element(current_.begin(), current_.end(),
                                        [&](auto a, auto b) { return items_[a].value < items_[b].value; });
  Packing packing;
  packing.link.assign(current_.size(), Packing::kNone);
  std::size_t best = 0;
  const auto end_us = [&](std::size_t l) { return debt_.owed_us()[l] + items_[*largest].cost_us[l]; };
  for (std::size_t l = 1; l < problem_.links(); ++l)
    if (end_us(l) < end_us(best)) best = l;
  packing.link[static_cast<std::size_t>(largest - current_.begin())] = static_cast<int>(best);
  send(current_, *pending_, packing);
}

void Algorithm2::forward() {
  debt_.begin_stage(problem_.forward_us());
  if (current_.empty()) return;
  stuck_ = send(current_, *pending_, pack(items(current_), debt_.room(problem_.forward_us()))) == 0;
}

void Algorithm2::backward(std::uint64_t step) {
  const double length = problem_.compute_us() - problem_.forward_us();
  debt_.begin_stage(length);
  if (!future_) future_ = step;
  if (!current_.empty()) {
    const auto packing = pack(items(current_), debt_.room(length));
    if (!packing.all()) {  // case 2
      const bool idle = debt_.is_none();
      if (send(current_, *pending_, packing) == 0 && stuck_ && idle) force_largest();
      return;
    }
    send(current_, *pending_, packing);
    close(step, debt_.room(length));  // case 3
  } else {
    close(step, debt_.room(length - backward_us_.front()));  // case 4: the first bucket cannot overlap its own backward
  }
}

// Applies the generation before and begins to send FUTURE, which ends with this step.
void Algorithm2::close(std::uint64_t step, std::vector<double> capacity) {
  if (pending_) apply(*pending_, step + 1);
  const Open generation{generations_++, *std::exchange(future_, std::nullopt), step};
  current_.resize(problem_.buckets());
  for (std::size_t b = 0; b < current_.size(); ++b) current_[b] = static_cast<model::BucketIndex>(b);
  const auto owed = debt_.owed_us();
  const auto packing = recursive_knapsack(items_, backward_us_, std::move(capacity), pack);
  send(current_, generation, packing);
  pending_ = generation;
  if (!current_.empty() || !arrives_in_time(packing, owed)) return;
  apply(generation, step + 1);
  pending_.reset();
}

// True if forward would not wait for the chosen buckets if they were applied at once.
bool Algorithm2::arrives_in_time(const Packing& packing, std::vector<double> owed) const {
  for (std::size_t b = 0; b < problem_.buckets(); ++b) {
    const auto link = static_cast<std::size_t>(packing.link[b]);
    const double ready_us = problem_.bucket(b).ready_us - problem_.forward_us();
    owed[link] = std::max(owed[link], ready_us) + items_[b].cost_us[link];
    const double due_us = problem_.compute_us() - problem_.forward_us() + problem_.bucket(b).forward_start_us;
    if (owed[link] > due_us + tolerance_us_) return false;
  }
  return true;
}

void Algorithm2::apply(const Open& generation, std::uint64_t step) {
  for (model::BucketIndex b = 0; b < problem_.buckets(); ++b)
    updates_.push_back({b, generation.number, generation.first_step, generation.last_step, step});
}

class KnapsackPaper final : public Scheduler {
 public:
  explicit KnapsackPaper(const Setup& setup) : bubble_tolerance_(setup.limits.bubble_tolerance) {}

  [[nodiscard]] bool wants_profile(std::uint64_t) const override { return !algorithm_; }
  void profile_measured(const model::Profile& profile, std::uint64_t, TimeUs) override {
    if (!algorithm_) algorithm_.emplace(profile, bubble_tolerance_);
  }
  void stage_began(Stage stage, std::uint64_t step, TimeUs, TimeUs) override {
    stage == Stage::kForward ? algorithm().forward() : algorithm().backward(step);
  }
  void bucket_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs) override {
    algorithm().bucket_ready(bucket, step);
  }
  void part_finished(const Launch&, TimeUs) override {}
  void link_measured(model::LinkIndex, const model::LinkModel&) override {}
  void link_lost(model::LinkIndex) override {}  // the published algorithm knows no loss
  std::vector<Launch> take_launches(TimeUs) override { return algorithm().take_launches(); }
  std::vector<Update> take_updates() override { return algorithm().take_updates(); }

 private:
  Algorithm2& algorithm() {
    if (!algorithm_) throw std::logic_error("knapsack-paper needs a profile before the first step");
    return *algorithm_;
  }

  double bubble_tolerance_;
  std::optional<Algorithm2> algorithm_;  // once there is a profile
};

}  // namespace

Result<std::unique_ptr<Scheduler>> make_knapsack_paper(const Setup& setup) {
  return std::make_unique<KnapsackPaper>(setup);
}

Result<std::unique_ptr<sched::Scheduler>> make_scheduler(const sched::Setup& setup) {
  const PolicyTraits* const traits = find_policy(setup.policy);
  if (traits == nullptr || traits->id != PolicyId::kKnapsackPaper) return sched::make_scheduler(setup);
  if (auto ok = sched::check_setup(setup); !ok) return tl::unexpected(ok.error());
  return make_knapsack_paper(setup);
}

}  // namespace deft::papers
