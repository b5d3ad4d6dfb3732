#include "core/sim/simulation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "core/sched/link_board.h"
#include "core/sim/event_queue.h"
#include "core/sim/forward_gate.h"
#include "core/sim/launch_buckets.h"
#include "core/sim/link_channels.h"
#include "core/sim/node_compute.h"
#include "core/sim/steady_state.h"
#include "core/sim/timeline_recorder.h"

namespace deft::sim {
namespace {

using sched::Launch;
using sched::Stage;
using sched::Update;

constexpr std::uint64_t kMaxSteps = 10'000'000;

Result<void> check(const Options& options, std::size_t links) {
  const auto finite_from = [](double value, double minimum) { return std::isfinite(value) && value >= minimum; };
  if (options.steps == 0 || options.steps > kMaxSteps)
    return fail(ErrorKind::kInvalid, "steps is " + std::to_string(options.steps), "give 1 to 10000000");
  if (options.warmup_steps >= options.steps)
    return fail(ErrorKind::kInvalid, "the warm-up of " + std::to_string(options.warmup_steps) +
                                         " steps leaves nothing of " + std::to_string(options.steps) + " to measure");
  if (!finite_from(options.contention, 0)) return fail(ErrorKind::kInvalid, "contention must be 0 or more");
  for (const model::LinkIndex link : options.priority_links)
    if (link >= links)
      return fail(ErrorKind::kInvalid, "there is no link " + std::to_string(link) + " for a priority channel");
  std::set<model::LinkIndex> lost;
  for (const auto& loss : options.losses) lost.insert(loss.link);
  if (!lost.empty() && (*lost.rbegin() >= links || lost.size() == links))
    return fail(ErrorKind::kInvalid, "the links that are lost do not exist, or none is left");
  const auto& believed = options.believed_links;
  if (!believed.empty() && (believed.size() != links || !std::ranges::all_of(believed, sched::is_sane)))
    return fail(ErrorKind::kInvalid, "what is believed of the links is no sane cost of each");
  if (options.nodes.empty()) return fail(ErrorKind::kInvalid, "there are no nodes");
  for (const NodeSpeed& node : options.nodes) {
    if (!finite_from(node.slowdown, 0.001) || !finite_from(node.jitter, 0))
      return fail(ErrorKind::kInvalid, "a node's slowdown must be at least 0.001 and its jitter 0 or more");
    if (!std::ranges::all_of(node.factors, [&](double factor) { return finite_from(factor, 0.001); }))
      return fail(ErrorKind::kInvalid, "the factors of a node's steps must be at least 0.001");
  }
  return {};
}

// The leader, and one of each sort of the others: exact nodes of the same speed do the same at the same time.
std::vector<NodeSpeed> distinct_nodes(const std::vector<NodeSpeed>& nodes) {
  std::vector<NodeSpeed> distinct{nodes.front()};
  std::map<double, bool> seen;
  const auto varies = [](const NodeSpeed& node) { return node.jitter > 0 || !node.factors.empty(); };
  if (!varies(nodes.front())) seen[nodes.front().slowdown] = true;
  for (std::size_t i = 1; i < nodes.size(); ++i)
    if (varies(nodes[i]) || !std::exchange(seen[nodes[i].slowdown], true)) distinct.push_back(nodes[i]);
  return distinct;
}

std::vector<std::uint64_t> scheduler_bucket_bytes(const model::Profile& profile) {
  std::vector<std::uint64_t> bytes;
  for (auto it = profile.buckets.rbegin(); it != profile.buckets.rend(); ++it) bytes.push_back(it->bytes);
  return bytes;
}

model::Profile with_costs(model::Profile profile, const std::vector<model::LinkModel>& costs) {
  for (std::size_t link = 0; link < costs.size(); ++link) {
    profile.links[link].latency_us = costs[link].latency_us;
    profile.links[link].bytes_per_us = costs[link].bytes_per_us;
  }
  return profile;
}

constexpr std::uint64_t kEventsALook =
    4096;  // between two looks whether the simulation is stopped: a millisecond or two

// Records the updates of a bucket of the profile.
struct RecordApplied {
  TimelineRecorder& recorder;
  std::uint32_t bucket;
  void operator()(const Update& update, double complete_us) const { recorder.applied(bucket, update, complete_us); }
};

class Simulation {
 public:
  Simulation(sched::Scheduler& scheduler, const model::Profile& profile, const Options& options)
      : scheduler_(scheduler),
        profile_(profile),
        options_(options),
        links_(profile, options.contention, options.priority_links, events_),
        gate_(scheduler_bucket_bytes(profile)),
        steady_(options.steps),
        recorder_(profile, options.record) {
    const auto nodes = distinct_nodes(options.nodes);
    for (std::size_t i = 0; i < nodes.size(); ++i) nodes_.emplace_back(profile, nodes[i], options.seed + i);
  }

