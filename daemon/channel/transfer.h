// The work of a node for one launch on a link, and its result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/ipc/messages.h"
#include "core/link/segment_log.h"
#include "core/link/traffic.h"
#include "core/model/buckets.h"
#include "core/model/daemon_thread.h"
#include "core/model/dtype.h"
#include "core/shm/segment.h"
#include "core/trace/record.h"
#include "daemon/channel/coding.h"

namespace deft::daemon {

// A copy of what this node brings to a transfer. If the link is lost, another link replays the transfer from it. The
// channel's thread fills it; the reactor reads it when that thread has ended or the transfer is done.
struct ReplayBuffer {
  // Memory for `count` bytes. A buffer that an earlier launch has used takes new memory only if it is too small.
  std::byte* make_room(std::size_t count) {
    if (count > capacity) {
      data = std::make_unique_for_overwrite<std::byte[]>(count);
      capacity = count;
    }
    bytes = count;
    return data.get();
  }
  // Before another launch takes it.
  void clear() { bytes = 0, filled = is_decoded = has_second = took_residuals = false; }

  // all-reduce and reduce-scatter: the sum over the local workers; its all-gather: the share of this node; broadcast: the root's
  // data; all-gather: this node's block
  std::unique_ptr<std::byte[]> data;
  std::size_t capacity = 0;
  std::size_t bytes = 0;
  bool filled = false;
  bool is_decoded = false;      // an encoded transfer's result is in the arena, and its residuals are booked
  bool took_residuals = false;  // of an encoded transfer: what is kept may have residuals in it
  bool has_second = false;      // of an encoded transfer: also the content of its second requests, see coded_transfer.h
};

// A collective over the buffers of this node's workers and over the other nodes.
struct Transfer {
  std::uint64_t token = 0;  // the caller's, returned in TransferDone
  ipc::Collective collective = ipc::Collective::kAllReduce;
  // One buffer for each local worker. Empty in a replay for the other nodes' sake, whose result this node has already: then
  // the channel works on memory of its own, which it fills from `replay_buffer`.
  std::vector<std::byte*> buffers;
  std::vector<std::shared_ptr<const shm::Segment>> keep;  // stay mapped until the transfer is done, whatever happens
  std::size_t count = 0;                                  // elements (all-reduce, broadcast)
  model::DType dtype = model::DType::kFloat32;
  model::ReduceOp op = model::ReduceOp::kSum;
  std::shared_ptr<const Codings> codings;  // null: it travels as it is. Only sums of float32 and halves have them
  model::AllReduceHalf half = model::AllReduceHalf::kBoth;  // of an all-reduce. Its halves have no codings
  std::uint32_t priority = 0;                               // 0 goes first, see link::WorkRequest
  std::uint32_t root_node = 0;
  std::size_t root_local = 0;            // local index of the root, on its node
  std::vector<std::size_t> node_bytes;   // all-gather: the block of each node
  std::vector<std::size_t> local_bytes;  // all-gather: the block of each local worker
  // Null: the transfer cannot be replayed. If it is filled already, its content is sent in place of the workers' data.
  std::shared_ptr<ReplayBuffer> replay_buffer;
  bool tells_segments = false;  // TransferDone::segments is wanted
};

// When a stage of a transfer began and ended.
struct StageSpan {
  trace::TransferStage stage{};
  TimeUs begin_us = 0;
  TimeUs end_us = 0;
};

// Processor time that threads of the daemon have used between two moments.
struct ThreadTime {
  model::DaemonThread thread{};
  std::uint16_t number = 0;
  TimeUs cpu_us = 0;
};
struct CpuTimes {
  TimeUs since_us = 0, until_us = 0;
  std::vector<ThreadTime> threads = {};
};

struct TransferDone {
  std::uint64_t token = 0;
  Result<void> result;
  TimeUs busy_us = 0;  // the local sum, the link and the local copies, from the end of the previous transfer
  // Time on the link, from the end of the previous transfer. Empty if this transfer overtook others.
  std::optional<TimeUs> link_us = 0;
  bool overlapped = false;            // it shared the link with another transfer
  std::size_t bytes = 0;              // of the data
  std::size_t wire_bytes = 0;         // that this node brought to the link, encoded
  std::vector<StageSpan> spans = {};  // of its stages, in order
  // Now and then: the bytes that the link has carried in [traffic_since_us, now], by peer.
  std::vector<link::PeerTraffic> traffic = {};
  TimeUs traffic_since_us = 0;
  CpuTimes cpu = {};                                      // now and then: of the link's threads
  CodecLoss codec_loss = {};                              // now and then: of codecs with error feedback
  std::shared_ptr<const link::SegmentLog> segments = {};  // null: nobody wanted to know
};

// One launch: a part of a bucket, of several buckets that lie in one piece, or a collective.
struct SubCommTask {
  std::uint64_t number = 0;
  bool is_collective = false;
  std::string collective;  // its name
  std::uint32_t group = 0;
  model::BucketIndex bucket = 0;
  std::uint64_t generation = 0, offset = 0, bytes = 0;
  std::uint32_t priority = 0;  // see link::WorkRequest
  model::AllReduceHalf half = model::AllReduceHalf::kBoth;
  std::shared_ptr<const Codings> codings;       // null: it travels as it is
  std::shared_ptr<ReplayBuffer> replay_buffer;  // null: it cannot be replayed
  bool runs_again = false;                      // a link that it was given to was lost, perhaps after it had encoded it
  std::optional<Transfer> replay;  // set if it is done here: the transfer that a replay runs, without buffers
};

}  // namespace deft::daemon
