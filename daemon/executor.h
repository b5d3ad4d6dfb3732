// A link's executor: one thread that opens the link and runs its transfers in the order given.
//
// A transfer reduces the buffers of this node's workers into the first one, runs the collective between nodes on it, and
// copies the result to the others. Where the link can have several all-reduces under way, the next ones are started before
// the oldest one is waited for. On a job of one node there is no link and the executor does the local part alone. Results
// are posted to the reactor as they come: in order, but that a link may let an urgent one pass. The destructor aborts the
// link and waits for the thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/ipc/messages.h"
#include "core/link/link.h"
#include "core/model/dtype.h"
#include "core/shm/segment.h"
#include "daemon/reactor.h"

namespace deft::daemon {

// What this node brings to a transfer, kept so that another link can run it again. The executor's thread fills it in, and
// nobody looks before that has ended or the transfer is done.
struct Contribution {
  std::unique_ptr<std::byte[]>
      data;  // all-reduce: the sum of the local workers; broadcast: the root's; all-gather: the block
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
  std::shared_ptr<Contribution>
      contribution;  // filled in before the link begins; used instead where it was taken before
};

struct TransferDone {
  std::uint64_t token = 0;
  Result<void> result;
  TimeUs busy_us = 0;       // of the local sum, the link and the local copies; not what the one that ended before took
  TimeUs link_us = 0;       // in the link, from when the one that ended before it had ended there
  bool overlapped = false;  // it shared the link with another one
  std::size_t bytes = 0;    // that crossed the link
};

class Executor {
 public:
  using Open = std::function<Result<std::unique_ptr<link::Link>>()>;  // runs on the thread; a null link: one node
  using OnOpen = std::function<void(Result<void>)>;                   // on the reactor
  using OnDone = std::function<void(TransferDone)>;                   // on the reactor

  Executor(Reactor& reactor, std::string name, std::uint32_t node, Open open, OnOpen on_open, OnDone on_done);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  void push(Transfer transfer);
  void abort(const std::string& reason);  // the running and all queued transfers fail; nothing is posted afterwards
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] bool finished();  // after abort: the thread has ended, so that the destructor does not wait

 private:
  struct Shared;
  struct Flight {  // a transfer that was started
    Transfer transfer;
    TransferDone done;
    std::unique_ptr<std::byte[]> own;  // stands for the buffers of a transfer that has none
    TimeUs began_us = 0;               // its local sum
    TimeUs link_began_us = 0;          // 0: nothing of it is under way in the link
  };

  void run();
  bool open_link();
  std::optional<Transfer> next();
  void start(Transfer transfer);
  void finish_next();
  void report(std::size_t place, Result<void> result);
  void use_own_memory(Flight& flight) const;
  [[nodiscard]] std::size_t own_offset(const Transfer& transfer) const;
  Result<void> start_all_reduce(Flight& flight);
  Result<void> run_broadcast(const Transfer& transfer, TransferDone& done);
  Result<void> run_all_gather(const Transfer& transfer, TransferDone& done);
  void post(std::function<void()> callback);

  Reactor& reactor_;
  const std::string name_;
  const std::uint32_t node_;
  Open open_;
  OnOpen on_open_;
  OnDone on_done_;
  std::unique_ptr<link::Link> link_;  // set by the thread before it takes transfers
  std::deque<Flight> flights_;        // the thread's, as is what follows
  TimeUs link_free_us_ = 0;           // when the last transfer ended in the link
  TimeUs free_us_ = 0;                // and altogether
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace deft::daemon
