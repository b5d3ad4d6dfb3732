// The queue of events in virtual time. Events of the same time come in the order in which they were added.
//
//   events.add(at_us, QueuedEvent::Kind::kComputeDone, node);
//   while (!events.empty()) handle(events.take());   // the earliest first
#pragma once

#include <cstdint>
#include <queue>
#include <tuple>
#include <vector>

namespace deft::sim {

// An end of some computing or sending.
struct QueuedEvent {
  enum class Kind : std::uint8_t { kComputeDone, kSendDone };
  double at_us;
  std::uint64_t number;  // counts all events, in the order in which they were added
  Kind kind;
  std::uint32_t of;       // the number of the node or of the channel
  std::uint64_t version;  // if a send is timed anew, its old event stays in the queue with an old version
};

class EventQueue {
 public:
  void add(double at_us, QueuedEvent::Kind kind, std::uint32_t of, std::uint64_t version = 0) {
    queue_.push({at_us, ++added_, kind, of, version});
  }
  [[nodiscard]] bool empty() const { return queue_.empty(); }
  [[nodiscard]] std::uint64_t added() const { return added_; }
  QueuedEvent take() {
    const QueuedEvent event = queue_.top();
    queue_.pop();
    return event;
  }

 private:
  struct Later {
    bool operator()(const QueuedEvent& a, const QueuedEvent& b) const {
      return std::tie(a.at_us, a.number) > std::tie(b.at_us, b.number);
    }
  };
  std::priority_queue<QueuedEvent, std::vector<QueuedEvent>, Later> queue_;
  std::uint64_t added_ = 0;
};

}  // namespace deft::sim
