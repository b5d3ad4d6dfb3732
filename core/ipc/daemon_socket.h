// Chooses the socket on which a node's daemon listens, and finds it for a client.
//
//   daemon:  Listener::bind(socket_path(config.text("socket")));
//   client:  auto daemon = connect_to_daemon(daemon_sockets(config.text("socket")));
//            daemon->channel.send(bytes);
//
// The daemon of the machine's administrator serves /run/deft/deftd.sock for all users whom the permissions of that file let
// in. Any user may run an own daemon instead, and the clients of that user try it first.
//
// A client believes the kernel about whose daemon answers. It uses a daemon of its own user, of root, or of the user who owns the
// socket's folder, provided that nobody else may write to that folder. Others can make a socket, but no daemon that is trusted.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/ipc/message_socket.h"

namespace deft::ipc {

inline constexpr const char* kSystemSocket = "/run/deft/deftd.sock";

// The socket that a daemon serves: `configured` (the option `socket`), or if that is empty the default of this process's
// user: kSystemSocket for root, else $XDG_RUNTIME_DIR/deftd.sock, else /tmp/deftd-UID.sock.
std::string socket_path(const std::string& configured);

// A socket to try.
struct DaemonSocket {
  std::string path;
  bool own = false;  // true: only a daemon of this user is accepted, because other users may write to the folder
};

// The sockets that a client tries, in this order: `configured` alone, or the default of its user and then kSystemSocket.
std::vector<DaemonSocket> daemon_sockets(const std::string& configured);

struct DaemonConnection {
  MessageSocket channel;
  std::string path;  // the socket that answered
};

// Connects to the first of `sockets` on which a daemon answers. kUnavailable if none does; the error names every socket that
// was tried, and why it failed.
Result<DaemonConnection> connect_to_daemon(std::span<const DaemonSocket> sockets);

}  // namespace deft::ipc
