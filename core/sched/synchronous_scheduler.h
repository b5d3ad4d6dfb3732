// The base of all synchronous policies. The gradients of each step are a generation of their own, which is applied before the
// next forward. Ready buckets wait in one queue, the most urgent first. A LinkBoard knows the launches in flight.
//
// A policy derives from this class. It calls enqueue when a bucket becomes ready. In take_launches it takes from queue_ the
// parts that should go now, and calls send() for each, which numbers the launch and books it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "core/sched/link_board.h"
#include "core/sched/scheduler.h"

namespace deft::sched {

// A ready bucket, or a run of buckets. Its bytes [sent, bytes) are not launched yet.
struct ReadyTask {
  std::uint64_t generation;
  std::uint32_t priority;  // the lower priority goes first
  model::BucketIndex bucket;
  std::uint64_t bytes;
  std::uint64_t part_bytes;  // the policy cuts parts of this size; the first and the last part may be smaller
  std::uint64_t skew = 0;    // its first byte lies so far behind a multiple of kPartAlignBytes in the arena
  std::uint64_t sent = 0;
  bool uncut = false;  // it goes as one part

  [[nodiscard]] std::uint64_t rest() const { return bytes - sent; }
  // The bytes of the part that begins at byte `at`.
  [[nodiscard]] std::uint64_t part_at(std::uint64_t at) const {
    return std::min(part_bytes - (at == 0 ? skew : 0), bytes - at);
  }
};

class SynchronousScheduler : public Scheduler {
 public:
  void part_finished(const Launch& launch, TimeUs now_us) override { board_.finish(launch, now_us); }
  void link_measured(model::LinkIndex link, const model::LinkModel& measured) override {
    board_.measured(link, measured);
  }
  void link_lost(model::LinkIndex link) override { board_.remove(link); }
  std::vector<Update> take_updates() override { return std::exchange(updates_, {}); }

 protected:
  SynchronousScheduler(const Setup& setup, SizeLimit window)
      : board_(setup.links, window),
        buckets_(setup.buckets),
        reports_updates_(setup.reports_updates),
        urgent_first_(is_urgent_first(setup.policy)),
        codec_(setup.codec) {}

  // Puts `bucket` into the queue, which is ordered by generation, then by priority, then by the order of the calls. Its parts are even,
  // and none is larger than `part_limit`, unless the bucket may not be cut.
  void enqueue(model::BucketIndex bucket, std::uint64_t step, std::uint32_t priority,
               std::uint64_t part_limit = kNoLimit);
  // Puts `count` neighbouring buckets into the queue, as if they were one bucket that begins where `first` does.
  void enqueue_run(model::BucketIndex first, std::uint32_t count, std::uint64_t step, std::uint64_t part_limit);
  // The kind of the launches of ready buckets. A policy of halves launches the all-gathers itself.
  [[nodiscard]] virtual AllReduceHalf half_of_launches() const { return AllReduceHalf::kBoth; }
  // Gives the launch its number, its priority and its codec, and books it. A launch of both halves becomes half_of_launches().
  void send(Launch& launch, TimeUs now_us);

  [[nodiscard]] const model::Bucket& bucket(model::BucketIndex index) const { return buckets_.at(index); }

  LinkBoard board_;
  std::deque<ReadyTask> queue_;

 private:
  [[nodiscard]] static bool is_urgent_first(std::string_view policy);
  void insert(ReadyTask ready);  // its part_bytes are still a limit
  void update(model::BucketIndex index, std::uint64_t step) {
    if (reports_updates_) updates_.push_back({index, step, step, step, step + 1});
  }

  std::vector<model::Bucket> buckets_;
  bool reports_updates_;
  bool urgent_first_;
  model::CodecIndex codec_;  // of all launches
  std::uint64_t launches_ = 0;
  std::vector<Update> updates_;
};

}  // namespace deft::sched
