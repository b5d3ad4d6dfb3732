#include "core/client/generations.h"

namespace deft::client {
namespace {

constexpr std::uint32_t kMaxGenerations = 4096;  // of a cycle

tl::unexpected<Error> senseless(const std::string& what) {
  return fail(ErrorKind::kViolation, "the daemon on this node announced a plan " + what,
              "install the same version of Deft for the daemon and the workers");
}

}  // namespace

model::Dated Generations::of_step(std::uint64_t step) const {
  const std::lock_guard lock(mutex_);
  return calendar_.of_step(step);
}

model::Dated Generations::at(std::uint64_t generation) const {
  const std::lock_guard lock(mutex_);
  return calendar_.at(generation);
}

void Generations::cut(std::uint64_t step) {
  const std::lock_guard lock(mutex_);
  calendar_.cut(step);
}

std::uint64_t Generations::epoch() const {
  const std::lock_guard lock(mutex_);
  return epoch_;
}

Result<void> Generations::receive(const shm::Record& record) {
  const std::lock_guard lock(mutex_);
  if (record.kind == shm::RecordKind::kPlan) {
    if (announced_ || record.count == 0 || record.count > kMaxGenerations) return senseless("out of turn");
    announced_ = {record.generation, record.operation, record.count, {static_cast<std::uint32_t>(record.bytes), {}}};
    return {};
  }
  if (!announced_) return senseless("without a beginning");
  announced_->cycle.generations.push_back({static_cast<std::uint32_t>(record.generation),
                                           static_cast<std::uint32_t>(record.operation),
                                           static_cast<std::uint32_t>(record.offset)});
  if (--announced_->missing > 0) return {};
  if (auto ok = model::check_cycle(announced_->cycle); !ok) return ok;
  if (model::slots_needed(announced_->cycle) > slots_) return senseless("that needs more slots than the arena has");
  calendar_.follow(announced_->step, std::move(announced_->cycle));
  epoch_ = announced_->epoch;
  announced_.reset();
  return {};
}

}  // namespace deft::client
