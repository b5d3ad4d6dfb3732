// Runs the requests of one mesh. Two threads wait for peers, because gloo's waits cannot be interrupted. One adds segments and
// sends results. The other collects results and blocks, and sends the segments for which slots are free again. So neither
// waits for work that the other one could do, and the caller can start a request while older ones are in flight.
//
// Requests that reduce are cut into segments (core/link/segmented.h). In an all-gather or broadcast, every node
// sends its block straight into the memory of all others (block_exchange.h).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/link/gloo/block_exchange.h"
#include "core/link/gloo/mesh.h"
#include "core/link/gloo/transport.h"
#include "core/link/thread_clocks.h"
#include "core/link/work_request.h"

namespace deft::link::gloo_backend {

// Tells the thread that waits for completions that there may be one. Any thread.
class News {
 public:
  void raise();
  [[nodiscard]] std::uint64_t count();
  void await_beyond(std::uint64_t known);  // until raise() was called more often than `known` times

 private:
  std::mutex mutex_;
  std::condition_variable raised_;
  std::uint64_t count_ = 0;
};

class Engine {
 public:
  static constexpr std::size_t kDepth = 3;  // requests in flight

  // `news` is raised when a request has ended or the mesh has failed.
  Engine(Mesh& mesh, News& news);
  ~Engine();  // nothing is in flight, or the mesh is poisoned

  // One thread calls these. There may be kDepth requests in flight; requests end in the order of their start. Both throw a
  // PeerFailure if gloo has failed. After that the mesh must be poisoned and halt() called; then no data is touched.
  void start(const WorkRequest& request);
  [[nodiscard]] std::optional<std::uint64_t> take_ended();  // the id of the oldest request, if it has ended
  void halt();
  // Adds the clocks of both threads, if they run. `number`: of this engine among the link's. The same thread.
  void add_thread_clocks(std::vector<ThreadClock>& clocks, std::uint16_t number);

 private:
  struct InFlight {
    std::uint64_t id = 0;
    std::optional<Segmented> segmented;       // of an all-reduce or reduce-scatter
    Transport::Peers peers;                   // its buffers
    std::unique_ptr<BlockExchange> exchange;  // of an all-gather or broadcast
    bool reduced = false;                     // and all results have been sent
    bool ended = false;                       // nothing of it is in flight any more

    [[nodiscard]] bool needs_reducer() const { return exchange == nullptr; }
    [[nodiscard]] bool needs_collector() const { return exchange != nullptr || !segmented->whole; }
  };

  // Shared with the threads. Only the caller adds and removes entries; entries that are not ended stay where they are.
  struct State {
    std::deque<InFlight> in_flight;
    std::uint64_t finished = 0;        // entries that were removed
    std::uint64_t started_rounds = 0;  // of all requests
    std::uint64_t acknowledged = 0;    // rounds whose results have all come
    std::optional<PeerFailure> failure;
    bool halted = false;
  };

  void begin(InFlight& entry);
  void fill_window();

  void run(std::condition_variable& work, bool (InFlight::*needs)() const, void (Engine::*handle)(InFlight&));
  void end_by(const PeerFailure& failure);
  [[nodiscard]] bool is_over() const { return state_.failure || state_.halted; }  // for the threads
  InFlight* await_entry(std::uint64_t& next, std::condition_variable& work, bool (InFlight::*needs)() const);
  void end(InFlight& entry);
  void reduce_entry(InFlight& entry);
  void collect_entry(InFlight& entry);
  void own(const InFlight& entry, Range mine, std::uint64_t round);

  Mesh& mesh_;
  News& news_;
  Transport transport_;
  std::uint64_t started_whole_ = 0;  // these two are the caller's, and the same on all nodes
  std::uint64_t started_exchanges_ = 0;

  std::mutex mutex_;  // guards state_
  std::condition_variable to_reduce_, to_collect_;
  State state_;

  std::thread reducing_;
  std::thread collecting_;
};

}  // namespace deft::link::gloo_backend
