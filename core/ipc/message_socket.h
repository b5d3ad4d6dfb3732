// A unix SOCK_SEQPACKET socket that carries the messages of messages.h, for both sides.
//
//   worker:  auto socket = MessageSocket::connect(path);  socket->send(bytes);  auto packet = socket->receive(deadline_us);
//   daemon:  auto listener = Listener::bind(path);    auto socket = listener->accept();   socket->try_receive();
//
// Every descriptor is CLOEXEC, every send is MSG_NOSIGNAL, and a truncated control message is an error. One thread at a time.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/shm/segment.h"

namespace deft::ipc {

// A message as it came, with the descriptors that it carried.
struct Packet {
  std::vector<std::byte> bytes;  // empty: the peer closed its end
  std::vector<shm::Descriptor> descriptors;
};

// Who is at the other end, by the kernel's word.
struct PeerIdentity {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};

// One end of a connection. It owns the socket.
class MessageSocket {
 public:
  MessageSocket() = default;
  explicit MessageSocket(shm::Descriptor socket) : socket_(std::move(socket)) {}

  // kUnavailable if no daemon listens; the error names the path and says what to do.
  static Result<MessageSocket> connect(const std::string& path);

  // Sends one packet. kLost if the peer is gone. If the peer's queue is full, a blocking socket waits, and a non-blocking
  // one gives kExhausted.
  Result<void> send(std::span<const std::byte> bytes, std::span<const int> descriptors = {});

  // Waits for the next packet; kTimeout at `deadline_us` (MonotonicClock). An empty packet is the end of the socket.
  Result<Packet> receive(TimeUs deadline_us);

  // The next packet if there is one; never waits.
  Result<std::optional<Packet>> try_receive();

  [[nodiscard]] Result<PeerIdentity> peer() const;
  [[nodiscard]] int descriptor() const { return socket_.get(); }
  [[nodiscard]] bool open() const { return socket_.valid(); }
  void close() { socket_.reset(); }

 private:
  shm::Descriptor socket_;
};

// The daemon's socket. It owns the socket and its file.
class Listener {
 public:
  // Binds `path` with mode 0660. The file of a dead daemon is replaced; a live daemon on `path` is an error that says so. The
  // destructor removes the file.
  static Result<Listener> bind(const std::string& path);
  Listener(Listener&&) noexcept = default;
  Listener& operator=(Listener&&) noexcept = default;
  ~Listener();

  // The next connection, or nothing if there is none. Never waits, and neither do the sockets that it gives.
  Result<std::optional<MessageSocket>> accept();
  [[nodiscard]] int descriptor() const { return socket_.get(); }

 private:
  Listener(shm::Descriptor socket, std::string path, shm::Descriptor lock)
      : socket_(std::move(socket)), path_(std::move(path)), lock_(std::move(lock)) {}
  shm::Descriptor socket_;
  std::string path_;
  shm::Descriptor lock_;  // a lock that a live daemon holds, so that the file of a dead daemon can be told
};

}  // namespace deft::ipc
