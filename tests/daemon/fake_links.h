// Drivers of links without a link, a network or a thread. The test says when a link opens and when a launch is done.
//
//   FakeDrivers drivers;
//   LinkSet links(..., [&](DriverRequest request) { return std::make_unique<FakeDriver>(drivers, std::move(request)); }, ...);
//   drivers.drivers[0]->opened();  drivers.drivers[0]->done(token);
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/node/link_set.h"

namespace deft::daemon {

struct FakeDriver;

struct FakeDrivers {
  std::vector<DriverRequest> made;
  std::vector<FakeDriver*> drivers;  // the newest of each link
  bool in_daemon = true;
  bool ends_at_once = true;
};

struct FakeDriver final : LinkDriver {
  FakeDriver(FakeDrivers& all, DriverRequest request) : all_(all), request_(std::move(request)) {
    if (all_.drivers.size() <= request_.link) all_.drivers.resize(request_.link + 1);
    all_.drivers[request_.link] = this;
  }
  ~FakeDriver() override {
    if (all_.drivers[request_.link] == this) all_.drivers[request_.link] = nullptr;
  }
  void start(const SubCommTask& launch) override {
    started.push_back(launch.number);
    transfers.push_back(request_.transfer_of(launch));
    records.push_back(request_.records_of(launch));
  }
  void abort(const std::string& reason) override { aborted = reason; }
  [[nodiscard]] bool finished() override { return !aborted.empty() && all_.ends_at_once; }
  Result<void> answered(std::size_t worker, std::uint64_t token) override {
    answers.emplace_back(worker, token);
    return {};
  }
  Result<void> waits(std::size_t worker, std::uint64_t token) override {
    waiting.emplace_back(worker, token);
    return {};
  }
  [[nodiscard]] std::uint64_t under_way_below(std::uint64_t number) const override {
    return std::min(number, under_way);
  }
  Result<void> moved(std::size_t worker, const shm::SegmentRecord& segment) override {
    segments.emplace_back(worker, segment.launch);
    return {};
  }
  [[nodiscard]] bool runs_in_daemon() const override { return all_.in_daemon; }

  void opened(Result<void> result = {}) { request_.on_open(std::move(result)); }
  void done(std::uint64_t token, std::size_t bytes = 64, Result<void> result = {}) {
    TransferDone done;
    done.token = token;
    done.bytes = bytes;
    done.busy_us = 10;
    done.result = std::move(result);
    request_.on_done(std::move(done));
  }
  void report(const TransferDone& done) { request_.on_done(done); }

  std::vector<std::uint64_t> started;
  std::vector<Transfer> transfers;
  std::vector<InProcessDriver::Records> records;
  std::vector<std::pair<std::size_t, std::uint64_t>> answers, waiting, segments;  // worker and launch
  std::uint64_t under_way = ~std::uint64_t{0};                                    // launches below it are
  std::string aborted;

 private:
  FakeDrivers& all_;
  DriverRequest request_;
};

}  // namespace deft::daemon
