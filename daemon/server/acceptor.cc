#include "daemon/server/acceptor.h"

#include <glog/logging.h>
#include <sys/epoll.h>

#include <utility>

namespace deft::daemon {

Acceptor::Acceptor(Reactor& reactor, ipc::Listener listener, Take take)
    : reactor_(reactor), listener_(std::move(listener)), take_(std::move(take)) {}

Acceptor::~Acceptor() {
  reactor_.cancel(again_);
  reactor_.unwatch(listener_.descriptor());
}

Result<void> Acceptor::start() {
  again_ = 0;
  return reactor_.watch(listener_.descriptor(), EPOLLIN, [this](std::uint32_t) { accept(); });
}

void Acceptor::accept() {
  for (int i = 0; i < kClientsARound; ++i) {
    auto connection = listener_.accept();
    if (!connection) return pause(connection.error());
    if (!connection->has_value()) return;
    told_ = false;
    take_(std::move(**connection));
  }
}

void Acceptor::pause(const Error& why) {
  ++failures_;
  if (!std::exchange(told_, true)) LOG(ERROR) << why.message() << "; new clients wait until a descriptor is free";
  reactor_.unwatch(listener_.descriptor());
  again_ = reactor_.after(kPauseUs, [this] {
    if (auto ok = start(); !ok) pause(ok.error());
  });
}

}  // namespace deft::daemon
