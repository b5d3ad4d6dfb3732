#include "core/ipc/daemon_socket.h"

#include <unistd.h>

#include <cstdlib>

namespace deft::ipc {
namespace {

Result<MessageSocket> connect_to(const DaemonSocket& socket) {
  auto channel = MessageSocket::connect(socket.path);
  if (!channel || !socket.own) return channel;
  const auto peer = channel->peer();
  if (!peer) return tl::unexpected(peer.error());
  if (peer->uid != geteuid())
    return fail(ErrorKind::kUnavailable,
                "what listens on " + socket.path + " is of user " + std::to_string(peer->uid) + ", not of this one",
                "if you trust it, name it: DEFT_SOCKET=" + socket.path);
  return channel;
}

}  // namespace

std::string socket_path(const std::string& configured) {
  if (!configured.empty()) return configured;
  if (geteuid() == 0) return kSystemSocket;
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime != '\0') return std::string(runtime) + "/deftd.sock";
  return "/tmp/deftd-" + std::to_string(geteuid()) + ".sock";
}

std::vector<DaemonSocket> daemon_sockets(const std::string& configured) {
  std::vector<DaemonSocket> sockets{{socket_path(configured)}};
  if (!configured.empty() || sockets.front().path == kSystemSocket) return sockets;
  sockets.front().own = true;
  sockets.push_back({kSystemSocket});
  return sockets;
}

Result<DaemonConnection> connect_to_daemon(std::span<const DaemonSocket> sockets) {
  Error error{ErrorKind::kUnavailable, "", "", ""};
  for (const auto& socket : sockets) {
    auto channel = connect_to(socket);
    if (channel) return DaemonConnection{*std::move(channel), socket.path};
    if (channel.error().kind != ErrorKind::kUnavailable) return tl::unexpected(channel.error());
    error.what += (error.what.empty() ? "" : "; ") + channel.error().what;
    error.fix = channel.error().fix;  // the last one's: the daemon that all users share
  }
  return tl::unexpected(error);
}

}  // namespace deft::ipc