  Result<Outcome> run() {
    for (model::LinkIndex link = 0; link < options_.believed_links.size(); ++link)
      scheduler_.link_measured(link, options_.believed_links[link]);
    stage_began(0);
    for (std::uint32_t node = 0; node < nodes_.size(); ++node) try_start(node);
    for (std::uint64_t handled = 0; !events_.empty() && !error_;) {
      const QueuedEvent event = events_.take();
      now_us_ = event.at_us;
      event.kind == QueuedEvent::Kind::kComputeDone ? compute_done(event.of) : send_done(event);
      if (events_.added() > options_.max_events) keep(too_many_events());
      if (++handled % kEventsALook == 0 && options_.is_stopped && options_.is_stopped())
        keep(fail(ErrorKind::kUnavailable, "the simulation was stopped"));
    }
    if (!error_) check_finished();
    if (error_) return tl::unexpected(*error_);
    for (std::uint32_t bucket = 0; bucket < profile_.buckets.size(); ++bucket)
      gate_.book().apply_rest(mirrored(bucket), RecordApplied{recorder_, bucket});
    Outcome outcome;
    steady_.measure(options_.warmup_steps, profile_.buckets.size(), outcome);
    outcome.events = events_.added();
    outcome.forward_began_us = recorder_.forward_began_us();
    outcome.pieces = recorder_.pieces();
    outcome.timeline = recorder_.take();
    return outcome;
  }

 private:
  static constexpr std::uint32_t kLeader = 0;

  // The profile's and the nodes' number of the scheduler's bucket, and the other way round.
  [[nodiscard]] std::uint32_t mirrored(std::uint32_t bucket) const { return sim::mirrored(profile_, bucket); }
  [[nodiscard]] TimeUs clock() const { return std::llround(now_us_); }

  [[nodiscard]] bool may_start(const QueuedLaunch& queued) const {
    return for_each_bucket(profile_, queued.launch, [&](const model::BucketPiece& piece) {
      return std::ranges::all_of(
          nodes_, [&](const NodeCompute& node) { return node.gradients(piece.bucket) >= queued.needs_gradients; });
    });
  }

  void start_links() {
    links_.start_ready(now_us_, [this](const QueuedLaunch& queued) { return may_start(queued); });
  }

  [[nodiscard]] Result<void> too_many_events() const {
    return fail(ErrorKind::kExhausted,
                "more than " + std::to_string(options_.max_events) + " events by step " +
                    std::to_string(nodes_[kLeader].step()),
                "use larger parts or fewer steps");
  }

  void keep(const Result<void>& result) {
    if (!result && !error_) error_ = result.error().in("simulate");
  }

  // Takes what the scheduler has decided.
  void pump() {
    for (const Update& update : scheduler_.take_updates()) {
      keep(gate_.decided(update));
      steady_.decided(update);
    }
    bool any = false;
    for (const Launch& launch : scheduler_.take_launches(clock())) {
      links_.push({launch, nodes_[kLeader].gradients(mirrored(launch.bucket))});
      any = true;
    }
    if (any) start_links();
  }

  void stage_began(std::uint32_t node) {
    if (node != kLeader) return;
    const NodeCompute& compute = nodes_[node];
    if (compute.stage() == Stage::kForward)
      steady_.step_began(compute.step(), now_us_, compute.computed_us(),
                         {links_.sent_bytes(), links_.wire_bytes(), links_.launches()});
    if (compute.step() == options_.steps) return;
    const double busy_us = compute.computed_us() - std::exchange(leader_.computed_us, compute.computed_us());
    const double elapsed_us = now_us_ - std::exchange(leader_.stage_began_us, now_us_);
    const TimeUs waited_us = std::llround(std::max(0.0, elapsed_us - busy_us));
    if (compute.stage() == Stage::kForward) remove_links(compute.step());
    if (compute.stage() == Stage::kForward && scheduler_.wants_profile(compute.step())) tell_profile(compute.step());
    scheduler_.stage_began(compute.stage(), compute.step(), clock(), waited_us);
    pump();
    for (const auto other : gate_.take_waiting_for_leader()) try_start(other);
  }

  void tell_profile(std::uint64_t step) {
    const auto& believed = options_.believed_links;
    if (believed.empty()) return scheduler_.profile_measured(profile_, step, clock());
    scheduler_.profile_measured(with_costs(profile_, believed), step, clock());
  }

  void remove_links(std::uint64_t step) {
    for (const auto& loss : options_.losses)
      if (loss.step == step) scheduler_.link_lost(loss.link);
  }

