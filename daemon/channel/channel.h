// Runs a link's transfers. A transfer is a pipeline of stages, listed in one table for each collective (channel.cc):
//
//   sum the local workers' buffers -> encode -> keep a copy for a replay -> link -> decode -> copy the result to the workers
//
// The link does reduce-scatter, the owner's work and all-gather, segment by segment. A transfer without codings skips encode
// and decode. One of half an all-reduce has the stages of that half: the result of a reduce-scatter stays in the first worker's
// buffer, where the all-gather finds it. A transfer with codings may make several requests (coded_transfer.h), and goes on when all of them
// have completed.
//
//   Channel channel("gloo:eth0", node, [](TransferDone done) { ... });
//   channel.use(link.get());                  // null: a job of one node, which has no stage on a link
//   channel.start(transfer);                  // runs the stages before the link; does not wait for other nodes
//   while (!channel.is_idle()) channel.poll();   // waits for the link, and runs the stages behind it
//   if (channel.takes_transfers()) ...        // the next start
//
// One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>

#include "core/link/link.h"
#include "daemon/channel/buffer_pool.h"
#include "daemon/channel/coded_transfer.h"
#include "daemon/channel/cpu_meter.h"
#include "daemon/channel/traffic_meter.h"
#include "daemon/channel/transfer.h"

namespace deft::daemon {

class Channel {
 public:
  using Report = std::function<void(TransferDone)>;

  Channel(std::string name, std::uint32_t node, Report report);

  void use(link::Link* link) {
    link_ = link;
    traffic_.use(link);
    cpu_.use(link);
  }
  [[nodiscard]] bool is_idle() const { return in_flight_.empty(); }
  // False while the newest transfer is to make a second request, which depends on its first one. Whatever started before that would
  // stand before it on this node, and behind it on another.
  [[nodiscard]] bool takes_transfers() const {
    return in_flight_.empty() || in_flight_.back().coded == nullptr || !in_flight_.back().coded->has_second_requests();
  }
  // Reports the transfer at once if it has no stage on the link.
  void start(Transfer transfer);
  // Waits for the next completion of the link, or for an interrupt of it. If the link has failed, all transfers have.
  void poll();
  // The link is gone, and uses no memory of theirs any more.
  void clear() { in_flight_.clear(); }

 private:
  struct InFlight {  // a transfer between its stages
    Transfer transfer;
    TransferDone done;
    std::unique_ptr<std::byte[]> own;  // stands for the buffers of a transfer that has none
    std::byte* data = nullptr;         // the memory that the link works on, or that is encoded
    std::unique_ptr<CodedTransfer> coded;
    std::shared_ptr<link::SegmentLog> segments;  // null: nobody wants to know
    std::uint64_t first_request = 0;
    std::uint64_t requests = 0;  // all of them, or all second ones
    std::uint64_t completed = 0;
    bool has_time = false;  // a request has completed
    std::size_t stage = 0;  // the next one
    TimeUs began_us = 0;
  };
  struct Stage {
    Result<void> (Channel::*run)(InFlight&);
    trace::TransferStage name{};  // in traces; 0: too short to be shown
  };
  [[nodiscard]] static std::span<const Stage> stages_of(const Transfer& transfer);

  // Stages.
  Result<void> sum_workers(InFlight& entry);
  Result<void> gather_workers(InFlight& entry);
  Result<void> choose_source(InFlight& entry);
  Result<void> encode(InFlight& entry);
  Result<void> keep_for_replay(InFlight& entry);
  Result<void> submit(InFlight& entry);
  Result<void> decode(InFlight& entry);
  Result<void> copy_to_workers(InFlight& entry);

  void advance(const std::list<InFlight>::iterator& at);
  void report(const std::list<InFlight>::iterator& at);
  void fail_all(const Error& error);
  void use_own_memory(InFlight& entry) const;
  [[nodiscard]] std::span<std::byte> brought(const InFlight& entry) const;

  const std::string name_;
  const std::uint32_t node_;
  Report report_;
  link::Link* link_ = nullptr;
  BufferPool buffers_;
  std::list<InFlight> in_flight_;  // oldest first; a coded transfer points into its own entry
  std::uint64_t requests_ = 0;
  std::uint64_t encoded_ = 0;  // transfers
  TimeUs free_us_ = 0;         // when the last transfer ended
  TrafficMeter traffic_;
  CpuMeter cpu_{{{model::DaemonThread::kLink, 0, CLOCK_THREAD_CPUTIME_ID}}};
};

}  // namespace deft::daemon
