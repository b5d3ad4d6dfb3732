#include "core/replay/time_shares.h"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "core/replay/launches.h"
#include "core/replay/quantiles.h"
#include "core/replay/worker_steps.h"

namespace deft::replay {
namespace {

using trace::TransferStage;

constexpr int kMostTransfers = 10'000;  // on one path

// The same launch on all nodes.
struct JobLaunch {
  NodeLaunch leader;
  TimeUs link_begin_us = 0;                    // on the node that was last to give it to the link
  TimeUs sum_begin_us = 0;                     // there: the first stage of the transfer
  TimeUs order_us = 0;                         // when the leader decided; 0: not known
  TimeUs ready_us = 0;                         // the last node's gradients; 0: not known
  std::size_t last_node = 0;                   // whose they are: its place in the job
  std::map<std::size_t, TimeUs> ends_us = {};  // by node: nodes end at different times

  [[nodiscard]] TimeUs end_us() const { return leader.end_us(); }
};

std::optional<NodeLaunch::Span> link_span(const NodeLaunch& launch) {
  const auto at =
      std::ranges::find(launch.spans, static_cast<std::uint16_t>(TransferStage::kLink), &NodeLaunch::Span::stage);
  return at == launch.spans.end() ? std::nullopt : std::optional(*at);
}

void join(const NodeLaunch& launch, std::size_t node, JobLaunch& all) {
  all.ends_us[node] = launch.end_us();
  if (const auto span = link_span(launch); span && span->begin_us > all.link_begin_us) {
    all.link_begin_us = span->begin_us;
    all.sum_begin_us = launch.begin_us();
  }
  if (!launch.ready_us || *launch.ready_us <= all.ready_us) return;
  all.last_node = node;
  all.ready_us = *launch.ready_us;
}

// The leader's transfers that went over a link, by their end.
std::vector<JobLaunch> joined_launches(const JobTrace& job) {
  std::map<std::uint64_t, JobLaunch> launches;
  for (auto& launch : launches_of(job.leader()->trace)) {
    if (launch.spans.empty() || !link_span(launch)) continue;
    JobLaunch& all = launches[launch.number];
    join(launch, 0, all);
    if (launch.order) all.order_us = launch.ordered_us;
    all.leader = std::move(launch);
  }
  for (std::size_t node = 1; node < job.nodes.size(); ++node)
    for (const auto& launch : launches_of(job.nodes[node].trace))
      if (const auto at = launches.find(launch.number); at != launches.end() && !launch.spans.empty())
        join(launch, node, at->second);
  std::vector<JobLaunch> sorted;
  for (auto& [number, launch] : launches) sorted.push_back(std::move(launch));
  std::ranges::stable_sort(sorted, {}, &JobLaunch::end_us);
  return sorted;
}

// When the waits of each node's workers were over, in order.
std::vector<std::vector<TimeUs>> ends_of_waits(const JobTrace& job) {
  constexpr double kLeastWaitUs = 100;
  std::vector<std::vector<TimeUs>> nodes;
  for (const auto& node : job.nodes) {
    auto& ends_us = nodes.emplace_back();
    const auto* const group = largest_group(node.trace);
    if (group == nullptr) continue;
    for (const std::uint32_t worker : recorded_workers(node.trace))
      for (const WorkerStep& step : steps_of(node.trace, *group, worker)) {
        if (step.waited_in_forward_us >= kLeastWaitUs) ends_us.push_back(step.backward_began_us);
        if (step.waited_us - step.waited_in_forward_us >= kLeastWaitUs) ends_us.push_back(step.ended_us);
      }
    std::ranges::sort(ends_us);
  }
  return nodes;
}

// What walks go through.
struct Ground {
  explicit Ground(const JobTrace& job)
      : launches(joined_launches(job)), waits_us(ends_of_waits(job)), ends_us(job.nodes.size()) {
    for (const JobLaunch& launch : launches)
      for (const auto& [node, end_us] : launch.ends_us) ends_us[node].push_back(end_us);
    for (auto& node : ends_us) std::ranges::sort(node);
  }

