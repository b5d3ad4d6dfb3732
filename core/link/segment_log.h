// What requests send and receive, while a trace is written. The link's threads write, without a lock; when the link has completed all
// of these requests, their owner reads.
//
//   auto log = std::make_shared<SegmentLog>(first_request, SegmentLog::most_for(bytes, nodes));
//   request.observer = log;
//   for (const SegmentMove& move : log->moves()) ... move.request ...           // the first request is 0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/link/segment_observer.h"

namespace deft::link {

class SegmentLog final : public SegmentObserver {
 public:
  static constexpr std::size_t kMost = 1U << 14U;  // of a transfer; later moves are left out

  // As many as a transfer of so many bytes has with segments of 64 KB. Links have longer ones, unless there are many nodes.
  static std::size_t most_for(std::size_t bytes, std::uint32_t nodes) {
    constexpr std::size_t kShortBytes = 64 << 10, kEachWay = 2, kSegmentAndResult = 2;
    const std::size_t rounds = bytes / std::max(1U, nodes) / kShortBytes + 2;
    return std::min(kMost, kEachWay * kSegmentAndResult * rounds * nodes);
  }

  // As many as a request has on a link with one round: a segment and a result, to and from each member.
  static std::size_t most_of_one_round(std::size_t members) { return std::min(kMost, 4 * members); }

  SegmentLog(std::uint64_t first_request, std::size_t most) : first_request_(first_request), moves_(most) {}

  void moved(const SegmentMove& move) noexcept override {
    const std::size_t place = count_.fetch_add(1, std::memory_order_relaxed);
    if (place >= moves_.size()) return;
    moves_[place] = move;
    moves_[place].request -= first_request_;
  }

  [[nodiscard]] std::span<const SegmentMove> moves() const {
    return std::span(moves_).first(std::min(count_.load(std::memory_order_relaxed), moves_.size()));
  }

 private:
  const std::uint64_t first_request_;
  std::vector<SegmentMove> moves_;
  std::atomic<std::size_t> count_{0};
};

}  // namespace deft::link
