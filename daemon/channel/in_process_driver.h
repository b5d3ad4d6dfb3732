// Drives a link that the workers run in their own processes: START records go to all workers of this node, and each
// worker answers every record by RAN.
//
// Every worker is a member of such a link, so the daemon has nothing to sum or to copy, and needs no thread. A launch is
// done when each worker has answered each of its records. A link that fails in a worker is reported over its socket. Whether a launch is
// under way only the workers know: one may be stopped. Some links (nccl) let them say so.
// A trace wants to know what nodes send each other: if a record asks for it, workers tell of each such move before they answer.
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

  // Who runs the link.
  struct Members {
    std::uint32_t node = 0;                   // this one
    std::vector<std::uint32_t> ranks;         // of the local workers, by local index
    std::vector<std::uint32_t> node_of_rank;  // of all
  };

  // `reactor` outlives this object. `link`: the number by which START and RAN name the link. `put_record` puts a record into a worker's
  // completion ring.
  InProcessDriver(Reactor& reactor, std::uint32_t link, Members members, MakeRecords make_records, PutRecord put_record,
                  const OnOpen& on_open, OnDone on_done);

  void start(const SubCommTask& launch) override;
  void abort(const std::string& reason) override;
  [[nodiscard]] bool finished() override { return true; }
  Result<void> answered(std::size_t worker, std::uint64_t token) override;
  Result<void> waits(std::size_t worker, std::uint64_t token) override;
  // A launch is under way while each worker that owes an answer has said within kFreshUs that it waits for others.
  static constexpr TimeUs kFreshUs = 1'000'000;
  [[nodiscard]] std::uint64_t under_way_below(std::uint64_t number) const override;
  Result<void> moved(std::size_t worker, const shm::SegmentRecord& segment) override;
  [[nodiscard]] bool runs_in_daemon() const override { return false; }

 private:
  struct Run {
    std::uint64_t token = 0;
    std::size_t bytes = 0;
    TimeUs started_us = 0;
    std::vector<std::size_t> records;            // by worker
    std::vector<std::size_t> owed;               // answers, by worker
    std::vector<TimeUs> waits_us;                // when it last said that it waits, by worker
    std::shared_ptr<link::SegmentLog> segments;  // null: nobody wants to know
  };
  void post(std::function<void()> callback);
  Run prepare(const SubCommTask& launch, const Records& records) const;
  void finish_empty(std::uint64_t token);
  void finish(const std::deque<Run>::iterator& run);
  [[nodiscard]] static bool is_done(const Run& run);

  Reactor& reactor_;
  const std::uint32_t link_;
  const Members members_;
  MakeRecords make_records_;
  PutRecord put_record_;
  OnDone on_done_;
  std::shared_ptr<bool> alive_;  // reset by abort(): callbacks that are still posted do nothing
  std::deque<Run> runs_;
  TimeUs last_done_us_ = 0;  // a launch behind another one begins when that one ends
};

}  // namespace deft::daemon
