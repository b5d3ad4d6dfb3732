// The links: each runs its launches one after the other; a small launch may pass them on a priority channel. Links that are
// busy at once may slow one another down.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "core/model/bucket_run.h"
#include "core/model/profile.h"
#include "core/sched/scheduler.h"
#include "core/sim/event_queue.h"

namespace deft::sim {

// A launch in the queue of its link, and the gradients it needs: all nodes must have finished backward of its buckets in
// the steps below `needs_gradients`.
struct QueuedLaunch {
  sched::Launch launch;
  std::uint64_t needs_gradients;
};

// Calls visit(piece, us) for each bucket of the launch, with the profile's number of it, and what its bytes take. A launch
// over several buckets pays one latency, the largest of theirs, with its first piece. True where all its bytes exist.
using VisitPiece = std::function<void(const model::BucketPiece& piece, double us)>;
bool for_each_piece(const model::Profile& profile, const sched::Launch& launch, const VisitPiece& visit);

class LinkChannels {
 public:
  // `priority_links`: the links that have a channel for small launches.
  LinkChannels(const model::Profile& profile, double contention, const std::vector<model::LinkIndex>& priority_links,
               EventQueue& events);

  using MayStart = std::function<bool(const QueuedLaunch&)>;

  void push(const QueuedLaunch& queued) { channels_[channel_of(queued.launch)].queue.push_back(queued); }
  // Starts the first launch of each idle channel that may start.
  void start_ready(double now_us, const MayStart& may_start);
  // The event of a send came: the launch that is done, or nothing where the event is out of date.
  std::optional<sched::Launch> finish(const Event& event);
  // When the running launch of an event's channel began.
  [[nodiscard]] double started_us(std::uint32_t channel) const { return channels_[channel].started_us; }

  [[nodiscard]] std::uint64_t sent_bytes() const { return sent_bytes_; }  // of all launches that are done

 private:
  struct Channel {
    bool exists = true;  // which the one for small launches does on some links
    std::deque<QueuedLaunch> queue;
    bool busy = false;
    double started_us = 0;
    double left_us = 0;   // of the running launch, at full speed
    double since_us = 0;  // when left_us was right
    std::uint64_t version = 0;
  };
  [[nodiscard]] double slowness() const { return 1 + contention_ * (active_ > 1 ? active_ - 1 : 0); }
  // The number of busy links changes by `change`: work done so far is booked at the old speed, the rest timed anew.
  void change_active(int change, double now_us);
  // Books what a busy channel has done since it was timed last, at `slowness`, and what it got to do in addition.
  void retime(std::uint32_t channel, double now_us, double slowness, double more_us = 0);
  void schedule(std::uint32_t channel, double now_us);
  void start_ready(std::uint32_t channel, double now_us, const MayStart& may_start);
  void begin(std::uint32_t channel, double now_us);
  [[nodiscard]] double bytes_us(const sched::Launch& launch) const;  // without its latency

  // The channels of all links come first, then the priority channels.
  [[nodiscard]] std::uint32_t links() const { return static_cast<std::uint32_t>(channels_.size() / 2); }
  [[nodiscard]] bool is_priority(std::uint32_t channel) const { return channel >= links(); }
  [[nodiscard]] std::uint32_t channel_of(const sched::Launch& launch) const;

  const model::Profile& profile_;
  double contention_;
  EventQueue& events_;
  std::vector<Channel> channels_;
  int active_ = 0;
  std::uint64_t sent_bytes_ = 0;
};

}  // namespace deft::sim
