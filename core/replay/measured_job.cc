#include "core/replay/measured_job.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <tuple>

#include "core/model/events.h"

namespace deft::replay {
namespace {

using trace::TraceGroup;
using trace::TraceKind;

constexpr std::size_t kWarmupSteps = 2;  // the first steps allocate memory, and are no usual steps
constexpr double kLeastUs = 0.001;
constexpr double kMostJitter = 0.5;
constexpr double kAlike = 0.01;               // of the determinant: below it a fit of two numbers is one of noise
constexpr double kQuartilesOfNormal = 1.349;  // the distance of the quartiles, in standard deviations

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto at = static_cast<std::ptrdiff_t>(std::lround(share * static_cast<double>(values.size() - 1)));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

// The relative standard deviation of `values`, from their quartiles: a pause among them does not count.
double spread(const std::vector<double>& values) {
  const double middle = median(values);
  return middle > 0 ? (quantile(values, 0.75) - quantile(values, 0.25)) / kQuartilesOfNormal / middle : 0;
}

// One step of a worker. Times are microseconds of the leader's clock.
struct Step {
  double forward_us = 0;  // without waiting
  double rest_us = 0;     // after the last gradient, without waiting
  double whole_us = 0;    // from forward to forward, waiting included
  double waited_us = 0;
  TimeUs backward_began_us = 0;
  std::vector<TimeUs> ready_us;  // [bucket]; 0: not handed in

  [[nodiscard]] double compute_us() const { return whole_us - waited_us; }
  [[nodiscard]] bool complete() const {
    return std::ranges::all_of(ready_us, [](TimeUs us) { return us > 0; });
  }
};

// The group that holds most of the bytes: the others are small models beside it.
const TraceGroup* largest_group(const trace::NodeTrace& trace) {
  const auto bytes = [](const TraceGroup& group) {
    return std::accumulate(group.buckets.begin(), group.buckets.end(), std::uint64_t{0},
                           [](std::uint64_t sum, const TraceGroup::Bucket& bucket) { return sum + bucket.bytes; });
  };
  const auto largest = std::ranges::max_element(trace.groups, {}, bytes);
  return largest == trace.groups.end() || bytes(*largest) == 0 ? nullptr : &*largest;
}

// The whole steps of one worker, without the first ones.
class StepReader {
 public:
  StepReader(const trace::NodeTrace& trace, const TraceGroup& group, std::uint32_t worker);

  [[nodiscard]] std::vector<Step> steps() const {
    if (steps_.size() <= kWarmupSteps) return {};
    return {steps_.begin() + kWarmupSteps, steps_.end()};
  }

 private:
  void stage_began(TimeUs at_us, const trace::StageTrace& stage);
  void handed_in(TimeUs at_us, const trace::GradientTrace& gradient);

