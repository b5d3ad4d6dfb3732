// gloo's TCP pairs over connections that we made ourselves, so that gloo never sees a stranger's.
//
//   auto context = std::make_shared<GuardedContext>(device, node, nodes);
//   context->createPair(peer);
//   context->adopt(peer, socket.release(), wire);   // connected, and proved by core/link/peer_sockets.h
//
// A pair of gloo's listens by itself and takes the first connection for its peer. And what gloo throws while it reads, for instance at
// a preamble that makes no sense, ends the process, because its loop's thread catches nothing. A guarded pair does not listen. If
// gloo throws in it, only that pair fails. When its connection ends, also the buffers hear of it of which a part has come or
// gone: their waits give false.
#pragma once

#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>

#include <atomic>
#include <ctime>
#include <memory>
#include <optional>

#include "core/link/gloo/sleeping_loop.h"

namespace deft::link::gloo_backend {

class GuardedContext final : public gloo::transport::tcp::Context {
 public:
  GuardedContext(const std::shared_ptr<gloo::transport::tcp::Device>& device, int node, int nodes)
      : Context(device, node, nodes) {}
  ~GuardedContext() override { pairs_.clear(); }  // while what they tell of is there

  std::unique_ptr<gloo::transport::Pair>& createPair(int peer) override;
  // The pair owns the socket from now on, and is connected. `wire` is the TCP socket, whose addresses gloo names: the same one, or the
  // one that `socket` leads to. May throw, as gloo does.
  void adopt(int peer, int socket, int wire);

  // The processor time of the loop's thread, which gloo hands out to nobody. Nothing before its first event. Any thread.
  [[nodiscard]] std::optional<clockid_t> loop_clock() const {
    const clockid_t clock = loop_clock_.load(std::memory_order_relaxed);
    return clock == kUnknownClock ? std::nullopt : std::optional(clock);
  }
  // The loop's thread calls it.
  void note_loop();

  // `loop` serves the device and outlives this context. Before pairs are adopted.
  void serve_by(SleepingLoop& loop) { loop_ = &loop; }
  // Before a pair leaves the loop. Any thread.
  void wake_loop() {
    if (loop_ != nullptr) loop_->wake();
  }

 private:
  static constexpr clockid_t kUnknownClock = CLOCK_PROCESS_CPUTIME_ID;  // the clock of no thread
  std::atomic<clockid_t> loop_clock_{kUnknownClock};
  SleepingLoop* loop_ = nullptr;
};

}  // namespace deft::link::gloo_backend
