// The leader's decisions about tasks: agreeing on groups, ordering launches, starting collectives.
#include <glog/logging.h>

#include <algorithm>

#include "core/ipc/messages.h"
#include "core/link/backends.h"
#include "core/partition/bucketing.h"
#include "core/sched/profile_meter.h"
#include "daemon/leader/leader.h"

namespace deft::daemon {

// FNV-1a over everything that must be the same on all nodes.
std::uint64_t group_hash(const std::vector<model::TensorSpec>& specs, const wire::DeclareAgreed& agreed) {
  std::uint64_t hash = 14695981039346656037ULL;
  const auto mix = [&hash](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
    hash = (hash ^ 0xff) * 1099511628211ULL;
  };
  for (const auto& spec : specs) {
    mix(spec.describe());
    mix(std::to_string(spec.forward_position));
  }
  for (const auto& bucket : agreed.buckets) mix(std::to_string(bucket.offset) + "+" + std::to_string(bucket.bytes));
  return hash;
}

void Leader::on_declare(std::size_t node, wire::Declare declare) {
  const std::uint32_t id = declare.group;
  Group& group = groups_[id];
  if (group.scheduler) return;  // agreed already
  group.declared.resize(members_.size());
  group.declared[node] = std::move(declare);
  for (const auto& declared : group.declared)
    if (!declared) return;
  if (const auto text = difference(group))
    return fail_job(
        {ErrorKind::kMismatch, *text, "all ranks must train the same model, declared in the same order", {}});
  auto agreed = agree(id, group);
  if (!agreed) return fail_job(agreed.error().in("group '" + group.declared.front()->name + "'"));
  broadcast(std::move(*agreed));
}

std::optional<std::string> Leader::difference(const Group& group) const {
  const auto& first = *group.declared.front();
  const auto name = [this](std::size_t node) { return "rank " + std::to_string(members_[node].join.ranks.front()); };
  for (std::size_t node = 1; node < group.declared.size(); ++node) {
    const auto& other = *group.declared[node];
    if (other.slots != first.slots || other.op != first.op || other.name != first.name)
      return "group " + std::to_string(first.group) + " is '" + first.name + "' on " + name(0) + " and '" + other.name +
             "', with other slots or another reduction, on " + name(node);
    const auto text = model::first_difference(first.tensors, name(0), other.tensors, name(node));
    if (!text.empty()) return text;
  }
  return std::nullopt;
}

Result<wire::DeclareAgreed> Leader::agree(std::uint32_t id, Group& group) {
  const auto& specs = group.declared.front()->tensors;
  auto layout = model::lay_out(specs, group.declared.front()->slots);
  if (!layout) return tl::unexpected(layout.error());
  const Config& options = settings_.options;
  const std::uint64_t partition_bytes = options.bytes("partition_bytes");
  auto buckets = partition::cut_buckets(
      specs, *layout, {options.text("bucketing"), settings_.policy, options.bytes("bucket_bytes"), partition_bytes});
  if (!buckets) return tl::unexpected(buckets.error());
  wire::DeclareAgreed agreed{.group = id, .buckets = {}, .hash = 0};
  for (const auto& bucket : *buckets) agreed.buckets.push_back({bucket.offset, bucket.bytes});
  agreed.hash = group_hash(specs, agreed);
  LOG(INFO) << "[" << job_ << "] group '" << group.declared.front()->name << "': " << specs.size() << " tensors, "
            << layout->slot_bytes << " bytes, " << buckets->size() << " buckets, policy " << settings_.policy;
  group.schedules.resize(buckets->size());
  sched::Setup setup;
  setup.policy = settings_.policy;
  setup.buckets = std::move(*buckets);
  for (const auto& link : links_) setup.links.push_back(link.model());
  setup.partition_bytes = partition_bytes;
  setup.credit_bytes = options.bytes("credit_bytes");
  setup.limits = limits_of(*group.declared.front());
  setup.pinned = settings_.plan;
  setup.reports_updates = false;  // workers date them by their own schedule
  setup.guard = group.preserver = make_preserver(setup.limits);
  auto scheduler = sched::make_scheduler(setup);
  if (!scheduler) return tl::unexpected(scheduler.error());
  group.scheduler = sched::measured(std::move(*scheduler), setup);
  for (std::size_t link = 0; link < links_.size(); ++link)
    if (!link_states_[link].lost.empty()) group.scheduler->link_lost(static_cast<model::LinkIndex>(link));
  return agreed;
}

void Leader::bucket_ready(std::uint32_t id, model::BucketIndex bucket, std::uint64_t generation) {
  if (state_ != State::kRunning) return;
  Group& group = groups_.at(id);
  if (bucket == 0) group.newest = std::max(group.newest, generation);
  group.scheduler->bucket_ready(bucket, group.schedules[bucket].at(generation).last_step, MonotonicClock::now());
  pump(id);
}

void Leader::stage_began(sched::Stage stage, std::uint64_t step, TimeUs waited_us) {
  if (state_ != State::kRunning) return;
  for (auto& [id, group] : groups_) {
    if (!group.scheduler) continue;
    group.scheduler->stage_began(stage, step, MonotonicClock::now(), waited_us);
    pump(id);
  }
}

void Leader::pump(std::uint32_t id) {
  order_plan(id);
  tell_fusion(id);
  order_launches(id);
}

void Leader::order_launches(std::uint32_t id) {
  Group& group = groups_.at(id);
  const auto launches = group.scheduler->take_launches(MonotonicClock::now());
  if (launches.empty()) return;
  wire::LaunchOrder order{.first = next_number_, .launches = {}};
  order.launches.reserve(launches.size());
  for (const auto& launch : launches) {
    note_ordered(launch.link, launch.bytes);
    outstanding_[next_number_++] = {id, launch};
    const model::UpdateWindow when = group.schedules[launch.bucket].at(launch.generation);
    order.launches.push_back({launch.link, id, launch.bucket, launch.generation, launch.offset, launch.bytes,
                              when.last_step, when.cycle_step});
  }
  broadcast(order);
}

void Leader::launch_finished(std::uint64_t number, std::optional<TimeUs> link_us, bool overlapped) {
  const auto it = outstanding_.find(number);
  if (it == outstanding_.end() || state_ != State::kRunning) return;
  const Outstanding done = it->second;
  outstanding_.erase(it);
  if (link_us) measure(done.launch.link, done.launch.bytes, *link_us, overlapped);
  groups_.at(done.group).scheduler->part_finished(done.launch, MonotonicClock::now());
  pump(done.group);
}

void Leader::measure(model::LinkIndex link, std::uint64_t bytes, TimeUs link_us, bool overlapped) {
  if (link >= links_.size() || !link_states_[link].lost.empty()) return;
  links_[link].add(bytes, static_cast<double>(link_us), overlapped);
  for (auto& [id, group] : groups_)
    if (group.scheduler) group.scheduler->link_measured(link, links_[link].model());
}

void Leader::on_operation_ready(std::size_t node, wire::OperationReady ready) {
  const std::string name = ready.name;
  const auto [it, added] = operations_.try_emplace(name);
  Operation& operation = it->second;
  if (added) {
    operation.ready.resize(members_.size());
    operation.since_us = MonotonicClock::now();
  }
  operation.ready[node] = std::move(ready);
  for (const auto& r : operation.ready)
    if (!r) return;
  const Operation complete = std::move(operation);
  operations_.erase(it);
  const auto error = check_operation(name, complete);
  if (!error) return start_operation(name, complete);
  broadcast(wire::OperationFailed{name, *error});
}

namespace {

std::string describe(const wire::CollectiveSpec& spec) {
  static constexpr std::string_view kCollectives[] = {"?", "allreduce", "broadcast", "allgather", "barrier"};
  static constexpr std::string_view kOps[] = {"?", "sum", "min", "max"};
  std::string text = std::string(kCollectives[static_cast<std::size_t>(spec.collective)]) + " of " +
                     std::to_string(spec.count) + " " + std::string(model::to_string(spec.dtype));
  if (spec.collective == ipc::Collective::kAllReduce)
    text += " (" + std::string(kOps[static_cast<std::size_t>(spec.op)]) + ")";
  if (spec.collective == ipc::Collective::kBroadcast) text += " from rank " + std::to_string(spec.root);
  return text + " on rank " + std::to_string(spec.rank);
}

}  // namespace

std::optional<Error> Leader::check_operation(const std::string& name, const Operation& operation) const {
  const auto& first = operation.ready.front()->specs.front();
  const bool gathers = first.collective == ipc::Collective::kAllGather;
  std::uint64_t total = 0;
  for (const auto& ready : operation.ready) {
    for (const auto& spec : ready->specs) {
      total += spec.count;
      const bool same = spec.collective == first.collective && spec.dtype == first.dtype && spec.op == first.op &&
                        spec.root == first.root &&
                        (gathers ? spec.capacity == first.capacity : spec.count == first.count);
      if (!same)
        return Error{ErrorKind::kMismatch,
                     "'" + name + "' is an " + describe(first) + " and an " + describe(spec),
                     "all ranks must ask for the same",
                     {}};
    }
  }
  if (gathers && total != first.capacity)
    return Error{ErrorKind::kMismatch,
                 "'" + name + "': the ranks bring " + std::to_string(total) + " elements where " +
                     std::to_string(first.capacity) + " are expected",
                 "give the same counts on all ranks",
                 {}};
  if (first.root >= world_)
    return Error{ErrorKind::kInvalid, "'" + name + "': there is no rank " + std::to_string(first.root), "", {}};
  return std::nullopt;
}

// In turn those that the daemons run and that are not lost, which need no copy to a GPU; where there are none, all.
std::uint32_t Leader::link_for_operation() {
  for (std::size_t tries = 0; tries < links_.size(); ++tries) {
    const std::uint32_t link = next_link_++ % static_cast<std::uint32_t>(links_.size());
    if (!link::runs_in_worker(links_[link].model().name) && link_states_[link].lost.empty()) return link;
  }
  return next_link_++ % static_cast<std::uint32_t>(links_.size());
}

void Leader::start_operation(const std::string& name, const Operation& operation) {
  const std::uint32_t link = link_for_operation();
  const auto& first = operation.ready.front()->specs.front();
  const auto bytes = std::max(first.count, first.capacity) * model::dtype_bytes(first.dtype);
  note_ordered(link, bytes * members_.size());  // a root sends it to every other node
  wire::OperationStart start{.number = next_number_++, .link = link, .name = name, .counts = {}};
  for (const auto& ready : operation.ready)
    for (const auto& spec : ready->specs) start.counts.push_back(spec.count);
  broadcast(std::move(start));
}

void Leader::watch_operations(TimeUs now_us) {
  for (auto& [name, operation] : operations_) {
    for (std::size_t node = 0; node < operation.ready.size(); ++node) {
      if (operation.ready[node]) continue;
      if (members_[node].gone() && now_us - operation.since_us > settings_.timeout_us / 4)
        return fail_job({ErrorKind::kLost,
                         members_[node].describe(node) + " has ended, and '" + name + "' needs it",
                         "all ranks must run the same number of steps and collectives",
                         {}});
      const TimeUs age = now_us - operation.since_us;
      const TimeUs warning = settings_.stall_warning_us();
      if (age > settings_.stall_timeout_us)
        return fail_job({ErrorKind::kTimeout,
                         members_[node].describe(node) + " has not asked for '" + name + "' for " +
                             std::to_string(age / 1'000'000) + " s",
                         "raise DEFT_STALL_TIMEOUT if this is expected",
                         {}});
      const bool due = age / warning != (age - settings_.heartbeat_us()) / warning;
      if (age < warning || !due) continue;
      broadcast(wire::Stalled{members_[node].join.ranks.front(), name, 0, static_cast<std::uint64_t>(age / 1000)});
    }
  }
}

}  // namespace deft::daemon