  const TraceGroup& group_;
  std::vector<std::vector<std::uint32_t>> buckets_of_;  // [tensor]
  std::vector<Step> steps_;
  std::optional<Step> open_;
  TimeUs forward_began_us_ = 0;
};

StepReader::StepReader(const trace::NodeTrace& trace, const TraceGroup& group, std::uint32_t worker)
    : group_(group), buckets_of_(buckets_by_tensor(group)) {
  for (const auto& record : trace.records) {
    if (record.kind() == TraceKind::kStage) {
      const auto stage = record.as<trace::StageTrace>();
      if (stage.worker == worker) stage_began(record.begin_us(), stage);
    } else if (record.kind() == TraceKind::kGradient) {
      const auto gradient = record.as<trace::GradientTrace>();
      if (gradient.worker == worker && gradient.group == group.group) handed_in(record.begin_us(), gradient);
    }
  }
}

void StepReader::stage_began(TimeUs at_us, const trace::StageTrace& stage) {
  const auto waited_us = static_cast<double>(stage.waited_us);
  if (stage.stage == static_cast<std::uint32_t>(model::Stage::kBackward)) {
    if (!open_) return;
    open_->backward_began_us = at_us;
    open_->forward_us = static_cast<double>(at_us - forward_began_us_) - waited_us;
    open_->waited_us += waited_us;
    return;
  }
  if (open_ && open_->backward_began_us > 0) {
    const TimeUs last_us = std::max(open_->backward_began_us, std::ranges::max(open_->ready_us));
    open_->rest_us = static_cast<double>(at_us - last_us) - waited_us;
    open_->whole_us = static_cast<double>(at_us - forward_began_us_);
    open_->waited_us += waited_us;
    if (open_->complete() && open_->compute_us() > 0) steps_.push_back(std::move(*open_));
  }
  open_.emplace().ready_us.resize(group_.buckets.size());
  forward_began_us_ = at_us;
}

void StepReader::handed_in(TimeUs at_us, const trace::GradientTrace& gradient) {
  if (!open_) return;
  const std::size_t end =
      std::min<std::size_t>(buckets_of_.size(), std::size_t{gradient.first_tensor} + gradient.tensors);
  for (std::size_t tensor = gradient.first_tensor; tensor < end; ++tensor)
    for (const auto bucket : buckets_of_[tensor]) open_->ready_us[bucket] = at_us;
}

// Buckets in forward order, which is the reverse of the arena's.
std::vector<model::ProfileBucket> buckets_of(const std::vector<Step>& steps, const TraceGroup& group) {
  const std::size_t count = group.buckets.size();
  std::vector<std::size_t> order(count);  // in which backward makes them
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<std::vector<double>> backward_us(count);
  for (const Step& step : steps) {
    std::ranges::stable_sort(order, {}, [&](std::size_t b) { return step.ready_us[b]; });
    TimeUs before_us = step.backward_began_us;
    for (const auto b : order) {
      backward_us[b].push_back(static_cast<double>(std::max<TimeUs>(0, step.ready_us[b] - before_us)));
      before_us = std::max(before_us, step.ready_us[b]);
    }
  }
  std::vector<double> forward_us, rest_us;
  for (const Step& step : steps) forward_us.push_back(step.forward_us), rest_us.push_back(step.rest_us);
  std::vector<model::ProfileBucket> buckets(count);
  double backward_sum_us = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t b = count - 1 - i;
    buckets[i].name = "b" + std::to_string(b);
    buckets[i].bytes = group.buckets[b].bytes;
    backward_sum_us += buckets[i].backward_us = std::max(kLeastUs, median(backward_us[b]));
  }
  for (auto& bucket : buckets)
    bucket.forward_us = std::max(kLeastUs, median(forward_us)) * bucket.backward_us / backward_sum_us;
  buckets.front().forward_us += std::max(0.0, median(rest_us));
  return buckets;
}

// When the transfer of each launch could begin: when the last node had brought its gradients.
std::map<std::uint64_t, TimeUs> joint_begins(const JobTrace& job) {
  std::map<std::uint64_t, TimeUs> begins;
  for (const auto& node : job.nodes)
    for (const NodeLaunch& launch : launches_of(node.trace))
      if (!launch.spans.empty()) begins[launch.number] = std::max(begins[launch.number], launch.begin_us());
  return begins;
}

// A time in which a link was busy without a pause.
struct BusyPeriod {
  double us = 0, bytes = 0, parts = 0;
};

// Transfers of a link overlap, and end in bursts. So a single one tells little, and a whole period tells all.
std::vector<BusyPeriod> busy_periods(std::vector<NodeLaunch> launches, const std::map<std::uint64_t, TimeUs>& begins) {
  const auto begin_us = [&](const NodeLaunch& launch) { return begins.at(launch.number); };
  std::ranges::sort(launches, {}, begin_us);
  std::vector<BusyPeriod> periods;
  TimeUs began_us = 0, end_us = -1;
  for (const NodeLaunch& launch : launches) {
    if (begin_us(launch) > end_us) {
      periods.emplace_back();
      began_us = begin_us(launch);
    }
    end_us = std::max(end_us, launch.end_us());
    periods.back().us = static_cast<double>(end_us - began_us);
    periods.back().bytes += static_cast<double>(launch.bytes);
    periods.back().parts += 1;
  }
  std::erase_if(periods, [](const BusyPeriod& period) { return period.us <= 0 || period.bytes <= 0; });
  return periods;
}

// us = parts * latency + bytes / throughput, by least squares of the relative deviation. If the periods are too much alike to tell
// both apart, all of the time is the bytes'.
model::ProfileLink link_of(const std::string& name, const std::vector<BusyPeriod>& periods) {
  double pp = 0, pb = 0, bb = 0, p = 0, b = 0;
  std::vector<double> us_per_byte;
  for (const BusyPeriod& period : periods) {
    const double parts = period.parts / period.us, bytes = period.bytes / period.us;
    pp += parts * parts, pb += parts * bytes, bb += bytes * bytes, p += parts, b += bytes;
    us_per_byte.push_back(period.us / period.bytes);
  }
  model::ProfileLink link{.name = name, .relative_time = std::nullopt, .bytes_per_us = 1 / median(us_per_byte)};
  const double determinant = pp * bb - pb * pb;
  if (determinant <= kAlike * pp * bb) return link;
  const double latency_us = (p * bb - b * pb) / determinant, byte_us = (b * pp - p * pb) / determinant;
  if (latency_us > 0 && byte_us > 0) link.latency_us = latency_us, link.bytes_per_us = 1 / byte_us;
  return link;
}

std::vector<model::ProfileLink> links_of(const JobTrace& job, std::vector<std::string>& problems) {
  const trace::NodeTrace& leader = job.leader()->trace;
  const auto begins = joint_begins(job);
  std::map<std::uint16_t, std::vector<NodeLaunch>> by_link;
  for (NodeLaunch& launch : launches_of(leader))
    if (!launch.spans.empty() && launch.order) by_link[launch.link].push_back(std::move(launch));
  std::vector<model::ProfileLink> links;
  for (std::size_t link = 0; link < leader.header.links.size(); ++link) {
    const auto periods = busy_periods(by_link[static_cast<std::uint16_t>(link)], begins);
    if (periods.empty())
      problems.push_back("link " + leader.header.links[link] + " carried nothing, and is left out");
    else
      links.push_back(link_of(leader.header.links[link], periods));
  }
  return links;
}

// A node is as slow as its slowest worker.
sim::NodeSpeed speed_of(const AlignedNode& node, double profile_us, double jitter_of_buckets) {
  sim::NodeSpeed speed{.slowdown = 0, .jitter = 0};
  const TraceGroup* const group = largest_group(node.trace);
  if (group == nullptr) return {};
  for (std::uint32_t worker = 0; worker < node.trace.header.ranks.size(); ++worker) {
    std::vector<double> compute_us;
    for (const Step& step : StepReader(node.trace, *group, worker).steps()) compute_us.push_back(step.compute_us());
    if (compute_us.empty()) continue;
    const double slowdown = median(compute_us) / profile_us;
    if (slowdown > speed.slowdown) speed = {slowdown, std::min(kMostJitter, spread(compute_us) * jitter_of_buckets)};
  }
  if (speed.slowdown <= 0) return {};
  return speed;
}

// The buckets of a step vary independently in the simulator. So each varies more than the step as a whole.
double jitter_factor(const model::Profile& profile) {
  double sum = 0, squares = 0;
  for (const auto& bucket : profile.buckets)
    for (const double us : {bucket.forward_us, bucket.backward_us}) sum += us, squares += us * us;
  return sum / std::sqrt(squares);
}

}  // namespace

