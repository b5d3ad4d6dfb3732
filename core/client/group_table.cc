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
  groups_.push_back({std::move(progress), std::move(generations)});
  return static_cast<std::uint32_t>(groups_.size() - 1);
}

Result<void> GroupTable::finish(const shm::FinishRecord& finished) {
  const std::size_t tensors = finished.group < groups_.size() ? groups_[finished.group].progress->tensors() : 0;
  if (finished.first_tensor > tensors || finished.tensors > tensors - finished.first_tensor ||
      finished.group >= groups_.size())
    return tl::unexpected(violation("the end of tensors that were not declared"));
  groups_[finished.group].progress->finish(finished.first_tensor, finished.tensors, finished.generation);
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
