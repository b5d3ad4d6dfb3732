// Groups of gradients on a node: agreeing on them, and running the leader's launches.
#include <glog/logging.h>

#include <algorithm>
#include <cmath>

#include "core/base/policy_traits.h"
#include "core/model/update_schedule.h"
#include "core/sched/scheduler.h"
#include "daemon/node/job.h"
#include "daemon/node/plan_records.h"

namespace deft::daemon {
namespace {

constexpr std::size_t kStepsTold = 4;                     // steps of a worker between two messages of what they take
constexpr std::uint64_t kLongestWaitUs = 86'400'000'000;  // what a worker says of itself is not believed beyond this
constexpr std::size_t kStartedAhead = 5;  // transfers given to a driver, so that it never waits for the reactor

}  // namespace

void Job::declare(WorkerPort& session, Declaration declaration) {
  if (state_ != State::kRunning) return;
  const std::size_t index = index_of(session);
  Group& group = groups_[declaration.group];
  group.declared.resize(workers_.size());
  const std::uint32_t id = declaration.group;
  group.declared[index] = std::move(declaration);
  const Declaration* first = nullptr;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (!group.declared[i]) continue;
    if (first == nullptr) {
      first = &*group.declared[i];
      continue;
    }
    const Declaration& other = *group.declared[i];
    const std::string a = "rank " + std::to_string(workers_[0].rank), b = "rank " + std::to_string(workers_[i].rank);
    std::string text = model::first_difference(first->tensors, a, other.tensors, b);
    if (text.empty() && (first->name != other.name || first->slots != other.slots || first->op != other.op))
      text = "group " + std::to_string(id) + " is '" + first->name + "' on " + a + " and '" + other.name +
             "', with other slots or another reduction, on " + b;
    if (!text.empty())
      return fail_job(
          {ErrorKind::kMismatch, text, "all ranks must train the same model, declared in the same order", {}});
  }
  for (const auto& declared : group.declared)
    if (!declared) return;
  auto layout = model::lay_out(first->tensors, first->slots);
  if (!layout) return fail_job(layout.error().in("group '" + first->name + "'"));
  group.gradients = std::make_unique<Gradients>(first->tensors, std::move(*layout), workers_.size());
  send_declaration(id, *first);
}

void Job::send_declaration(std::uint32_t id, const Declaration& declaration) {
  to_leader(wire::Declare{id, declaration.name, declaration.tensors, declaration.slots, declaration.op});
}

