// A gradient group: the tensors of one optimizer, in an arena that the daemon shares with this worker.
//
//   auto group = GradientGroup::declare(session, "sgd", tensors, 1, model::ReduceOp::kSum);   // on all ranks the same
//   (*group)->ready(3, 1, step, 0);  (*group)->wait(3, 1, step);
//
//   if (auto done = (*group)->release()) ...         // this worker uses it no more; then let go of it
//
// Any thread. The session must outlive the group, but not its mapping of the arena.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/client/session.h"
#include "core/model/tensors.h"

namespace deft::client {

// A part of the arena, for a link that this worker runs.
struct Part {
  std::byte* data = nullptr;
  std::size_t count = 0;  // elements
  model::DType dtype{};
  model::ReduceOp op{};
};

class GradientGroup : public std::enable_shared_from_this<GradientGroup> {
 public:
  // Blocks until all ranks have declared the same. kMismatch, which names both, if a rank declares something else.
  static Result<std::shared_ptr<GradientGroup>> declare(Session& session, const std::string& name,
                                                        const std::vector<model::TensorSpec>& tensors,
                                                        std::uint32_t slots, model::ReduceOp op);

  [[nodiscard]] std::byte* data(std::size_t tensor, std::uint32_t slot) const;  // nullptr: out of range
  [[nodiscard]] std::size_t bytes(std::size_t tensor) const;                    // 0: out of range
  // The mapping. It lasts as long as somebody keeps it, also beyond the group.
  [[nodiscard]] const std::shared_ptr<const shm::Segment>& arena() const { return arena_; }
  // From now on the links that this worker runs use `memory`, which has the layout of the arena. The caller owns it. Call it
  // before the first ready().
  void use_device_arena(std::byte* memory) { device_arena_ = memory; }

  [[nodiscard]] std::uint32_t number() const { return number_; }
  // The part of `bytes` bytes at `offset` of a slot; kViolation if there is no such part.
  [[nodiscard]] Result<Part> part(std::uint32_t slot, std::uint64_t offset, std::uint64_t bytes) const;

  // Hands over tensors [first, first + count). kInvalid if `generation` is not the next one of each.
  Result<void> ready(std::size_t first, std::size_t count, std::uint64_t generation, std::uint32_t slot);
  // Waits until the tensors [first, first + count) of `generation` are reduced, or until `deadline_us` (MonotonicClock; 0: no
  // deadline). True if they are reduced.
  Result<bool> wait(std::size_t first, std::size_t count, std::uint64_t generation, TimeUs deadline_us = 0);
  // True if they are reduced. Never waits.
  Result<bool> test(std::size_t first, std::size_t count, std::uint64_t generation);

  // kInvalid if there are no such tensors.
  [[nodiscard]] Result<void> check_range(std::size_t first, std::size_t count) const;
  [[nodiscard]] const std::shared_ptr<TensorProgress>& progress() const { return progress_; }

  // Sends the statistics of one step to the daemon, for the preserver. kInvalid for values that cannot be.
  Result<void> report(ipc::Statistics statistics);

  [[nodiscard]] const Generations& generations() const { return *generations_; }
  [[nodiscard]] std::uint32_t slot_of(std::uint64_t generation) const {
    return static_cast<std::uint32_t>(generation % layout_.slots);
  }
  // Ends the generation under way before `step`, and begins the cycle anew there.
  Result<void> flush(std::uint64_t step);
  // The gradients of `step` travel as they are, and take along what encodings have left out.
  Result<void> send_residuals(std::uint64_t step);
  // This worker uses the group no more. No other thread may be in ready(), flush() or send_residuals(); calls that wait fail. False if
  // gradients that it has handed over are not reduced yet. Then the links that this worker runs may still use its memory: the session
  // keeps the group until they do not.
  Result<bool> release();

 private:
  GradientGroup(Session& session, std::string name, std::vector<model::TensorSpec> tensors, model::ArenaLayout layout,
                model::ReduceOp op);
  Result<void> map_arena();
  Result<void> submit_ready(std::size_t first, std::size_t count, const model::UpdateWindow& when, std::uint32_t slot);

  Session& session_;
  std::string name_;
  std::vector<model::TensorSpec> tensors_;
  model::ArenaLayout layout_;
  model::ReduceOp op_;
  std::shared_ptr<TensorProgress> progress_;
  std::shared_ptr<Generations> generations_;
  std::uint32_t number_ = 0;
  std::shared_ptr<const shm::Segment> arena_;
  std::atomic<std::byte*> device_arena_{nullptr};
  std::mutex mutex_;
  std::vector<std::uint64_t> next_;  // [tensor]: the generation that ready() expects
};

}  // namespace deft::client
