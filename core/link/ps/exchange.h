// A ps link's connections to all its servers, and the rounds that run over them: the pushes of the most urgent operation go
// first, of equals those of the oldest, while results of all of them come.
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

#include "core/link/link.h"
#include "core/link/ps/connection.h"
#include "core/link/ps/spread.h"
#include "core/link/ps/urgency.h"

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

  // Begins an operation: pushes as many of its segments as the servers have room for. `shape` has urgency, and dtype and op
  // where there are any. finish() takes the results of the oldest one that is under way, in place, and pushes on for all
  // others meanwhile; finish_next() those of the first that may end (see urgency.h), and gives its place among those under
  // way, or nothing after a wake(). After an error of any of them no data is touched any more and all connections are closed.
  Result<void> start(std::byte* data, std::vector<Segment> segments, const Header& shape);
  Result<void> finish();
  Result<std::optional<std::size_t>> finish_next();

  // Any thread.
  void wake();

  // Makes the rounds under way and all later ones fail; the peers learn it from the servers. Any thread.
  void abort();
  // The same; when it returns no data is touched any more. The thread that starts and finishes.
  void end();

 private:
  struct Round {
    std::byte* data = nullptr;
    std::vector<Segment> segments;
    Header header;            // of its pushes
    std::size_t missing = 0;  // results
    std::vector<bool> asked;  // by segment: pushed and not answered
  };
  struct Lane {  // what goes through one server
    std::uint32_t server = 0;
    std::unique_ptr<Connection> connection;
    std::vector<Share> shares;  // of each round under way
  };

  Exchange(std::uint32_t node, std::uint32_t nodes, std::size_t servers, int wake_fd);
  Result<void> open(const std::vector<std::string>& servers, const Group& group);
  Result<void> await_welcome(const Group& group);
  [[nodiscard]] Error not_welcome(const Connection& connection) const;
  template <typename Work>
  Result<void> guarded(Work work);
  template <typename Which>
  Result<void> finish_one(Which which);
  void end_round(std::size_t place);
  Result<void> move_on();
  void push_what_fits(Lane& lane);
  Result<void> take_results(Lane& lane);
  bool take(Lane& lane, const Connection::Message& message);
  Result<void> look_after(Lane& lane);
  void wait(TimeUs timeout_us);
  void close();
  void close_if_aborted();

  const std::uint32_t node_;
  const std::uint32_t nodes_;
  Spread spread_;
  const int wake_fd_;
  std::atomic<bool> aborted_{false};
  std::atomic<bool> woken_{false};
  std::mutex in_use_;  // the connections: by start or finish, or by an abort between them
  std::unique_ptr<zmq::context_t> context_;
  std::vector<Lane> lanes_;   // by server
  std::deque<Round> rounds_;  // under way, oldest first
  std::uint64_t started_ = 0;
};

}  // namespace deft::link::ps_backend
