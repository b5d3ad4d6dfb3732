// One way over a link: runs transfers in the order given, the next all-reduces beside the oldest one where the link can have
// several under way. One thread's, but what says otherwise.
//
//   Channel channel("gloo:eth0", node, [](TransferDone done) { ... });
//   channel.use(link.get());                     // null: a job of one node
//   if (channel.has_room_for(transfer)) channel.start(transfer);
//   else channel.finish_next();                  // waits; reports what ended
//
// A channel that passes another one measures nothing while that one is busy: they share the wire.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "core/link/link.h"
#include "daemon/channel/transfer.h"

namespace deft::daemon {

class Channel {
 public:
  using Report = std::function<void(TransferDone)>;

  // `passes`: the channel beside which this one runs, or null.
  Channel(std::string name, std::uint32_t node, Report report, const Channel* passes = nullptr);

  void use(link::Link* link) { link_ = link; }
  [[nodiscard]] bool is_idle() const { return in_flight_.empty(); }
  // Only all-reduces share the link.
  [[nodiscard]] bool has_room_for(const Transfer& transfer) const;
  // All-reduces up to where the link's peers would have to be waited for, other collectives altogether.
  void start(Transfer transfer);
  // Waits for the next one that ends, or until there may be one to start.
  void finish_next();
  // The link is gone, and uses no memory of theirs any more.
  void clear() { in_flight_.clear(); }

 private:
  struct InFlight {  // a transfer that was started
    Transfer transfer;
    TransferDone done;
    std::unique_ptr<std::byte[]> own;  // stands for the buffers of a transfer that has none
    TimeUs began_us = 0;               // its local sum
    TimeUs link_began_us = 0;          // 0: nothing of it is under way in the link
    std::uint64_t passed_ended = 0;    // how many of the channel that it passes had ended when it began
  };

  void report(std::size_t place, Result<void> result);
  void measure(InFlight& entry, std::size_t place, TimeUs link_ended_us);
  void use_own_memory(InFlight& entry) const;
  [[nodiscard]] std::size_t own_offset(const Transfer& transfer) const;
  Result<void> start_all_reduce(InFlight& entry);
  Result<void> run_broadcast(const Transfer& transfer, TransferDone& done);
  Result<void> run_all_gather(const Transfer& transfer, TransferDone& done);

  const std::string name_;
  const std::uint32_t node_;
  Report report_;
  const Channel* const passes_;
  link::Link* link_ = nullptr;
  std::deque<InFlight> in_flight_;
  TimeUs link_free_us_ = 0;                // when the last transfer ended in the link
  TimeUs free_us_ = 0;                     // and altogether
  std::atomic<std::uint64_t> started_{0};  // any thread, as is
  std::atomic<std::uint64_t> ended_{0};
};

}  // namespace deft::daemon
