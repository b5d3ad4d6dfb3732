// A ps link's connections to all its servers, and the rounds that run over them: an operation's pushes go behind those of
// the operations before it, while results of all of them come.
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

  // Begins an operation: pushes as many of its segments as the servers have room for. `shape` has dtype and op, where
  // there are any. finish() takes the results of the oldest one that is under way, in place, and pushes on for all others
  // meanwhile. After an error of either no data is touched any more and all connections are closed.
  Result<void> start(std::byte* data, std::vector<Segment> segments, const Header& shape);
  Result<void> finish();

  // Makes the rounds under way and all later ones fail; the peers learn it from the servers. Any thread.
  void abort();

 private:
  struct Round {
    std::byte* data = nullptr;
    std::vector<Segment> segments;
    Header header;            // of its pushes
    std::size_t missing = 0;  // results
  };
  struct Piece {
    Round* round = nullptr;
    std::uint32_t segment = 0;
  };
  struct Lane {  // what goes through one server
    std::unique_ptr<Connection> connection;
    std::deque<Piece> pieces;  // without a result so far, in order
    std::size_t pushed = 0;    // the first of them
  };

  Exchange(std::uint32_t node, std::uint32_t nodes, std::size_t servers, int wake_fd);
  Result<void> open(const std::vector<std::string>& servers, const Group& group);
  Result<void> await_welcome(const Group& group);
  [[nodiscard]] Error not_welcome(const Connection& connection) const;
  template <typename Work>
  Result<void> guarded(Work work);
  Result<void> move_on();
  void push_what_fits(Lane& lane);
  Result<void> take_results(Lane& lane);
  Result<void> look_after(Lane& lane);
  void wait(TimeUs timeout_us);
  void close();
  void close_if_aborted();

  const std::uint32_t node_;
  const std::uint32_t nodes_;
  Spread spread_;
  const int wake_fd_;
  std::atomic<bool> aborted_{false};
  std::mutex in_use_;  // the connections: by start or finish, or by an abort between them
  std::unique_ptr<zmq::context_t> context_;
  std::vector<Lane> lanes_;   // by server
  std::deque<Round> rounds_;  // under way, oldest first
  std::uint64_t started_ = 0;
};

}  // namespace deft::link::ps_backend