Result<MeasuredJob> measure(const JobTrace& job) {
  const AlignedNode* const leader = job.leader();
  if (leader == nullptr) return fail(ErrorKind::kInvalid, "the trace of node 0, which led the job, is missing");
  const TraceGroup* const group = largest_group(leader->trace);
  if (group == nullptr) return fail(ErrorKind::kInvalid, "the trace of node 0 has no gradients");
  const auto steps = StepReader(leader->trace, *group, 0).steps();
  if (steps.size() < kLeastSteps)
    return fail(ErrorKind::kInvalid,
                "the trace has " + std::to_string(steps.size()) +
                    " whole steps after the first ones, and replay needs " + std::to_string(kLeastSteps),
                "trace more steps");
  MeasuredJob measured;
  measured.options = leader->trace.header.options;
  measured.profile.model = leader->trace.header.job;
  measured.profile.source = "trace";
  measured.profile.buckets = buckets_of(steps, *group);
  measured.profile.links = links_of(job, measured.problems);
  if (auto ok = model::check_profile(measured.profile); !ok) return tl::unexpected(ok.error().in("the traced job"));
  for (const Step& step : steps) measured.steps_us.push_back(step.whole_us);
  const double compute_us = measured.profile.compute_us();
  const double factor = jitter_factor(measured.profile);
  for (const auto& node : job.nodes) measured.nodes.push_back(speed_of(node, compute_us, factor));
  return measured;
}

}  // namespace deft::replay