  void try_start(std::uint32_t node) {
    NodeCompute& compute = nodes_[node];
    if (compute.is_running() || compute.step() == options_.steps) return;
    if (compute.stage() == Stage::kForward) {
      const std::uint32_t bucket = compute.bucket();
      if (!may_forward(node, bucket, compute.step())) return;
      if (node == kLeader) gate_.book().apply(mirrored(bucket), compute.step(), RecordApplied{recorder_, bucket});
    }
    events_.add(compute.start(now_us_), QueuedEvent::Kind::kComputeDone, node);
  }

  // Workers that do not overlap forward wait for all buckets before the first one.
  bool may_forward(std::uint32_t node, std::uint32_t bucket, std::uint64_t step) {
    const bool waits_for_all = bucket == 0 && !options_.overlaps_forward;
    const auto last = waits_for_all ? static_cast<std::uint32_t>(profile_.buckets.size()) : bucket + 1;
    for (std::uint32_t needed = bucket; needed < last; ++needed)
      if (!gate_.may_begin(node, mirrored(needed), step, nodes_[kLeader].step())) return false;
    return true;
  }

  void compute_done(std::uint32_t node) {
    NodeCompute& compute = nodes_[node];
    const auto [stage, step, bucket] = std::tuple(compute.stage(), compute.step(), compute.bucket());
    if (node == kLeader) recorder_.computed({stage, step, bucket, compute.started_us(), now_us_});
    compute.finish();
    if (stage == Stage::kBackward) {
      if (node == kLeader) {
        scheduler_.bucket_ready(mirrored(bucket), step, clock());
        pump();
      } else {
        start_links();
      }
    }
    if (compute.stage() != stage) stage_began(node);
    try_start(node);
  }

  void send_done(const QueuedEvent& event) {
    const double started_us = links_.started_us(event.of);
    const auto launch = links_.finish(event);
    if (!launch) return;
    recorder_.sent(*launch, started_us, now_us_);
    std::vector<std::uint32_t> complete;
    for_each_bucket(profile_, *launch, [&](const model::BucketPiece& piece) {
      const auto whole = gate_.book().sent(mirrored(piece.bucket), *launch, piece.bytes, now_us_);
      if (whole && *whole) complete.push_back(piece.bucket);
      if (!whole) error_ = whole.error().in("simulate");
      return whole.has_value();
    });
    if (error_) return;
    scheduler_.part_finished(*launch, clock());
    pump();
    start_links();
    for (const auto bucket : complete)
      for (const auto node : gate_.take_waiting(mirrored(bucket))) try_start(node);
  }

  void check_finished() {
    for (const NodeCompute& compute : nodes_) {
      if (compute.step() == options_.steps) continue;
      error_ = Error{ErrorKind::kInternal,
                     "step " + std::to_string(compute.step()) + " stalls: its forward waits for " +
                         gate_.book().describe_wait(mirrored(compute.bucket()), compute.step()),
                     {},
                     "simulate"};
      return;
    }
  }

  sched::Scheduler& scheduler_;
  const model::Profile& profile_;
  const Options& options_;
  EventQueue events_;
  LinkChannels links_;
  ForwardGate gate_;
  SteadyState steady_;
  TimelineRecorder recorder_;
  std::vector<NodeCompute> nodes_;
  double now_us_ = 0;
  struct {
    double stage_began_us = 0;
    double computed_us = 0;  // by then
  } leader_;
  std::optional<Error> error_;
};

}  // namespace

Result<Outcome> simulate(sched::Scheduler& scheduler, const model::Profile& profile, const Options& options) {
  if (auto ok = check(options, profile.links.size()); !ok) return tl::unexpected(ok.error());
  if (auto ok = model::check_profile(profile); !ok) return tl::unexpected(ok.error());
  return Simulation(scheduler, profile, options).run();
}

sched::Setup setup_for(const model::Profile& profile, std::string_view policy) {
  sched::Setup setup;
  setup.policy = policy;
  std::uint64_t offset = 0;
  const auto count = static_cast<std::uint32_t>(profile.buckets.size());
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto& bucket = profile.buckets[count - 1 - i];
    const auto dtype = bucket.element_bytes == 2 ? model::DType::kFloat16 : model::DType::kInt8;
    setup.buckets.push_back({bucket.name, offset, bucket.bytes, dtype, count - 1 - i, i, 1,
                             bucket.coded_bytes.value_or(bucket.bytes), bucket.joined});
    offset += bucket.bytes;
  }
  for (std::size_t link = 0; link < profile.links.size(); ++link) setup.links.push_back(profile.link_model(link));
  setup.codecs = profile.codecs;
  return setup;
}

}  // namespace deft::sim
