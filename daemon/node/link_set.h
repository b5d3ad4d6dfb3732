// A node's links in one view of a job: opens them, and runs the leader's launches on each in the leader's order.
//
//   LinkSet links(members, view, gradients, collectives, make_driver, events);
//   links.open();                                   // events.links_open() once all are open
//   if (links.take_number(n)) links.push(link, launch);
//   links.pump();                                   // after each event that may let a launch start
//
// A launch starts as soon as it is the first of its link and its data is here: a link is never idle while it has something to
// send, and never leaves the order. daemon/channel/link_queue.h is the state of one link, daemon/node/link_recovery.h replaces a
// link that is lost. Drivers come from outside, so a test needs no link and no thread. Reactor thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/base/status.h"
#include "core/shm/layout.h"
#include "daemon/channel/link_queue.h"
#include "daemon/node/launch_source.h"
#include "daemon/node/membership.h"
#include "daemon/node/view.h"

namespace deft::daemon {

class LinkEvents {  // the events of links that a job hears of
 public:
  virtual ~LinkEvents() = default;
  virtual void links_open() = 0;                                       // all of them; again after a replacement
  virtual void link_failed(std::size_t link, const Error& error) = 0;  // it cannot open, or broke
  virtual void progress_due() = 0;  // much is finished that the leader has not heard of
  // A launch is done; the workers are told.
  virtual void transferred(std::size_t link, const SubCommTask& launch, const TransferDone& done) = 0;
  virtual void failed(const Error& error) = 0;  // the job cannot go on
  // Whether a transfer that begins now is to tell of its segments.
  [[nodiscard]] virtual bool wants_segments() const { return false; }
};

// The parameters of a new driver of a link.
struct DriverRequest {
  std::uint32_t link = 0;
  link::LinkSpec spec;      // whose NIC or servers it uses
  std::uint32_t epoch = 0;  // 0: the link itself; else its replacements so far
  std::function<Transfer(const SubCommTask&)> transfer_of;
  std::function<InProcessDriver::Records(const SubCommTask&)> records_of;
  LinkDriver::OnOpen on_open;
  LinkDriver::OnDone on_done;
};

class LinkSet {
 public:
  static constexpr std::size_t kStartedAhead = 5;  // launches given to a driver, so that it never waits for the reactor
  static constexpr std::uint64_t kTellEveryBytes = 4ULL << 20;  // finished on a link: events.progress_due()

  using MakeDriver = std::function<std::unique_ptr<LinkDriver>(DriverRequest)>;

  // All references outlive this object.
  LinkSet(const Membership& members, std::shared_ptr<const View> view, LaunchSource& gradients,
          LaunchSource& collectives, MakeDriver make_driver, LinkEvents& events);

  // Opens each link in the background. An exception of a driver (no thread, no memory) fails the job.
  void open();
  // Opens `link` again over the NIC or servers of the link `over`, and runs its launches there.
  void reopen(std::size_t link, std::size_t over);

  // Launches of all links have one count. kInternal if `number` is not the next.
  Result<void> take_number(std::uint64_t number);
  void push(std::size_t link, SubCommTask launch) { queues_[link].waiting.push_back(std::move(launch)); }
  void pump();
  // Takes what workers tell of a link that they run. kViolation if this is none.
  Result<LinkDriver*> driver_of_workers(std::uint32_t link);

  void abort(const std::string& reason);  // nothing is reported afterwards
  [[nodiscard]] bool finished();          // after abort: no link uses memory any more
  // True if the job can go on without this link: another one that the daemons run is left.
  [[nodiscard]] bool can_remove(std::size_t link) const;

  [[nodiscard]] std::uint64_t next_number() const { return next_number_; }
  [[nodiscard]] std::vector<LinkQueue>& queues() { return queues_; }
  [[nodiscard]] const std::vector<LinkQueue>& queues() const { return queues_; }
  [[nodiscard]] nlohmann::json status() const;

 private:
  void pump(std::size_t link);
  void on_open(std::size_t link, const Result<void>& result);
  void on_done(std::size_t link, const TransferDone& done);
  [[nodiscard]] Transfer transfer_of(const SubCommTask& launch) const;
  [[nodiscard]] InProcessDriver::Records records_of(const SubCommTask& launch) const;
  [[nodiscard]] LaunchSource& source_of(const SubCommTask& launch) const {
    return launch.is_collective ? collectives_ : gradients_;
  }

  const Membership& members_;
  std::shared_ptr<const View> view_;
  LaunchSource& gradients_;
  LaunchSource& collectives_;
  MakeDriver make_driver_;
  LinkEvents& events_;
  std::vector<LinkQueue> queues_;
  std::uint64_t next_number_ = 0;
};

}  // namespace deft::daemon