  // Since when a node that was busy at `at_us` has worked without a wait: since the end of the transfer for which it had waited. 0: unknown.
  [[nodiscard]] TimeUs busy_since(std::size_t node, TimeUs at_us) const {
    const auto last_until = [](const std::vector<TimeUs>& times, TimeUs until_us) {
      const auto after = std::ranges::upper_bound(times, until_us);
      return after == times.begin() ? 0 : *std::prev(after);
    };
    return last_until(ends_us[node], last_until(waits_us[node], at_us));
  }

  std::vector<JobLaunch> launches;
  std::vector<std::vector<TimeUs>> waits_us;  // by node: when they were over
  std::vector<std::vector<TimeUs>> ends_us;   // by node: of transfers, in order
};

// Walks one wait back.
class Walk {
 public:
  Walk(const Ground& ground, TimeShares& sum, std::vector<PathPiece>* path)
      : ground_(ground), launches_(ground.launches), sum_(sum), path_(path) {}

  // A wait of `wait_us` that was over at `until_us`.
  void explain(TimeUs until_us, double wait_us);

 private:
  // Goes back to `to_us`, and books the time.
  void back(TimeUs to_us, double TimeShares::*share) {
    book(std::clamp(static_cast<double>(at_us_ - to_us), 0.0, left_us_), share);
    at_us_ = std::min(at_us_, to_us);
  }
  // All that is left of the wait.
  void rest(double TimeShares::*share) { book(left_us_, share); }
  void book(double us, double TimeShares::*share) {
    sum_.*share += us;
    left_us_ -= us;
    if (path_ != nullptr && us > 0) path_->push_back({at_us_ - static_cast<TimeUs>(us), at_us_, share, launch_});
  }
  [[nodiscard]] bool done() const { return left_us_ <= 0; }
  void through_end(const NodeLaunch& launch);
  [[nodiscard]] std::optional<std::size_t> before(std::size_t launch) const;
  void through_lateness(const JobLaunch& launch);
  bool through_beginning(const JobLaunch& launch);

