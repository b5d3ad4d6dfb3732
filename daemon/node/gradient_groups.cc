#include "daemon/node/gradient_groups.h"

#include <glog/logging.h>

#include <algorithm>

#include "core/base/text.h"
#include "core/model/update_schedule.h"
#include "daemon/base/log_lines.h"
#include "daemon/leader/leader.h"
#include "daemon/node/plan_records.h"

namespace deft::daemon {
namespace {

Result<std::vector<model::Bucket>> buckets_of(const wire::DeclareAgreed& agreed, const Gradients& gradients) {
  if (group_hash(gradients.specs(), agreed) != agreed.hash)
    return fail(ErrorKind::kMismatch, "the leader's plan has another hash than this node computes",
                "install the same version of Deft on all nodes");
  std::vector<model::Bucket> buckets;
  for (const auto& told : agreed.buckets) {
    model::Bucket bucket;
    bucket.name = "b" + std::to_string(buckets.size());
    bucket.offset = told.offset;
    bucket.bytes = told.bytes;
    for (const auto& region : gradients.layout().regions)
      if (bucket.offset >= region.offset && bucket.offset < region.offset + region.bytes) bucket.dtype = region.dtype;
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

// What the local workers declare differently.
std::optional<Error> difference(const GradientGroups::GroupState& group, const Membership& members) {
  const auto has = [](const auto& declared) { return declared.has_value(); };
  const auto first = std::ranges::find_if(group.declared, has);
  const auto rank = [&](const auto& declared) {
    return "rank " +
           std::to_string(members.workers()[static_cast<std::size_t>(&declared - group.declared.data())].rank);
  };
  for (const auto& other : group.declared) {
    if (!other || &other == &*first) continue;
    std::string text = model::first_difference((*first)->tensors, rank(*first), other->tensors, rank(other));
    if (text.empty() && ((*first)->name != other->name || (*first)->slots != other->slots || (*first)->op != other->op))
      text = "group " + std::to_string(other->group) + " is '" + (*first)->name + "' on " + rank(*first) + " and '" +
             other->name + "', with other slots or another reduction, on " + rank(other);
    if (!text.empty())
      return Error{ErrorKind::kMismatch, text, "all ranks must train the same model, declared in the same order", {}};
  }
  return std::nullopt;
}

Result<CodingMap> coding_map(const Declaration& declaration, const model::ArenaLayout& layout,
                             const Membership& members) {
  auto own = own_codecs(declaration.tensors);
  if (!own) return tl::unexpected(own.error());
  if (declaration.op != model::ReduceOp::kSum) return CodingMap();
  const JobSettings& settings = members.settings();
  return CodingMap(declaration.tensors, layout, {settings.codecs, *std::move(own)},
                   settings.options.bytes("compression_min_bytes"),
                   stable_hash(members.identity().name + "/" + declaration.name));
}

// The group, for a worker that uses it. `what`: what the worker did with it.
Result<GradientGroups::GroupState*> used_by(std::size_t worker, std::uint32_t id, const std::string& what,
                                            std::map<std::uint32_t, GradientGroups::GroupState>& groups) {
  const auto it = groups.find(id);
  if (it == groups.end() || !it->second.agreed)
    return fail(ErrorKind::kViolation, what + " a group that is not declared, or was released by all ranks");
  if (it->second.released_by(worker))
    return fail(ErrorKind::kViolation, what + " group " + std::to_string(id) + " after it had released it");
  return &it->second;
}

}  // namespace

bool GradientGroups::GroupState::released_by_all() const {
  return !released.empty() && std::ranges::find(released, false) == released.end();
}

Gradients* GradientGroups::agreed(std::uint32_t id) {
  const auto it = groups_.find(id);
  return it == groups_.end() || !it->second.agreed || it->second.ended ? nullptr : it->second.gradients.get();
}

Result<void> GradientGroups::declare(std::size_t worker, Declaration declaration) {
  const std::uint32_t id = declaration.group;
  GroupState& group = groups_[id];
  group.declared.resize(members_.workers().size());
  if (group.declared[worker]) return fail(ErrorKind::kViolation, "group " + std::to_string(id) + " was declared twice");
  group.declared[worker] = std::move(declaration);
  if (auto error = difference(group, members_)) return tl::unexpected(std::move(*error));
  if (std::ranges::any_of(group.declared, [](const auto& declared) { return !declared; })) return {};
  const Declaration& first = *group.declared.front();
  auto layout = model::lay_out(first.tensors, first.slots);
  if (!layout) return tl::unexpected(layout.error().in("group '" + first.name + "'"));
  auto codings = coding_map(first, *layout, members_);
  if (!codings) return tl::unexpected(codings.error().in("group '" + first.name + "'"));
  group.codings = *std::move(codings);
  group.gradients = std::make_unique<Gradients>(first.tensors, std::move(*layout), group.declared.size());
  leader_.send(wire::Declare{id, first.name, first.tensors, first.slots, first.op});
  return {};
}

Result<const GradientGroups::GroupState*> GradientGroups::agree(const wire::DeclareAgreed& agreed) {
  const auto it = groups_.find(agreed.group);
  if (it == groups_.end() || !it->second.gradients || it->second.agreed) return nullptr;
  GroupState& group = it->second;
  auto buckets = buckets_of(agreed, *group.gradients);
  if (!buckets) return tl::unexpected(buckets.error());
  if (auto ok = group.gradients->set_buckets(std::move(*buckets)); !ok) return tl::unexpected(ok.error());
  group.agreed = true;
  group.arenas.resize(members_.workers().size());
  group.released.resize(members_.workers().size());
  ask_for_arenas(agreed.group);
  return &group;
}

// A worker hands nothing in before it has its arena, so nothing is launched before all have theirs.
void GradientGroups::ask_for_arenas(std::uint32_t id) {
  const GroupState& group = groups_.at(id);
  const std::uint64_t bytes = group.gradients->layout().total_bytes();
  const auto buckets = static_cast<std::uint32_t>(group.gradients->buckets().size());
  for (std::size_t i = 0; i < group.arenas.size(); ++i) {
    WorkerPort* const worker = members_.workers()[i].port;
    if (worker == nullptr) continue;
    worker->grant_arena(id, bytes, buckets,
                        [this, id, i, who = worker->describe(), alive = std::weak_ptr(alive_)](auto arena) {
                          if (alive.expired()) return;
                          if (!arena) return fail_(arena.error().in("the arena of " + who));
                          if (const auto known = groups_.find(id); known != groups_.end())
                            known->second.arenas[i] = *std::move(arena);
                        });
  }
}

Result<bool> GradientGroups::ready(std::size_t worker, const shm::ReadyRecord& handed, TimeUs now_us) {
  const auto group = used_by(worker, handed.group, "it handed in tensors of", groups_);
  if (!group) return tl::unexpected(group.error());
  if (!(*group)->arenas[worker])
    return fail(ErrorKind::kViolation, "tensors were handed in before their arena was there");
  const auto ready = (*group)->gradients->notify_ready(worker, {handed.first_tensor, handed.tensors}, handed.generation,
                                                       {handed.last_step, handed.cycle_step}, handed.slot, now_us);
  if (!ready) return tl::unexpected(ready.error());
  if (scheduler_ != nullptr)
    for (const auto bucket : *ready) scheduler_->bucket_ready(handed.group, bucket, handed.generation);
  return !ready->empty();
}

Result<void> GradientGroups::flush(std::size_t worker, const shm::FlushRecord& flush) {
  if (auto group = used_by(worker, flush.group, "it flushed", groups_); !group) return tl::unexpected(group.error());
  if (scheduler_ == nullptr || members_.workers()[worker].rank != 0) return {};
  return scheduler_->flushed(flush.group, flush.step);
}

Result<void> GradientGroups::send_residuals(std::size_t worker, const shm::SendResidualsRecord& asked) {
  if (auto group = used_by(worker, asked.group, "it asked for residuals of", groups_); !group)
    return tl::unexpected(group.error());
  if (scheduler_ == nullptr || members_.workers()[worker].rank != 0) return {};
  return scheduler_->residuals_asked_for(asked.group, asked.step);
}

Result<void> GradientGroups::release(std::size_t worker, const shm::ReleaseRecord& released) {
  const auto group = used_by(worker, released.group, "it released", groups_);
  if (!group) return tl::unexpected(group.error());
  if (!(*group)->arenas[worker]) return fail(ErrorKind::kViolation, "a group was released before its arena was there");
  (*group)->released[worker] = true;
  if ((*group)->released_by_all()) leader_.send(wire::Release{released.group});
  return {};
}

void GradientGroups::end(const wire::Released& released) {
  if (agreed(released.group) == nullptr) return;
  groups_.at(released.group).ended = true;
  forget_if_done(released.group);
}

// Launches that other nodes run again, because a link was lost, run here on copies (ReplayBuffer).
void GradientGroups::forget_if_done(std::uint32_t id) {
  const auto it = groups_.find(id);
  if (it == groups_.end() || !it->second.ended || it->second.under_way > 0) return;
  groups_.erase(it);
  members_.complete_all(shm::ReleasedRecord{.group = id});
}

Result<void> GradientGroups::follow(const wire::PlanOrder& order) {
  const Gradients* const gradients = agreed(order.group);
  if (gradients == nullptr) return fail(ErrorKind::kViolation, "the leader sent a plan for an unknown group");
  const std::uint32_t slots = gradients->layout().slots;
  if (const auto needed = model::slots_needed(order.plan.cycles); needed > slots)
    return fail(ErrorKind::kViolation, "the leader's plan needs " + std::to_string(needed) +
                                           " slots of the arena, of " + std::to_string(slots));
  const auto records = plan_records(order, *gradients);
  if (!records) return tl::unexpected(records.error());
  LOG(INFO) << about(members_.identity()) << "follows plan " << order.epoch << " of group " << order.group
            << " from step " << order.activation_step << " on";
  for (const auto& record : *records) members_.complete_all(record);
  return {};
}

Result<SubCommTask> GradientGroups::order(const wire::Launch& launch, std::uint64_t number, TimeUs now_us) {
  Gradients* const gradients = agreed(launch.group);
  if (gradients == nullptr || launch.link >= links_)
    return fail(ErrorKind::kViolation, "the leader ordered a part of an unknown group or link");
  if (launch.half != model::AllReduceHalf::kBoth && launch.codec != 0)
    return fail(ErrorKind::kViolation, "the leader ordered half an all-reduce of gradients that are encoded");
  if (auto ok = gradients->start(launch.bucket, launch.generation, {launch.last_step, launch.cycle_step}, launch.offset,
                                 launch.bytes, now_us, launch.half);
      !ok)
    return tl::unexpected(ok.error());
  SubCommTask task;
  task.number = number;
  task.group = launch.group;
  task.bucket = launch.bucket;
  task.generation = launch.generation;
  task.offset = launch.offset;
  task.bytes = launch.bytes;
  task.priority = launch.priority;
  task.half = launch.half;
  const model::Bucket& bucket = gradients->buckets()[launch.bucket];
  GroupState& group = groups_.at(launch.group);
  task.codings = group.codings.codings_of(bucket.offset + launch.offset, launch.bytes, launch.generation, launch.codec);
  ++group.under_way;
  return task;
}

bool GradientGroups::can_start(const SubCommTask& launch) const {
  const Gradients& gradients = *groups_.at(launch.group).gradients;
  return gradients.is_ready({launch.bucket, launch.offset, launch.bytes}, launch.generation, launch.half);
}

bool GradientGroups::is_merged(const SubCommTask& launch) const {
  const auto group = groups_.find(launch.group);  // one that runs again may be of a group that has gone
  return group != groups_.end() &&
         launch.offset + launch.bytes > group->second.gradients->buckets()[launch.bucket].bytes;
}

Transfer GradientGroups::transfer_of(const SubCommTask& launch) const {
  const GroupState& group = groups_.at(launch.group);
  const Gradients& gradients = *group.gradients;
  const model::Bucket& bucket = gradients.buckets()[launch.bucket];
  const std::uint64_t at =
      gradients.map().slot_of(launch.generation) * gradients.layout().slot_bytes + bucket.offset + launch.offset;
  Transfer transfer;
  transfer.dtype = bucket.dtype;
  transfer.op = group.declared.front()->op;
  transfer.half = launch.half;
  transfer.priority = launch.priority;
  transfer.count = launch.bytes / model::dtype_bytes(bucket.dtype);
  transfer.codings = launch.codings;
  for (const auto& arena : group.arenas) {
    transfer.buffers.push_back(arena->data() + at);
    transfer.keep.push_back(arena);
  }
  return transfer;
}

InProcessDriver::Records GradientGroups::records_of(const SubCommTask& launch) const {
  const Gradients& gradients = *groups_.at(launch.group).gradients;
  shm::StartRecord record;
  record.group = launch.group;
  record.slot = static_cast<std::uint32_t>(gradients.map().slot_of(launch.generation));
  record.offset_bytes = gradients.buckets()[launch.bucket].offset + launch.offset;
  record.bytes = launch.bytes;
  return InProcessDriver::Records(members_.workers().size(), {record});
}

Result<void> GradientGroups::finish(const SubCommTask& launch, const TransferDone& done) {
  GroupState& group = groups_.at(launch.group);
  --group.under_way;
  const auto complete =
      group.gradients->notify_finish(launch.bucket, launch.generation, launch.offset, launch.bytes, launch.half);
  if (!complete) return tl::unexpected(complete.error());
  for (const auto& [tensors, generation] : *complete)
    members_.complete_all(shm::FinishRecord{
        .group = launch.group, .first_tensor = tensors.first, .tensors = tensors.count, .generation = generation});
  if (scheduler_ != nullptr && members_.state() == JobState::kRunning)
    scheduler_->launch_finished(launch.number, done.link_us, done.overlapped);
  forget_if_done(launch.group);
  return {};
}

std::optional<wire::NodeFacts::Group> GradientGroups::facts(std::uint32_t id) const {
  const auto it = groups_.find(id);
  if (it == groups_.end() || !it->second.gradients || it->second.ended) return std::nullopt;
  const Gradients& gradients = *it->second.gradients;
  wire::NodeFacts::Group facts{gradients.layout().slot_bytes,
                               gradients.layout().slots,
                               {},
                               it->second.codings.codecs(),
                               it->second.released_by_all()};
  if (it->second.agreed) facts.buckets = gradients.buckets();
  return facts;
}

nlohmann::json GradientGroups::status() const {
  nlohmann::json json = nlohmann::json::array();
  for (const auto& [id, group] : groups_) {
    if (!group.gradients) continue;
    nlohmann::json bucket_bytes = nlohmann::json::array();  // in the order of the arena
    for (const auto& bucket : group.gradients->buckets()) bucket_bytes.push_back(bucket.bytes);
    json.push_back({{"id", id},
                    {"tensors", group.gradients->specs().size()},
                    {"bytes", group.gradients->layout().slot_bytes},
                    {"buckets", group.gradients->buckets().size()},
                    {"bucket_bytes", std::move(bucket_bytes)},
                    {"step", group.gradients->finished_generations()}});
  }
  return json;
}

}  // namespace deft::daemon
