// Drives a link that the daemon owns: a thread opens the link and runs its transfers in the order given (channel.h).
//
// On a job of one node there is no link, and the driver does the local stages alone. Results are posted to the reactor as
// they come; a link may let urgent or small transfers overtake others. The destructor aborts the link and waits for the
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "core/link/link.h"
#include "daemon/base/reactor.h"
#include "daemon/channel/channel.h"
#include "daemon/channel/link_driver.h"

namespace deft::daemon {

class DaemonDriver final : public LinkDriver {
 public:
  using Open = std::function<Result<std::unique_ptr<link::Link>>()>;  // runs on the thread; a null link: one node
  using MakeTransfer = std::function<Transfer(const SubCommTask&)>;   // on the reactor

  // `reactor` outlives this object.
  DaemonDriver(Reactor& reactor, std::string name, std::uint32_t node, Open open, MakeTransfer make_transfer,
               OnOpen on_open, OnDone on_done);
  ~DaemonDriver() override;
  DaemonDriver(const DaemonDriver&) = delete;
  DaemonDriver& operator=(const DaemonDriver&) = delete;

  void start(const SubCommTask& launch) override { push(make_transfer_(launch)); }
  void push(Transfer transfer);
  void abort(const std::string& reason) override;
  [[nodiscard]] bool finished() override;
  Result<void> answered(std::size_t worker, std::uint64_t token) override;
  Result<void> waits(std::size_t worker, std::uint64_t token) override;
  [[nodiscard]] std::uint64_t under_way_below(std::uint64_t number) const override { return number; }
  Result<void> moved(std::size_t worker, const shm::SegmentRecord& segment) override;
  [[nodiscard]] bool runs_in_daemon() const override { return true; }

 private:
  struct Shared;

  void run();
  void run_link();  // until an abort; may throw
  bool open_link();
  // An exception of the thread fails the job, and not the daemon.
  void guarded(const std::function<void()>& body);
  std::optional<Transfer> next();
  void await_transfer(std::unique_lock<std::mutex>& lock);
  void post(std::function<void()> callback);

  Reactor& reactor_;
  const OwnerRef owner_;  // the job: who fails when a posted callback throws
  const std::string name_;
  Open open_;
  MakeTransfer make_transfer_;
  OnOpen on_open_;
  OnDone on_done_;
  std::unique_ptr<link::Link> link_;  // the thread's
  Channel channel_;                   // the thread's
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace deft::daemon
