// Requests of a link that wait or are in flight, in the order of their submission, and the time that each spends on the wire.
//
//   queue.add(request);
//   while (queue.can_start()) begin(queue.start(nullptr));
//   Completion done = queue.end(id, nullptr);                              // it has ended
//
// One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "core/base/clock.h"
#include "core/link/work_request.h"

namespace deft::link {

class WorkQueue {
 public:
  // `depth`: requests in flight. Only requests that reduce share the wire; others have it alone.
  explicit WorkQueue(std::size_t depth) : depth_(depth) {}

  void add(WorkRequest request) { waiting_.push_back(std::move(request)); }
  // True if the oldest request that waits may start now.
  [[nodiscard]] bool can_start() const;
  // It is in flight now. `beside`: the queue that it overtakes, or null.
  WorkRequest start(const WorkQueue* beside);
  [[nodiscard]] bool has(std::uint64_t id) const;
  Completion end(std::uint64_t id, const WorkQueue* beside);
  void clear();

  [[nodiscard]] bool empty() const { return waiting_.empty() && in_flight_.empty(); }

 private:
  struct Entry {
    std::uint64_t id = 0;
    TimeUs began_us = 0;
    std::uint64_t beside_ended = 0;  // how many of the overtaken queue had ended when it began
  };

  const std::size_t depth_;
  std::deque<WorkRequest> waiting_;
  std::vector<Entry> in_flight_;  // oldest first
  bool shares_ = true;            // whether those in flight let others start
  TimeUs free_us_ = 0;            // when the last one ended
  std::uint64_t started_ = 0;
  std::uint64_t ended_ = 0;
};

}  // namespace deft::link
