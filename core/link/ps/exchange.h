// A ps link's connections to all its servers, and the rounds that run over them.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "core/link/link.h"
#include "core/link/ps/connection.h"
#include "core/link/ps/spread.h"

namespace deft::link::ps_backend {

class Exchange {
 public:
  // Connects to all servers and waits until all nodes have done so.
  static Result<std::unique_ptr<Exchange>> connect(const LinkSpec& spec, const Group& group);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  [[nodiscard]] std::uint32_t nodes() const { return nodes_; }
  [[nodiscard]] Spread& spread() { return spread_; }

  // One operation: pushes its segments and takes their results, in place. After an error `data` is not touched any more
  // and all connections are closed. `shape` has dtype and op, where there are any.
  Result<void> round(std::byte* data, std::span<const Segment> segments, const Header& shape);

  // Makes the running and all later rounds fail; the peers learn it from the servers. Any thread.
  void abort();

 private:
  struct Lane {  // what goes through one server
    std::unique_ptr<Connection> connection;
    std::vector<std::uint32_t> segments;  // of this round, in order
    std::size_t sent = 0;
    std::size_t received = 0;
  };

  Exchange(std::uint32_t node, std::uint32_t nodes, std::size_t servers, int wake_fd);
  Result<void> open(const std::vector<std::string>& servers, const Group& group);
  Result<void> await_welcome(const Group& group);
  [[nodiscard]] Error not_welcome(const Connection& connection) const;
  Result<void> run(std::byte* data, std::span<const Segment> segments, const Header& shape);
  void push_what_fits(Lane& lane, std::byte* data, std::span<const Segment> segments, const Header& shape);
  Result<void> take_results(Lane& lane, std::byte* data, std::span<const Segment> segments);
  Result<void> look_after(Lane& lane, std::byte* data, std::span<const Segment> segments);
  void wait(TimeUs timeout_us);
  void close();
  void close_if_aborted();

  const std::uint32_t node_;
  const std::uint32_t nodes_;
  Spread spread_;
  const int wake_fd_;
  std::atomic<bool> aborted_{false};
  std::mutex in_use_;  // the connections: by a round, or by an abort between rounds
  std::unique_ptr<zmq::context_t> context_;
  std::vector<Lane> lanes_;  // by server
  std::uint64_t rounds_ = 0;
};

}  // namespace deft::link::ps_backend
