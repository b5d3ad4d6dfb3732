// Lets the thread of a gloo device sleep until something comes. gloo's own loop wakes a hundred times a second, and looks whether it
// shall end.
//
//   const SleepingLoop loop(*device);   // while the device has no descriptors: when this returns, its thread sleeps
//   ...                                 // pairs register theirs, and are served
//   loop.wake();                        // before a descriptor leaves the device, and before the device goes
//
// gloo's thread calls a handler of ours, and the handler runs the loop in its place. Whoever takes a descriptor out of the device waits for
// the next turn of gloo's own loop, so the handler returns first: for good, because then a connection, and with it the link, has ended.
// If the descriptor of gloo's loop cannot be found (watching_epoll.h), gloo's own loop serves all the time.
#pragma once

#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/loop.h>

#include <atomic>
#include <optional>

#include "core/base/descriptor.h"

namespace deft::link::gloo_backend {

class SleepingLoop final : public gloo::transport::tcp::Handler {
 public:
  // Throws, as gloo does, if there are no descriptors. This object outlives the device.
  explicit SleepingLoop(gloo::transport::tcp::Device& device);
  SleepingLoop(const SleepingLoop&) = delete;
  SleepingLoop& operator=(const SleepingLoop&) = delete;

  void wake();  // any thread

 private:
  void handleEvents(int events) override;
  [[nodiscard]] std::optional<int> epoll_of(gloo::transport::tcp::Device& device);
  static void serve(int loop);
  void ring();

  const Descriptor bell_;          // an eventfd: the handler begins, or ends
  const std::optional<int> loop_;  // gloo's epoll descriptor
  std::atomic<bool> began_{false};
  std::atomic<bool> is_awake_{false};
};

}  // namespace deft::link::gloo_backend
