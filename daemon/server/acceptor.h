// Takes new clients from the daemon's unix socket.
//
//   Acceptor acceptor(reactor, std::move(listener), [&](ipc::MessageSocket socket) { ... });
//   if (auto ok = acceptor.start(); !ok) ...
//
// If no descriptor is free, a client that waits keeps the listening socket readable, and the event loop would spin. So the acceptor
// looks away for kPauseUs and tries again; the client waits meanwhile, and the sessions that run are served. Reactor thread.
#pragma once

#include <cstdint>
#include <functional>

#include "core/ipc/message_socket.h"
#include "daemon/base/reactor.h"

namespace deft::daemon {

class Acceptor {
 public:
  static constexpr TimeUs kPauseUs = 100'000;
  static constexpr int kClientsARound = 64;  // others are served in between

  using Take = std::function<void(ipc::MessageSocket socket)>;

  // `reactor` outlives this object.
  Acceptor(Reactor& reactor, ipc::Listener listener, Take take);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  Result<void> start();  // an error: the kernel cannot watch one more descriptor

  [[nodiscard]] std::uint64_t failures() const { return failures_; }  // times that no client could be taken

 private:
  void accept();
  void pause(const Error& why);

  Reactor& reactor_;
  ipc::Listener listener_;
  const Take take_;
  std::uint64_t failures_ = 0;
  bool told_ = false;  // the log has this shortage
  Reactor::TimerId again_ = 0;
};

}  // namespace deft::daemon
