// Drives a link that the workers run in their own processes: START records go to all workers of this node, and each
// worker answers every record by RAN.
//
// Every worker is a member of such a link, so the daemon has nothing to sum or to copy, and needs no thread. A launch is
// done when each worker has answered each of its records. A link that fails in a worker is reported over its socket.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <variant>
#include <vector>

#include "core/shm/layout.h"
#include "daemon/base/reactor.h"
#include "daemon/channel/link_driver.h"

namespace deft::daemon {

class InProcessDriver final : public LinkDriver {
 public:
  // The records of a launch: the same number for each worker, by local index. The driver fills in launch and link.
  using Start = std::variant<shm::StartRecord, shm::StartCollectiveRecord>;
  using Records = std::vector<std::vector<Start>>;
  using MakeRecords = std::function<Records(const SubCommTask&)>;
  using PutRecord = std::function<void(std::size_t worker, const shm::Record& record)>;

  // `link`: the number by which START and RAN name the link. `put_record` puts a record into a worker's completion ring.
  InProcessDriver(Reactor& reactor, std::uint32_t link, std::size_t workers, MakeRecords make_records,
                  PutRecord put_record, const OnOpen& on_open, OnDone on_done);

  void start(const SubCommTask& launch) override;
  void abort(const std::string& reason) override;
  [[nodiscard]] bool finished() override { return true; }
  Result<void> answered(std::size_t worker, std::uint64_t token) override;
  [[nodiscard]] bool runs_in_daemon() const override { return false; }

 private:
  struct Run {
    std::uint64_t token = 0;
    std::size_t bytes = 0;
    TimeUs started_us = 0;
    std::vector<std::size_t> owed;  // answers, by worker
  };
  void post(std::function<void()> callback);
  void finish_empty(std::uint64_t token);
  void finish(const std::deque<Run>::iterator& run);
  [[nodiscard]] static bool is_done(const Run& run);

  Reactor& reactor_;
  const std::uint32_t link_;
  const std::size_t workers_;
  MakeRecords make_records_;
  PutRecord put_record_;
  OnDone on_done_;
  std::shared_ptr<bool> alive_;  // reset by abort(): callbacks that are still posted do nothing
  std::deque<Run> runs_;
  TimeUs last_done_us_ = 0;  // a launch behind another one begins when that one ends
};

}  // namespace deft::daemon
