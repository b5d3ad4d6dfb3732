#include "core/client/group_table.h"

#include <utility>

namespace deft::client {
namespace {

constexpr std::uint32_t kMaxGenerations = 4096;  // of a cycle

tl::unexpected<Error> senseless(const std::string& what) {
  return fail(ErrorKind::kViolation, "the daemon on this node announced a plan " + what,
              "install the same version of Deft for the daemon and the workers");
}

}  // namespace

bool TensorProgress::finished(std::size_t first, std::size_t count, std::uint64_t generation) const {
  for (std::size_t i = first; i < first + count; ++i)
    if (next_[i].load(std::memory_order_acquire) <= generation) return false;
  return true;
}

void TensorProgress::finish(std::size_t first, std::size_t count, std::uint64_t generation) {
  for (std::size_t i = first; i < first + count; ++i)
    if (next_[i].load(std::memory_order_relaxed) <= generation)
      next_[i].store(generation + 1, std::memory_order_release);
}

std::uint32_t GroupTable::add(std::shared_ptr<TensorProgress> progress, std::shared_ptr<Generations> generations) {
  const auto lock = connection_.lock();
  groups_[declared_] = {std::move(progress), std::move(generations)};
  return declared_++;
}

void GroupTable::release(std::uint32_t number, std::shared_ptr<void> keep) {
  const auto lock = connection_.lock();
  const auto group = groups_.find(number);
  if (group == groups_.end()) return;
  group->second.released = true;
  group->second.kept = std::move(keep);
}

Result<void> GroupTable::forget(const shm::ReleasedRecord& released) {
  const auto group = groups_.find(released.group);
  if (group == groups_.end() || !group->second.released)
    return tl::unexpected(violation("the end of a group that this worker uses"));
  groups_.erase(group);
  return {};
}

Result<void> GroupTable::finish(const shm::FinishRecord& finished) {
  const auto group = groups_.find(finished.group);
  const std::size_t tensors = group == groups_.end() ? 0 : group->second.progress->tensors();
  if (group == groups_.end() || finished.first_tensor > tensors || finished.tensors > tensors - finished.first_tensor)
    return tl::unexpected(violation("the end of tensors that were not declared"));
  group->second.progress->finish(finished.first_tensor, finished.tensors, finished.generation);
  return {};
}

model::UpdateWindow Generations::at(std::size_t tensor, std::uint64_t generation) const {
  const std::lock_guard lock(mutex_);
  return schedules_[tensor].at(generation);
}

void Generations::cut(std::uint64_t step) {
  const std::lock_guard lock(mutex_);
  model::cut(schedules_, step);
}

Result<void> Generations::receive(const shm::PlanRecord& plan) {
  const std::lock_guard lock(mutex_);
  if (announced_ || plan.generations == 0 || plan.generations > kMaxGenerations) return senseless("out of turn");
  if (plan.first_tensor >= schedules_.size() || plan.tensors > schedules_.size() - plan.first_tensor)
    return senseless("for tensors that do not exist");
  announced_ = {plan.activation_step, plan.first_tensor, plan.tensors, plan.generations, {plan.cycle_steps, {}}};
  return {};
}

Result<void> Generations::receive(const shm::PlanGenerationRecord& generation) {
  const std::lock_guard lock(mutex_);
  if (!announced_) return senseless("without a beginning");
  announced_->cycle.generations.push_back({generation.first_step, generation.last_step, generation.apply_step});
  if (--announced_->missing > 0) return {};
  if (auto ok = model::check_cycle(announced_->cycle); !ok) return ok;
  if (model::slots_needed(announced_->cycle) > slots_) return senseless("that needs more slots than the arena has");
  const auto cycle = std::make_shared<const model::UpdateCycle>(std::move(announced_->cycle));
  for (std::size_t t = announced_->first; t < announced_->first + announced_->count; ++t)
    schedules_[t].follow(announced_->step, cycle);
  announced_.reset();
  return {};
}

}  // namespace deft::client
