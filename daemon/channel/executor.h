// A link's executor: the threads that open the link and run its transfers in the order given.
//
// A transfer reduces the buffers of this node's workers into the first one, runs the collective between nodes on it, and
// copies the result to the others (daemon/channel/lane.h). Where the link has an express way, small all-reduces go there, on a
// thread of their own, and pass what is on its way; which ones depends on their size alone, so all nodes agree. On a job of
// one node there is no link and the executor does the local part alone. Results are posted to the reactor as they come: in
// order, but for those that pass others. The destructor aborts the link and waits for the threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "core/link/link.h"
#include "daemon/base/reactor.h"
#include "daemon/channel/lane.h"
#include "daemon/channel/transfer.h"

namespace deft::daemon {

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
  [[nodiscard]] bool finished();  // after abort: the threads have ended, so that the destructor does not wait

 private:
  struct Shared;

  void run();
  bool open_link();
  void work(Lane& lane);
  std::optional<Transfer> next(Lane& lane);
  [[nodiscard]] bool belongs_to(const Lane& lane, const Transfer& transfer) const;
  void post(std::function<void()> callback);
  void tell(TransferDone done);

  Reactor& reactor_;
  const std::string name_;
  Open open_;
  OnOpen on_open_;
  OnDone on_done_;
  std::unique_ptr<link::Link> link_;  // set by the thread before any lane takes transfers
  Lane lane_;
  Lane express_lane_;
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace deft::daemon
