#include "core/link/gloo/guarded_context.h"

#include <gloo/transport/tcp/pair.h>
#include <gloo/transport/tcp/unbound_buffer.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace deft::link::gloo_backend {
namespace {

class GuardedPair final : public gloo::transport::tcp::Pair {
 public:
  GuardedPair(GuardedContext* context, gloo::transport::tcp::Device* device, int peer,
              std::chrono::milliseconds timeout)
      : Pair(context, device, peer, timeout) {
    stop_listening();
  }

  // The loop may be on its way into handleEvents. gloo's destructor would wait for it too late, when this is no guarded pair any more.
  ~GuardedPair() override {
    {
      const std::lock_guard lock(m_);
      if (state_ != CLOSED) GuardedPair::changeState(CLOSED);  // returns when the loop has seen that the socket is gone
    }
    const std::lock_guard until_handled(handling_);  // the loop itself may have closed the pair, and is not out yet
  }

  // Does what gloo's handleConnected does for sockets of TCP alone. Our sockets do not block, and do not wait for more to send.
  void adopt(int socket, int wire) {
    const std::lock_guard lock(m_);
    fd_ = socket;
    wakes_late_ = socket == wire;
    self_ = gloo::transport::tcp::Address::fromSockName(wire);
    peer_ = gloo::transport::tcp::Address::fromPeerName(wire);
    device_->registerDescriptor(fd_, EPOLLIN, this);
    Pair::changeState(CONNECTED);
  }

  // With the lock held, on the loop's thread. The kernel would wake the loop for every packet, but nobody can use a part of a message. The
  // bytes of a long one are read in pieces that are worth a wake-up.
  bool read() override {
    const bool is_whole = Pair::read();
    if (!is_whole && wakes_late_ && state_ == CONNECTED) wake_at(std::clamp<std::size_t>(rest(), 1, kWakeBytes));
    return is_whole;
  }

  // With the lock held. gloo forgets to tell the buffers of which a part has come or gone; their waits would never end.
  void changeState(state next) noexcept override {
    if (next == CLOSED) {
      closing_ = true;
      static_cast<GuardedContext*>(context_)->wake_loop();
    }
    Pair::changeState(next);
    if (next != CLOSED) return;
    if (const auto buffer = rx_.ubuf.lock()) buffer->abortWaitRecv();
    for (const auto& operation : tx_)
      if (const auto buffer = operation.ubuf.lock()) buffer->abortWaitSend();
  }

  // Called by the loop's thread.
  void handleEvents(int events) override {
    const std::lock_guard handling(handling_);
    note_loop();
    try {
      Pair::handleEvents(events);
    } catch (...) {
      end(std::current_exception());
    }
  }

 private:
  static constexpr std::size_t kWakeBytes = 64 << 10;

  // Bytes that are still to come of the message that has begun to come.
  [[nodiscard]] std::size_t rest() const {
    if (rx_.nread < sizeof rx_.preamble) return 0;
    return rx_.preamble.length - std::min(rx_.preamble.length, rx_.nread - sizeof rx_.preamble);
  }

  // The loop wakes when so many bytes have come, or the connection ends.
  void wake_at(std::size_t bytes) {
    if (std::exchange(wake_bytes_, bytes) == bytes) return;
    const int count = static_cast<int>(bytes);
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVLOWAT, &count, sizeof count);
  }

  // Whoever closes the pair waits for the loop with the lock held, so the loop cannot simply wait for the lock.
  void end(const std::exception_ptr& why) {
    std::unique_lock lock(m_, std::defer_lock);
    while (!lock.try_lock()) {
      if (closing_) return;
      std::this_thread::yield();
    }
    if (state_ != CLOSED) signalException(why);
  }

  // Once a thread, since each loop serves one context. Whoever waits for the loop may hold the lock, so this waits for nobody.
  void note_loop() {
    thread_local bool noted = false;
    if (noted) return;
    const std::unique_lock lock(m_, std::try_to_lock);
    if (!lock) return;
    static_cast<GuardedContext*>(context_)->note_loop();
    noted = true;
  }

  // gloo's constructor has begun to.
  void stop_listening() {
    const std::lock_guard lock(m_);
    device_->unregisterDescriptor(fd_, this);
    ::close(fd_);
    fd_ = -1;
    state_ = INITIALIZING;
  }

  std::mutex handling_;         // held while the loop handles events
  bool wakes_late_ = false;     // the socket is a TCP socket. Others do not wait for more
  std::size_t wake_bytes_ = 1;  // in the kernel
  std::atomic<bool> closing_{false};
};

}  // namespace

std::unique_ptr<gloo::transport::Pair>& GuardedContext::createPair(int peer) {
  auto& pair = pairs_[static_cast<std::size_t>(peer)];
  pair = std::make_unique<GuardedPair>(this, device_.get(), peer, getTimeout());
  return pair;
}

void GuardedContext::note_loop() {
  clockid_t clock{};
  if (!loop_clock() && pthread_getcpuclockid(pthread_self(), &clock) == 0)
    loop_clock_.store(clock, std::memory_order_relaxed);
}

void GuardedContext::adopt(int peer, int socket, int wire) {
  static_cast<GuardedPair&>(*pairs_[static_cast<std::size_t>(peer)]).adopt(socket, wire);
}

}  // namespace deft::link::gloo_backend
