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

}  // namespace

Gradients* GradientGroups::agreed(std::uint32_t id) {
  const auto it = groups_.find(id);
  return it == groups_.end() || !it->second.agreed ? nullptr : it->second.gradients.get();
}

std::optional<Error> GradientGroups::difference(const GroupState& group) const {
  const auto has = [](const auto& declared) { return declared.has_value(); };
  const auto first = std::ranges::find_if(group.declared, has);
  const auto rank = [&](const auto& declared) {
    return "rank " +
           std::to_string(members_.workers()[static_cast<std::size_t>(&declared - group.declared.data())].rank);
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

Result<CodingMap> GradientGroups::coding_map(const Declaration& declaration, const model::ArenaLayout& layout) const {
  auto own = own_codecs(declaration.tensors);
  if (!own) return tl::unexpected(own.error());
  if (declaration.op != model::ReduceOp::kSum) return CodingMap();
  const JobSettings& settings = members_.settings();
  return CodingMap(declaration.tensors, layout, {settings.codecs, *std::move(own)},
                   settings.options.bytes("compression_min_bytes"),
                   stable_hash(members_.identity().name + "/" + declaration.name));
}

Result<void> GradientGroups::declare(std::size_t worker, Declaration declaration) {
  const std::uint32_t id = declaration.group;
  GroupState& group = groups_[id];
  group.declared.resize(members_.workers().size());
  if (group.declared[worker]) return fail(ErrorKind::kViolation, "group " + std::to_string(id) + " was declared twice");
  group.declared[worker] = std::move(declaration);
  if (auto error = difference(group)) return tl::unexpected(std::move(*error));
  if (std::ranges::any_of(group.declared, [](const auto& declared) { return !declared; })) return {};
  const Declaration& first = *group.declared.front();
  auto layout = model::lay_out(first.tensors, first.slots);
  if (!layout) return tl::unexpected(layout.error().in("group '" + first.name + "'"));
  auto codings = coding_map(first, *layout);
  if (!codings) return tl::unexpected(codings.error().in("group '" + first.name + "'"));
  group.codings = *std::move(codings);
  group.gradients = std::make_unique<Gradients>(first.tensors, std::move(*layout), group.declared.size());
  leader_.send(wire::Declare{id, first.name, first.tensors, first.slots, first.op});
  return {};
}

bool GradientGroups::has_declared(std::size_t worker, std::uint32_t group) const {
  const auto it = groups_.find(group);
  return it != groups_.end() && it->second.declared[worker].has_value();
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
                          groups_.at(id).arenas[i] = *std::move(arena);
                        });
  }
}

Result<bool> GradientGroups::ready(std::size_t worker, const shm::ReadyRecord& handed, TimeUs now_us) {
  Gradients* const gradients = agreed(handed.group);
  if (gradients == nullptr) return fail(ErrorKind::kViolation, "tensors of an undeclared group were handed in");
  if (!groups_.at(handed.group).arenas[worker])
    return fail(ErrorKind::kViolation, "tensors were handed in before their arena was there");
  const auto ready = gradients->notify_ready(worker, {handed.first_tensor, handed.tensors}, handed.generation,
                                             {handed.last_step, handed.cycle_step}, handed.slot, now_us);
  if (!ready) return tl::unexpected(ready.error());
  if (scheduler_ != nullptr)
    for (const auto bucket : *ready) scheduler_->bucket_ready(handed.group, bucket, handed.generation);
  return !ready->empty();
}

Result<void> GradientGroups::flush(std::size_t worker, const shm::FlushRecord& flush) {
  if (agreed(flush.group) == nullptr) return fail(ErrorKind::kViolation, "an undeclared group was flushed");
  if (scheduler_ == nullptr || members_.workers()[worker].rank != 0) return {};
  return scheduler_->flushed(flush.group, flush.step);
}

Result<void> GradientGroups::send_residuals(std::size_t worker, const shm::SendResidualsRecord& asked) {
  if (agreed(asked.group) == nullptr)
    return fail(ErrorKind::kViolation, "residuals of an undeclared group were asked for");
  if (scheduler_ == nullptr || members_.workers()[worker].rank != 0) return {};
  return scheduler_->residuals_asked_for(asked.group, asked.step);
}

Result<void> GradientGroups::follow(const wire::PlanOrder& order) {
  const Gradients* const gradients = agreed(order.group);
  if (gradients == nullptr) return fail(ErrorKind::kViolation, "the leader sent a plan for an unknown group");
  const std::uint32_t slots = gradients->layout().slots;
  if (const auto needed = model::slots_needed(model::cycles_of(order.plan)); needed > slots)
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
  if (launch.part != model::LaunchPart::kWhole && launch.codec != 0)
    return fail(ErrorKind::kViolation, "the leader ordered half an all-reduce of gradients that are encoded");
  if (auto ok = gradients->start(launch.bucket, launch.generation, {launch.last_step, launch.cycle_step}, launch.offset,
                                 launch.bytes, now_us, launch.part);
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
  task.part = launch.part;
  const model::Bucket& bucket = gradients->buckets()[launch.bucket];
  task.codings = groups_.at(launch.group)
                     .codings.codings_of(bucket.offset + launch.offset, launch.bytes, launch.generation, launch.codec);
  return task;
}

bool GradientGroups::can_start(const SubCommTask& launch) const {
  const Gradients& gradients = *groups_.at(launch.group).gradients;
  return gradients.is_ready({launch.bucket, launch.offset, launch.bytes}, launch.generation, launch.part);
}

bool GradientGroups::is_merged(const SubCommTask& launch) const {
  return launch.offset + launch.bytes > groups_.at(launch.group).gradients->buckets()[launch.bucket].bytes;
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
  transfer.part = launch.part;
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
  const auto complete =
      groups_.at(launch.group)
          .gradients->notify_finish(launch.bucket, launch.generation, launch.offset, launch.bytes, launch.part);
  if (!complete) return tl::unexpected(complete.error());
  for (const auto& [tensors, generation] : *complete)
    members_.complete_all(shm::FinishRecord{
        .group = launch.group, .first_tensor = tensors.first, .tensors = tensors.count, .generation = generation});
  if (scheduler_ != nullptr && members_.state() == JobState::kRunning)
    scheduler_->launch_finished(launch.number, done.link_us, done.overlapped);
  return {};
}

std::optional<wire::NodeFacts::Group> GradientGroups::facts(std::uint32_t id) const {
  const auto it = groups_.find(id);
  if (it == groups_.end() || !it->second.gradients) return std::nullopt;
  const Gradients& gradients = *it->second.gradients;
  wire::NodeFacts::Group facts{
      gradients.layout().slot_bytes, gradients.layout().slots, {}, it->second.codings.codecs()};
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
