#include "core/client/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>

namespace deft::client {
namespace {

constexpr std::size_t kSlots = 256;  // sessions at a time in a process; more of them are not guarded

std::atomic<unsigned> generation{0};             // counts forks between this process and the first
std::array<std::atomic<int>, kSlots> sockets{};  // descriptor + 1; 0: free

// Runs in the child of a fork, where only calls that are safe in signal handlers are allowed.
void in_child() {
  generation.fetch_add(1, std::memory_order_relaxed);
  for (auto& socket : sockets)
    if (const int fd = socket.exchange(0) - 1; fd >= 0) close(fd);
}

void install_once() {
  static const int installed = pthread_atfork(nullptr, nullptr, in_child);
  static_cast<void>(installed);
}

std::size_t take_slot(int socket) {
  for (std::size_t i = 0; i < kSlots; ++i) {
    int expected = 0;
    if (sockets[i].compare_exchange_strong(expected, socket + 1)) return i;
  }
  return kSlots;
}

}  // namespace

ForkGuard::ForkGuard(int socket) {
  install_once();
  generation_ = generation.load(std::memory_order_relaxed);
  slot_ = take_slot(socket);
}

ForkGuard::~ForkGuard() {
  if (here() && slot_ < kSlots) sockets[slot_].store(0);
}

bool ForkGuard::here() const { return generation_ == generation.load(std::memory_order_relaxed); }

}  // namespace deft::client
