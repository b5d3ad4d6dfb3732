// Runs the requests of a ps link over its connections to all servers. Each request is a round. The pushes of the most urgent
// round go first, of equals those of the oldest, while results of all rounds come.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "core/base/descriptor.h"
#include "core/link/link.h"
#include "core/link/ps/connection.h"
#include "core/link/ps/priority.h"
#include "core/link/ps/segmenter.h"
#include "core/link/ps/server_load.h"
#include "core/link/traffic.h"

namespace deft::link::ps_backend {

class Engine {
 public:
  // Connects to all servers and waits until all nodes have done so.
  static Result<std::unique_ptr<Engine>> connect(const LinkSpec& spec, const LinkGroup& group);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  [[nodiscard]] Segmenter& segmenter() { return segmenter_; }

  // Begins a request: pushes as many of its segments as the servers have room for. await() takes results, in place, and pushes
  // on for all requests, until one may end (see priority.h), and gives its id; or nothing after an interrupt(). While nothing is in flight,
  // it takes what servers send unasked, and gives nothing at once. After an error of either no data is touched any more and all
  // connections are closed. Either runs the owner's stage of encoded elements.
  Result<void> start(const WorkRequest& request, std::vector<PsSegment> segments);
  Result<std::optional<std::uint64_t>> await();

  // A row for each server. Only the thread that starts and finishes may call it.
  [[nodiscard]] std::vector<PeerTraffic> traffic();

  // Any thread.
  void interrupt();

  // Makes all rounds in flight and all later ones fail; the peers learn it from the servers. Any thread.
  void abort();
  // The same; when it returns no data is touched any more. The thread that starts and finishes.
  void end();

 private:
  struct Round {
    WorkRequest request;
    std::vector<PsSegment> segments;
    PsHeader header;               // of its pushes
    std::size_t missing = 0;       // results
    std::vector<TimeUs> asked_us;  // by segment: pushed then and not answered; 0: not so
  };
  struct Route {  // the traffic through one server
    std::uint32_t server = 0;
    std::unique_ptr<ServerConnection> connection;
    std::vector<Share> shares;  // of each round in flight
    ServerLoad load = {};
  };

  Engine(std::uint32_t node, std::uint32_t nodes, std::size_t servers, Descriptor wake);
  Result<void> open(const std::vector<std::string>& servers, const LinkGroup& group, const Secret& secret);
  Result<void> await_welcome(const LinkGroup& group);
  template <typename Work>
  Result<void> guarded(Work work);
  void end_round(std::size_t place);
  Result<void> move_on();
  Result<void> push_what_fits(Route& route);
  Result<void> take_results(Route& route);
  bool take(Route& route, const ServerConnection::Message& message);
  Result<void> look_after(Route& route);
  void wait(TimeUs timeout_us);
  void close();
  void close_if_aborted();

  const std::uint32_t node_;
  const std::uint32_t nodes_;
  Segmenter segmenter_;
  const Descriptor wake_;  // an eventfd
  std::atomic<bool> aborted_{false};
  std::atomic<bool> interrupted_{false};
  std::mutex in_use_;  // the connections: by start or finish, or by an abort between them
  std::unique_ptr<zmq::context_t> context_;
  std::vector<Route> routes_;  // by server
  std::deque<Round> rounds_;   // in flight, oldest first
  std::uint64_t started_ = 0;
};

}  // namespace deft::link::ps_backend
