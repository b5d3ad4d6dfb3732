#include "core/link/gloo/sleeping_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <system_error>

#include "core/link/gloo/watching_epoll.h"

namespace deft::link::gloo_backend {

using gloo::transport::tcp::Device;
using gloo::transport::tcp::Handler;

SleepingLoop::SleepingLoop(Device& device) : bell_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), loop_(epoll_of(device)) {
  ring();
  began_.wait(false);
}

// The bell does not ring yet, so gloo calls no handler meanwhile.
std::optional<int> SleepingLoop::epoll_of(Device& device) {
  if (!bell_.valid()) throw std::system_error(errno, std::generic_category(), "no eventfd");
  device.registerDescriptor(bell_.get(), EPOLLIN, this);
  return epoll_that_watches(bell_.get(), static_cast<Handler*>(this));
}

void SleepingLoop::wake() {
  if (!is_awake_.exchange(true)) ring();
}

void SleepingLoop::ring() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(bell_.get(), &one, sizeof one);
}

// Called by gloo's loop, at first with this handler alone. So gloo has no event left of a pair that is gone when this returns.
void SleepingLoop::handleEvents(int /*events*/) {
  std::uint64_t rings = 0;
  [[maybe_unused]] const auto read = ::read(bell_.get(), &rings, sizeof rings);
  if (began_.exchange(true)) return;
  began_.notify_one();
  while (loop_ && !is_awake_) serve(*loop_);
}

void SleepingLoop::serve(int loop) {
  std::array<epoll_event, 64> events{};
  const int count = ::epoll_wait(loop, events.data(), static_cast<int>(events.size()), -1);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events.at(static_cast<std::size_t>(i));
    static_cast<Handler*>(event.data.ptr)->handleEvents(static_cast<int>(event.events));
  }
}

}  // namespace deft::link::gloo_backend
