// What an executor is given and what it gives back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/ipc/messages.h"
#include "core/model/dtype.h"
#include "core/shm/segment.h"

namespace deft::daemon {

// What this node brings to a transfer, kept so that another link can run it again. The executor's thread fills it in, and
// nobody looks before that has ended or the transfer is done.
struct Contribution {
  // all-reduce: the sum of the local workers; broadcast: the root's; all-gather: the block
  std::unique_ptr<std::byte[]> data;
  std::size_t bytes = 0;
  bool taken = false;
};

struct Transfer {
  std::uint64_t token = 0;  // the caller's, returned in TransferDone
  ipc::Collective collective = ipc::Collective::kAllReduce;
  // Of the local workers, by local index. None of a transfer whose result this node has had already: it is run again for
  // the others' sake, with `contribution`, on memory of the executor's own.
  std::vector<std::byte*> buffers;
  std::vector<std::shared_ptr<const shm::Segment>> keep;  // mapped until the transfer is done, whatever happens
  std::size_t count = 0;                                  // elements (all-reduce, broadcast)
  model::DType dtype = model::DType::kFloat32;
  model::ReduceOp op = model::ReduceOp::kSum;
  std::uint32_t urgency = 0;  // all-reduce: 0 may pass all others, see link::Link
  std::uint32_t root_node = 0;
  std::size_t root_local = 0;            // local index of the root, on its node
  std::vector<std::size_t> node_bytes;   // all-gather: block of each node
  std::vector<std::size_t> local_bytes;  // all-gather: block of each local worker
  // Filled in before the link begins; used instead where it was taken before.
  std::shared_ptr<Contribution> contribution;
};

struct TransferDone {
  std::uint64_t token = 0;
  Result<void> result;
  TimeUs busy_us = 0;  // of the local sum, the link and the local copies; not what the one that ended before took
  // In the link, from when the one that ended before it had ended there; none where it passed others.
  std::optional<TimeUs> link_us = 0;
  bool overlapped = false;  // it shared the link with another one
  std::size_t bytes = 0;    // that crossed the link
};

}  // namespace deft::daemon