  const Ground& ground_;
  const std::vector<JobLaunch>& launches_;
  TimeShares& sum_;
  std::vector<PathPiece>* path_;
  std::uint64_t launch_ = 0;  // where the path is
  TimeUs at_us_ = 0;
  double left_us_ = 0;
};

// The stages behind the link.
void Walk::through_end(const NodeLaunch& launch) {
  for (auto span = launch.spans.rbegin(); span != launch.spans.rend(); ++span) {
    const auto stage = static_cast<TransferStage>(span->stage);
    back(span->end_us, &TimeShares::daemon_us);
    if (stage == TransferStage::kLink) return;
    back(span->begin_us, stage == TransferStage::kDecode ? &TimeShares::codec_us : &TimeShares::daemon_us);
  }
}

// The transfer that the link served before this one, if this one waited for it: all nodes had its gradients.
std::optional<std::size_t> Walk::before(std::size_t launch) const {
  const JobLaunch& one = launches_[launch];
  const TimeUs could_begin_us = one.ready_us > 0 ? std::min(one.ready_us, one.link_begin_us) : one.link_begin_us;
  for (std::size_t i = launch; i-- > 0;) {
    if (launches_[i].leader.link != one.leader.link) continue;
    if (link_span(launches_[i].leader)->end_us > could_begin_us) return i;
    return std::nullopt;
  }
  return std::nullopt;
}

// Another node had not finished its backward: it computes longer, or began later because a transfer had ended later there.
void Walk::through_lateness(const JobLaunch& launch) {
  const TimeUs wait_began_us = at_us_ - static_cast<TimeUs>(left_us_);
  const TimeUs there_us = ground_.busy_since(launch.last_node, launch.ready_us);
  const TimeUs here_us = ground_.busy_since(0, wait_began_us);
  if (there_us > here_us && here_us > 0)
    back(std::min(at_us_, wait_began_us + there_us - here_us), &TimeShares::slow_worker_us);
  else
    rest(&TimeShares::slow_worker_us);
  rest(&TimeShares::communication_us);
}

// From the link's begin to what the transfer waited for. False: the path has ended.
bool Walk::through_beginning(const JobLaunch& launch) {
  const auto encode = std::ranges::find(launch.leader.spans, static_cast<std::uint16_t>(TransferStage::kEncode),
                                        &NodeLaunch::Span::stage);
  back(launch.link_begin_us, &TimeShares::communication_us);
  if (encode != launch.leader.spans.end())
    back(launch.link_begin_us - (encode->end_us - encode->begin_us), &TimeShares::codec_us);
  back(launch.sum_begin_us, &TimeShares::daemon_us);
  if (launch.ready_us == 0) return false;
  back(std::max(launch.ready_us, launch.order_us), &TimeShares::daemon_us);
  back(launch.ready_us, &TimeShares::queueing_us);
  // Before that this worker had finished its backward.
  if (launch.last_node == 0)
    rest(&TimeShares::daemon_us);
  else
    through_lateness(launch);
  return true;
}

void Walk::explain(TimeUs until_us, double wait_us) {
  const auto after = std::ranges::upper_bound(launches_, until_us, {}, &JobLaunch::end_us);
  if (after == launches_.begin()) return;
  auto at = static_cast<std::size_t>(after - launches_.begin()) - 1;
  at_us_ = launches_[at].end_us(), left_us_ = wait_us, launch_ = launches_[at].leader.number;
  through_end(launches_[at].leader);
  for (int transfers = 0; !done() && transfers < kMostTransfers; ++transfers) {
    const auto previous = before(at);
    if (!previous) {
      if (!through_beginning(launches_[at])) break;
      return;
    }
    // Whatever comes last of this: the previous transfer, the begin of this one, the leader's order.
    const TimeUs free_us = link_span(launches_[*previous].leader)->end_us;
    back(std::max(free_us, launches_[at].link_begin_us), &TimeShares::communication_us);
    back(std::max(free_us, launches_[at].order_us), &TimeShares::daemon_us);
    back(free_us, &TimeShares::queueing_us);
    at = *previous;
    launch_ = launches_[at].leader.number;
  }
  rest(&TimeShares::communication_us);
}

double fastest_compute_us(const JobTrace& job) {
  std::vector<double> fastest;
  for (const auto& node : job.nodes) {
    const auto* const group = largest_group(node.trace);
    if (group == nullptr) continue;
    for (const std::uint32_t worker : recorded_workers(node.trace)) {
      std::vector<double> compute_us;
      for (const auto& step : steps_of(node.trace, *group, worker)) compute_us.push_back(step.compute_us());
      if (!compute_us.empty()) fastest.push_back(median(compute_us));
    }
  }
  return fastest.empty() ? 0 : std::ranges::min(fastest);
}

}  // namespace

TimeShares time_shares(const JobTrace& job, std::vector<PathPiece>* path) {
  TimeShares sum;
  const auto* const group = job.leader() == nullptr ? nullptr : largest_group(job.leader()->trace);
  if (group == nullptr) return sum;
  const auto steps = steps_of(job.leader()->trace, *group, 0);
  if (steps.empty()) return sum;
  const double fastest_us = fastest_compute_us(job);
  const Ground ground(job);
  for (const WorkerStep& step : steps) {
    if (path != nullptr)
      path->push_back({step.ended_us - static_cast<TimeUs>(step.whole_us), step.ended_us, &TimeShares::compute_us, 0});
    sum.compute_us += std::min(fastest_us, step.compute_us());
    sum.slow_worker_us += std::max(0.0, step.compute_us() - fastest_us);
    const double explained_us = sum.step_us();
    Walk walk(ground, sum, path);
    walk.explain(step.backward_began_us, step.waited_in_forward_us);
    walk.explain(step.ended_us, step.waited_us - step.waited_in_forward_us);
    // A wait that no transfer explains is one for the daemon.
    sum.daemon_us += std::max(0.0, step.waited_us - (sum.step_us() - explained_us));
  }
  sum.steps = steps.size();
  const auto count = static_cast<double>(steps.size());
  for (double TimeShares::*share : {&TimeShares::compute_us, &TimeShares::slow_worker_us, &TimeShares::communication_us,
                                    &TimeShares::queueing_us, &TimeShares::codec_us, &TimeShares::daemon_us})
    sum.*share /= count;
  return sum;
}

}  // namespace deft::replay
