#include "core/link/gloo/sleeping_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <system_error>

namespace deft::link::gloo_backend {
namespace {

using gloo::transport::tcp::Device;
using gloo::transport::tcp::Handler;
using gloo::transport::tcp::Loop;

// gloo tells nobody the descriptor of a device's loop. An explicit instantiation of a template may name private members.
using LoopOfDevice = std::shared_ptr<Loop> Device::*;
using DescriptorOfLoop = int Loop::*;

LoopOfDevice loop_of_device();
DescriptorOfLoop descriptor_of_loop();

template <LoopOfDevice kLoop, DescriptorOfLoop kDescriptor>
struct PrivateMembers {
  friend LoopOfDevice loop_of_device() { return kLoop; }
  friend DescriptorOfLoop descriptor_of_loop() { return kDescriptor; }
};
template struct PrivateMembers<&Device::loop_, &Loop::fd_>;

int epoll_descriptor(Device& device) { return *(device.*loop_of_device()).*descriptor_of_loop(); }

}  // namespace

SleepingLoop::SleepingLoop(Device& device)
    : loop_(epoll_descriptor(device)), bell_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!bell_.valid()) throw std::system_error(errno, std::generic_category(), "no eventfd");
  ring();
  device.registerDescriptor(bell_.get(), EPOLLIN, this);
  began_.wait(false);
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
  while (!is_awake_) serve();
}

void SleepingLoop::serve() {
  std::array<epoll_event, 64> events{};
  const int count = ::epoll_wait(loop_, events.data(), static_cast<int>(events.size()), -1);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events.at(static_cast<std::size_t>(i));
    static_cast<Handler*>(event.data.ptr)->handleEvents(static_cast<int>(event.events));
  }
}

}  // namespace deft::link::gloo_backend
