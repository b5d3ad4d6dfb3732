#include "core/client/group_table.h"

#include <utility>

namespace deft::client {

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

}  // namespace deft::client
