#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/base/descriptor.h"
#include "core/ipc/address.h"
#include "core/ipc/message_socket.h"

namespace deft::ipc {
namespace {

constexpr mode_t kSocketMode = 0660, kLockMode = 0600;
constexpr int kPassRights = 83;  // SO_PASSRIGHTS, which this C library does not name

std::string lock_path(const std::string& path) { return path + ".lock"; }

tl::unexpected<Error> failed(const std::string& what, const std::string& path, int error) {
  const bool full = error == EMFILE || error == ENFILE || error == ENOSPC;
  return fail(full ? ErrorKind::kExhausted : ErrorKind::kInvalid, what + " " + path + ": " + std::strerror(error),
              full ? "" : "check the option socket and the permissions of its folder");
}

std::string owner_of(int lock) {
  char text[32] = {};
  const ssize_t got = pread(lock, text, sizeof text - 1, 0);
  return got > 0 ? " (pid " + std::string(text, static_cast<std::size_t>(got)) + ")" : "";
}

bool same_file(int fd, const std::string& path) {
  struct stat open_file {
  }, named{};
  return fstat(fd, &open_file) == 0 && stat(path.c_str(), &named) == 0 && open_file.st_ino == named.st_ino &&
         open_file.st_dev == named.st_dev;
}

// Takes the lock beside the socket. Its owner removes the file at its end, so the locked file must still have
// that name.
Result<Descriptor> take_lock(const std::string& socket) {
  const std::string path = lock_path(socket);
  while (true) {
    // Whoever can open the file can hold its lock.
    Descriptor lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kLockMode));
    if (!lock.valid()) return failed("cannot make the lock", path, errno);
    fchmod(lock.get(), kLockMode);  // an older daemon's file is wider
    if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
      return fail(ErrorKind::kUnavailable, "another deftd" + owner_of(lock.get()) + " already serves " + socket,
                  "use that one, stop it, or set the option socket to another path");
    if (!same_file(lock.get(), path)) continue;
    const std::string pid = std::to_string(getpid());
    if (ftruncate(lock.get(), 0) != 0 || pwrite(lock.get(), pid.data(), pid.size(), 0) < 0)
      return failed("cannot write the lock", path, errno);
    return lock;
  }
}

// The file of a daemon that died: nobody holds its lock any more.
Result<void> remove_stale(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return {};
  if (!S_ISSOCK(info.st_mode))
    return fail(ErrorKind::kInvalid, path + " exists and is no socket", "set the option socket to another path");
  if (unlink(path.c_str()) != 0) return failed("cannot replace the socket", path, errno);
  return {};
}

}  // namespace

Result<Listener> Listener::bind(const std::string& path) {
  auto address = UnixAddress::of(path);
  if (!address) return tl::unexpected(address.error());
  if (const auto slash = path.rfind('/'); slash != std::string::npos && slash > 0)
    mkdir(path.substr(0, slash).c_str(), 0755);  // usually exists; if this fails, the lock says why
  auto lock = take_lock(path);
  if (!lock) return tl::unexpected(lock.error());
  if (auto ok = remove_stale(path); !ok) return tl::unexpected(ok.error());
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return failed("cannot make the socket", path, errno);
  // Linux 6.16 and newer: a client that sends a descriptor gets EPERM. Connections inherit it, before they are accepted.
  const int none = 0;
  setsockopt(socket.get(), SOL_SOCKET, kPassRights, &none, sizeof none);
  fchmod(socket.get(), kSocketMode);  // the file is never wider than this, not even before chmod
  if (::bind(socket.get(), address->get(), address->bytes()) != 0) return failed("cannot bind", path, errno);
  Listener listener(std::move(socket), path, std::move(*lock));
  if (chmod(path.c_str(), kSocketMode) != 0 || listen(listener.descriptor(), SOMAXCONN) != 0)
    return failed("cannot listen on", path, errno);
  return listener;
}

Listener::~Listener() {
  if (!lock_.valid()) return;  // moved from
  unlink(path_.c_str());
  unlink(lock_path(path_).c_str());
}

Result<std::optional<MessageSocket>> Listener::accept() {
  while (true) {
    Descriptor socket(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.valid()) {
      MessageSocket client(std::move(socket));
      client.refuse_descriptors();
      return std::optional<MessageSocket>(std::move(client));
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::optional<MessageSocket>{};
    if (errno == EINTR || errno == ECONNABORTED) continue;
    return fail(ErrorKind::kExhausted, std::string("cannot accept a worker: ") + std::strerror(errno),
                "raise the limit on open files (ulimit -n)");
  }
}

}  // namespace deft::ipc
