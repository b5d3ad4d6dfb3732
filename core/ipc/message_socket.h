// A unix SOCK_SEQPACKET socket that carries the messages of messages.h, for both sides.
//
//   worker:  auto socket = MessageSocket::connect(path);  socket->send(bytes);  auto packet = socket->receive(deadline_us);
//   daemon:  auto listener = Listener::bind(path);    auto socket = listener->accept();   socket->try_receive();
//
// Every descriptor is CLOEXEC, every send is MSG_NOSIGNAL, and a truncated control message is an error. One thread at a time.
//
// Descriptors go from the daemon to a worker only. The daemon takes none: whoever closes the last descriptor of a socket waits for as
// long as the maker of that socket likes (SO_LINGER). Closing a worker's connection can block likewise, because messages that were
// never read may hold such descriptors. So the daemon closes it on another thread, after shut_down().
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/descriptor.h"
#include "core/base/status.h"
#include "core/shm/segment.h"

namespace deft::ipc {

// A message as it came, with the descriptors that it carried.
struct Packet {
  std::vector<std::byte> bytes;  // empty: the peer closed its end
  std::vector<Descriptor> descriptors;
};

// The process at the other end, as the kernel names it.
struct PeerIdentity {
  pid_t pid = 0;
  uid_t uid = 0;
};

// One end of a connection. It owns the socket.
class MessageSocket {
 public:
  MessageSocket() = default;
  explicit MessageSocket(Descriptor socket) : socket_(std::move(socket)) {}

  // kUnavailable if no daemon listens; the error names the path and says what to do.
  static Result<MessageSocket> connect(const std::string& path);

  // From now on a message with descriptors is a kViolation, and stays in the socket's queue with them. For the daemon's end.
  void refuse_descriptors() { takes_descriptors_ = false; }

  // How long send() waits at most for a peer whose queue is full, because it hangs. Without this it waits for ever.
  void limit_sending(TimeUs most_us) const;

  // Sends one packet. kLost if the peer is gone. If the peer's queue is full, a blocking socket waits as long as it may, and then
  // gives kExhausted, as a non-blocking one does at once.
  Result<void> send(std::span<const std::byte> bytes, std::span<const int> descriptors = {});

  // The same, but a full queue is no error: false.
  Result<bool> try_send(std::span<const std::byte> bytes, std::span<const int> descriptors = {});

  // True if the other side has not read all that was sent to it.
  [[nodiscard]] bool has_unread() const;

  // Waits for the next packet; kTimeout at `deadline_us` (MonotonicClock). An empty packet is the end of the socket.
  Result<Packet> receive(TimeUs deadline_us);

  // The next packet if there is one; never waits.
  Result<std::optional<Packet>> try_receive();

  [[nodiscard]] Result<PeerIdentity> peer() const;
  [[nodiscard]] int descriptor() const { return socket_.get(); }
  [[nodiscard]] bool open() const { return socket_.valid(); }
  void shut_down() const;  // the other side reads all that was sent, and then the end; never waits
  // After shut_down(): drops what was not read. False: descriptors came with some of it, or it is much. Then close() may take as long as
  // the other side likes.
  [[nodiscard]] bool discard_unread() const;
  void close() { socket_.reset(); }

 private:
  [[nodiscard]] bool next_has_descriptors() const;

  Descriptor socket_;
  bool takes_descriptors_ = true;
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

  // The next connection, or nothing if there is none. Never waits, and neither do the sockets that it gives. They refuse descriptors.
  Result<std::optional<MessageSocket>> accept();
  [[nodiscard]] int descriptor() const { return socket_.get(); }

 private:
  Listener(Descriptor socket, std::string path, Descriptor lock)
      : socket_(std::move(socket)), path_(std::move(path)), lock_(std::move(lock)) {}
  Descriptor socket_;
  std::string path_;
  Descriptor lock_;  // a lock that a live daemon holds, so that the file of a dead daemon can be told
};

}  // namespace deft::ipc