Result<std::vector<model::Bucket>> Job::buckets_of(const wire::DeclareAgreed& agreed,
                                                   const Gradients& gradients) const {
  if (group_hash(gradients.specs(), agreed) != agreed.hash)
    return fail(ErrorKind::kMismatch, "the leader's plan has another hash than this node computes",
                "install the same version of Deft on all nodes");
  std::vector<model::Bucket> buckets;
  for (const auto& range : agreed.buckets) {
    model::Bucket bucket;
    bucket.name = "b" + std::to_string(buckets.size());
    bucket.offset = range.offset;
    bucket.bytes = range.bytes;
    for (const auto& region : gradients.layout().regions)
      if (bucket.offset >= region.offset && bucket.offset < region.offset + region.bytes) bucket.dtype = region.dtype;
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

void Job::on_declare_agreed(const wire::DeclareAgreed& agreed) {
  const auto it = groups_.find(agreed.group);
  if (it == groups_.end() || !it->second.gradients || it->second.agreed) return;
  Group& group = it->second;
  auto buckets = buckets_of(agreed, *group.gradients);
  if (!buckets) return fail_job(buckets.error().in("on " + context_.host));
  if (auto ok = group.gradients->set_buckets(std::move(*buckets)); !ok) return fail_job(ok.error());
  group.agreed = true;
  group.arenas.resize(workers_.size());
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    WorkerPort* const session = workers_[i].session;
    if (session == nullptr) continue;
    auto arena = session->grant_arena(agreed.group, group.gradients->layout().total_bytes(),
                                      static_cast<std::uint32_t>(group.gradients->buckets().size()));
    if (!arena) return fail_job(arena.error().in("the arena of " + session->describe() + " on " + context_.host));
    group.arenas[i] = std::move(*arena);
  }
}

void Job::record(WorkerPort& session, const shm::Record& record) {
  if (state_ != State::kRunning) return;
  const std::size_t worker = index_of(session);
  switch (record.kind()) {
    case shm::RecordKind::kReady: return on_ready(worker, session, record.as<shm::ReadyRecord>());
    case shm::RecordKind::kStage: return on_stage(worker, record.as<shm::StageRecord>());
    case shm::RecordKind::kFlush: return on_flush(session, worker, record.as<shm::FlushRecord>());
    case shm::RecordKind::kRan:
      if (auto ok = on_ran(worker, record.as<shm::RanRecord>()); !ok) {
        session.send_error(ok.error(), 0);
        session.close(ok.error().in(session.describe()));
      }
      return;
    default:
      session.send_error({ErrorKind::kViolation, "a record of an unknown kind", "", {}}, 0);
      session.close({ErrorKind::kViolation, session.describe() + " wrote a record of an unknown kind", "", {}});
  }
}

void Job::on_ready(std::size_t worker, WorkerPort& session, const shm::ReadyRecord& handed) {
  const auto it = groups_.find(handed.group);
  const auto ready = it == groups_.end() || !it->second.agreed
                         ? fail(ErrorKind::kViolation, "tensors of an undeclared group were handed in")
                         : it->second.gradients->notify_ready(worker, {handed.first_tensor, handed.tensors},
                                                              handed.generation, {handed.last_step, handed.cycle_step},
                                                              handed.slot, MonotonicClock::now());
  if (!ready) {
    session.send_error(ready.error(), 0);
    session.close(ready.error().in(session.describe()));
    return;
  }
  if (ready->empty()) return;
  if (leader_)
    for (const auto bucket : *ready) leader_->bucket_ready(handed.group, bucket, handed.generation);
  for (std::size_t link = 0; link < links_.size(); ++link) pump(link);
}

void Job::on_stage(std::size_t worker, const shm::StageRecord& began) {
  if (began.stage != 1 && began.stage != 2) return;
  const auto stage = static_cast<sched::Stage>(began.stage);
  const auto waited_us = static_cast<TimeUs>(std::min<std::uint64_t>(began.waited_us, kLongestWaitUs));
  if (leader_ && workers_[worker].rank == 0) leader_->stage_began(stage, began.step, waited_us);
  sched::StepTime& steps = workers_[worker].steps;
  const bool ended = steps.stage_began(stage, began.step, MonotonicClock::now(), waited_us);
  if (ended && worker == 0 && steps.ended() % kStepsTold == 0) tell_step_time();
}

void Job::tell_step_time() {
  double slowest_us = 0;
  for (const Worker& worker : workers_) slowest_us = std::max(slowest_us, worker.steps.usual_us());
  to_leader(wire::StepTime{slowest_us});
}

// Workers end a generation before its plan does. Only the leader must know; nodes compare what their own workers say with
// the leader's launches.
void Job::on_flush(WorkerPort& session, std::size_t worker, const shm::FlushRecord& flush) {
  const auto it = groups_.find(flush.group);
  const auto taken = it == groups_.end() || !it->second.agreed
                         ? fail(ErrorKind::kViolation, "an undeclared group was flushed")
                     : leader_ && workers_[worker].rank == 0 ? leader_->flushed(flush.group, flush.step)
                                                             : Result<void>{};
  if (taken) return;
  session.send_error(taken.error(), 0);
  session.close(taken.error().in(session.describe()));
}

// The leader gets the statistics of this node when all its workers have told those of one step.
void Job::take_statistics(WorkerPort& session, const ipc::Statistics& statistics) {
  const auto it = groups_.find(statistics.group);
  if (state_ != State::kRunning || it == groups_.end() || !it->second.agreed) return;
  auto& told = it->second.statistics;
  told.resize(workers_.size());
  told[index_of(session)] = statistics;
  wire::GradientStatistics sum{
      .group = statistics.group, .step = statistics.step, .ranks = static_cast<std::uint32_t>(told.size())};
  for (const auto& one : told) {
    if (!one || one->step != statistics.step) return;
    sum.local_norms += one->local_norm;
    sum.average_norms += one->average_norm;
    sum.loss += one->loss;
    sum.learning_rate = std::max(sum.learning_rate, one->learning_rate);
    sum.target = std::max(sum.target, one->target);
  }
  sum.merged_as_sums = statistics.merged_as_sums != 0;
  // Finite values may have an infinite sum, which says nothing.
  if (std::isfinite(sum.local_norms) && std::isfinite(sum.average_norms) && std::isfinite(sum.loss)) to_leader(sum);
}

Result<std::vector<shm::Record>> Job::checked_plan(const wire::PlanOrder& order) const {
  const auto it = groups_.find(order.group);
  if (it == groups_.end() || !it->second.agreed)
    return fail(ErrorKind::kViolation, "the leader sent a plan for an unknown group");
  const std::uint32_t slots = it->second.gradients->layout().slots;
  if (const auto needed = model::slots_needed(model::cycles_of(order.plan)); needed > slots)
    return fail(ErrorKind::kViolation, "the leader's plan needs " + std::to_string(needed) +
                                           " slots of the arena, of " + std::to_string(slots));
  return plan_records(order, *it->second.gradients);
}

void Job::on_plan_order(const wire::PlanOrder& order) {
  if (state_ != State::kRunning) return;
  const auto records = checked_plan(order);
  if (!records) return fail_job(records.error().in("on " + context_.host));
  LOG(INFO) << "[" << name_ << "] follows plan " << order.epoch << " of group " << order.group << " from step "
            << order.activation_step << " on";
  for (const auto& record : *records)
    for (auto& worker : workers_)
      if (worker.session != nullptr) worker.session->complete(record);
}

bool Job::take_number(std::uint64_t number) {
  if (number == next_number_) {
    ++next_number_;
    return true;
  }
  fail_job({ErrorKind::kInternal,
            "launch " + std::to_string(number) + " came where " + std::to_string(next_number_) + " was due",
            "",
            {}});
  return false;
}

void Job::on_launch_order(const wire::LaunchOrder& order) {
  if (state_ != State::kRunning) return;
  std::uint64_t number = order.first;
  const TimeUs now = MonotonicClock::now();
  for (const auto& ordered : order.launches) {
    if (!take_number(number)) return;
    const auto it = groups_.find(ordered.group);
    auto ok =
        it == groups_.end() || !it->second.agreed || ordered.link >= links_.size()
            ? fail(ErrorKind::kViolation, "the leader ordered a part of an unknown group or link")
            : it->second.gradients->start(ordered.bucket, ordered.generation, {ordered.last_step, ordered.cycle_step},
                                          ordered.offset, ordered.bytes, now);
    if (!ok) return fail_job(ok.error());
    SubCommTask launch;
    launch.number = number++;
    launch.group = ordered.group;
    launch.bucket = ordered.bucket;
    launch.generation = ordered.generation;
    launch.offset = ordered.offset;
    launch.bytes = ordered.bytes;
    links_[ordered.link].waiting.push_back(std::move(launch));
  }
  for (std::size_t link = 0; link < links_.size(); ++link) pump(link);
}

bool Job::can_start(const SubCommTask& launch) const {
  return launch.is_operation || launch.replay ||
         groups_.at(launch.group).gradients->is_ready({launch.bucket, launch.offset, launch.bytes}, launch.generation);
}

// Work-conserving within the leader's order: the next launch starts as soon as its gradients are here.
void Job::pump(std::size_t index) {
  LinkQueue& link = links_[index];
  if (link.stopping) return;
  const bool losable = can_lose(index);
  while (!link.waiting.empty() && link.running.size() < kStartedAhead && can_start(link.waiting.front())) {
    SubCommTask launch = std::move(link.waiting.front());
    link.waiting.pop_front();
    if (losable && !launch.replay_buffer) launch.replay_buffer = std::make_shared<ReplayBuffer>();
    const std::uint64_t number = launch.number;
    link.driver->start(link.running.emplace(number, std::move(launch)).first->second);
  }
}

bool Job::is_merged(const SubCommTask& launch) const {
  return launch.offset + launch.bytes > groups_.at(launch.group).gradients->buckets()[launch.bucket].bytes;
}

Transfer Job::gradient_transfer(const SubCommTask& launch) const {
  const Group& group = groups_.at(launch.group);
  const Gradients& gradients = *group.gradients;
  const model::Bucket& bucket = gradients.buckets()[launch.bucket];
  const std::uint64_t at =
      gradients.slot_of(launch.generation) * gradients.layout().slot_bytes + bucket.offset + launch.offset;
  Transfer transfer;
  transfer.dtype = bucket.dtype;
  transfer.op = group.declared.front()->op;
  if (find_policy(settings_.policy)->urgent_first) transfer.priority = bucket.forward_position;
  transfer.count = launch.bytes / model::dtype_bytes(bucket.dtype);
  for (const auto& arena : group.arenas) {
    transfer.buffers.push_back(arena->data() + at);
    transfer.keep.push_back(arena);
  }
  return transfer;
}

void Job::on_done(std::size_t index, TransferDone done) {
  if (state_ != State::kRunning) return;
  LinkQueue& link = links_[index];
  const auto it = link.running.find(done.token);
  if (it == link.running.end()) return;
  if (!done.result) return on_link_error(index, done.result.error());
  const SubCommTask launch = std::move(it->second);
  link.running.erase(it);
  ++link.parts;
  if (!launch.is_operation && is_merged(launch)) ++link.merged_parts;
  link.bytes += done.bytes;
  link.busy_us += done.busy_us;
  keep(index, launch, done.bytes);
  pump(index);
  if (launch.replay) return;  // it was done here before the link was lost
  if (launch.is_operation) return finish_operation(launch.operation);
  finish_part(launch);
  if (leader_ && state_ == State::kRunning) leader_->launch_finished(launch.number, done.link_us, done.overlapped);
}

void Job::finish_part(const SubCommTask& launch) {
  const auto ended =
      groups_.at(launch.group).gradients->notify_finish(launch.bucket, launch.generation, launch.offset, launch.bytes);
  if (!ended) return fail_job(ended.error());
  for (const auto& [tensors, generation] : *ended) {
    const shm::FinishRecord finished{
        .group = launch.group, .first_tensor = tensors.first, .tensors = tensors.count, .generation = generation};
    for (auto& worker : workers_)
      if (worker.session != nullptr) worker.session->complete(finished);
  }
}

}  // namespace deft::daemon
