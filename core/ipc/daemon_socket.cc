#include "core/ipc/daemon_socket.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>

namespace deft::ipc {
namespace {

// The user to whom the socket's folder belongs, if nobody else can put a socket there: the administrator has made it for that daemon.
std::optional<uid_t> owner_of_folder(const std::string& socket) {
  const std::size_t slash = socket.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : socket.substr(0, slash);
  struct stat info {};
  if (stat(folder.c_str(), &info) != 0 || (info.st_mode & (S_IWGRP | S_IWOTH)) != 0) return std::nullopt;
  return info.st_uid;
}

bool is_trusted(uid_t user, const DaemonSocket& socket) {
  if (user == geteuid()) return true;
  return !socket.own && (user == 0 || owner_of_folder(socket.path) == user);
}

Result<MessageSocket> connect_to(const DaemonSocket& socket) {
  auto channel = MessageSocket::connect(socket.path);
  if (!channel) return channel;
  const auto peer = channel->peer();
  if (!peer) return tl::unexpected(peer.error());
  if (!is_trusted(peer->uid, socket))
    return fail(
        ErrorKind::kUnavailable,
        "what listens on " + socket.path + " is of user " + std::to_string(peer->uid) + ", not of this one",
        "a daemon of this user, of root, or of the owner of the socket's folder is used, if nobody else may write "
        "to that folder");
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
