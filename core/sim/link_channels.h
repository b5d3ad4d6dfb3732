// The links of the simulation. A link runs its launches one after the other. A small launch may overtake them on a priority
// channel. Links that are busy at once may slow one another down.
//
//   links.push({launch, needs_gradients});
//   links.start_ready(now_us, may_start);      // whenever something may have changed
//   auto done = links.finish(event);           // for an event of kind kSendDone
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "core/model/buckets.h"
#include "core/model/profile.h"
#include "core/sched/scheduler.h"
#include "core/sim/event_queue.h"
#include "core/sim/token_bucket.h"

namespace deft::sim {

// A launch in the queue of its link. It may start when all nodes have finished backward of its buckets in the steps below
// `needs_gradients`.
struct QueuedLaunch {
  sched::Launch launch;
  std::uint64_t needs_gradients;
};

class LinkChannels {
 public:
  // `priority_links` have a channel for small launches. `profile` and `events` must outlive this object.
  LinkChannels(const model::Profile& profile, double contention, const std::vector<model::LinkIndex>& priority_links,
               EventQueue& events);

  using MayStart = std::function<bool(const QueuedLaunch&)>;

  void push(const QueuedLaunch& queued) { channels_[channel_of(queued.launch)].queue.push_back(queued); }
  // Starts the first launch of each idle channel that may start.
  void start_ready(double now_us, const MayStart& may_start);
  // Takes the event of a send. Gives the launch that is done, or nothing if the event is out of date.
  std::optional<sched::Launch> finish(const QueuedEvent& event);
  // The time when the running launch of `channel` began.
  [[nodiscard]] double started_us(std::uint32_t channel) const { return channels_[channel].started_us; }

  [[nodiscard]] std::uint64_t sent_bytes() const { return sent_bytes_; }  // of gradients, by all launches that are done
  [[nodiscard]] double wire_bytes() const { return wire_bytes_; }         // that they took encoded
  [[nodiscard]] std::uint64_t launches() const { return launches_; }      // that are done

 private:
  struct Channel {
    bool exists = true;  // false for the priority channel of a link that has none
    std::deque<QueuedLaunch> queue;
    bool busy = false;
    double started_us = 0;
    double left_us = 0;   // the rest of the running launch, at full speed
    double since_us = 0;  // the time for which left_us is right
    std::uint64_t version = 0;
  };
  [[nodiscard]] double slowness() const { return 1 + contention_ * (active_ > 1 ? active_ - 1 : 0); }
  // Changes the number of busy links by `change`. Books the work done so far at the old speed, and times the rest anew.
  void change_active(int change, double now_us);
  // Books the work of a busy channel since it was timed last, at `slowness`, and adds `more_us` of work.
  void retime(std::uint32_t channel, double now_us, double slowness, double more_us = 0);
  void schedule(std::uint32_t channel, double now_us);
  void start_ready(std::uint32_t channel, double now_us, const MayStart& may_start);
  void begin(std::uint32_t channel, double now_us);
  [[nodiscard]] double wire_bytes(const sched::Launch& launch) const;  // if it is a whole all-reduce
  [[nodiscard]] double bytes_us(const sched::Launch& launch) const;    // its time without the latency

  // The channels of all links come first, then the priority channels.
  [[nodiscard]] std::uint32_t links() const { return static_cast<std::uint32_t>(channels_.size() / 2); }
  [[nodiscard]] bool is_priority(std::uint32_t channel) const { return channel >= links(); }
  [[nodiscard]] bool is_busy(model::LinkIndex link) const {
    return channels_[link].busy || channels_[links() + link].busy;
  }
  [[nodiscard]] std::uint32_t channel_of(const sched::Launch& launch) const;

  const model::Profile& profile_;
  double contention_;
  EventQueue& events_;
  std::vector<Channel> channels_;
  std::vector<TokenBucket> tokens_;  // [link]
  int active_ = 0;
  std::uint64_t sent_bytes_ = 0;
  double wire_bytes_ = 0;
  std::uint64_t launches_ = 0;
};

}  // namespace deft::sim
