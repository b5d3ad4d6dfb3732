// Encrypts connections for whoever reads and writes them as plain sockets, such as gloo.
//
//   auto made = EncryptedSockets::start(std::move(wires));
//   read_and_write((*made)->take_plain(peer));           // a local socket, in the place of the TCP socket
//   const std::string why = (*made)->failure_of(peer);   // why a plain socket has ended, if the peer did not close it
//
// A thread seals the bytes that are written to the plain sockets and sends them over the wires. It opens the records that arrive there.
// It sleeps while nothing moves. A connection that is stuck holds up no other one.
//
// A plain socket looks like the connection itself: the bytes of the peer come complete and in order, and then the end. If a record was
// forged, or if the wire ends early, the records that had been proved come first, and the end after them: failure_of() says which it was.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/descriptor.h"
#include "core/base/status.h"
#include "core/link/encryption/encrypted_connection.h"
#include "core/link/thread_clocks.h"

namespace deft::link {

class EncryptedSockets {
 public:
  // kExhausted without descriptors or a thread.
  static Result<std::unique_ptr<EncryptedSockets>> start(std::vector<EncryptedConnection::Wire> wires);
  // Sends the bytes that the user has written, but waits for that no longer than two seconds.
  ~EncryptedSockets();
  EncryptedSockets(const EncryptedSockets&) = delete;
  EncryptedSockets& operator=(const EncryptedSockets&) = delete;

  // The local socket for `peer`, which the caller owns from now on. It does not block. Invalid if it was taken before.
  [[nodiscard]] Descriptor take_plain(std::uint32_t peer);
  // The TCP socket to `peer`, for its options and counters. It stays open as long as this object lives.
  [[nodiscard]] int wire(std::uint32_t peer) const;

  // Adds the clock of the thread's processor time. Not while this object is destroyed.
  void add_thread_clock(std::vector<ThreadClock>& clocks, std::uint16_t number) {
    if (thread_.joinable()) add_clock(clocks, model::DaemonThread::kEncrypts, number, thread_.native_handle());
  }

  // Any thread: ends all connections at once. What cannot be sent without waiting is lost.
  void abandon();
  // Any thread. Empty while the connection is sound, and if the peer has closed it.
  [[nodiscard]] std::string failure_of(std::uint32_t peer) const;

 private:
  EncryptedSockets();
  Result<void> add(EncryptedConnection::Wire wire);
  Result<void> watch(int fd, std::uint64_t token);
  Result<void> start_thread();
  void wake();

  void run();
  bool advance(bool last);      // every connection a bit; whether one could go on at once
  void wait(int milliseconds);  // for an event; -1: for ever
  void part();
  [[nodiscard]] EncryptedConnection* find(std::uint32_t peer) const;

  Descriptor events_, wake_;  // an epoll and an eventfd
  std::vector<std::unique_ptr<EncryptedConnection>> connections_;
  std::atomic<bool> stopping_{false}, abandoned_{false};
  std::thread thread_;
};

}  // namespace deft::link
