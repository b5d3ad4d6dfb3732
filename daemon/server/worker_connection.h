// A worker's socket: packets in and out, who is at the other end, and the end of the worker's process.
//
//   WorkerConnection connection(reactor, std::move(socket), account, {on_packet, on_broken, on_death});
//   connection.start();            // the kernel says who it is; packets come from now on
//   connection.watch_process();    // a forked child may hold the socket open after its parent's death
//
// Nothing comes after stop(). Reactor thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/base/descriptor.h"
#include "core/ipc/message_socket.h"
#include "core/shm/segment.h"
#include "daemon/base/reactor.h"
#include "daemon/base/user_quotas.h"

namespace deft::daemon {

class WorkerConnection {
 public:
  struct Events {
    std::function<void(const ipc::Packet&)> on_packet;
    std::function<void(const Error&)> on_broken;  // the socket cannot be read
    std::function<void()> on_death;               // the socket or the process has ended
  };

  // `account` is released when the socket is closed, which is some time after the end of this object. `reactor` outlives this object.
  WorkerConnection(Reactor& reactor, ipc::MessageSocket socket, std::shared_ptr<QuotaAccount> account, Events events);
  ~WorkerConnection();
  WorkerConnection(const WorkerConnection&) = delete;
  WorkerConnection& operator=(const WorkerConnection&) = delete;

  Result<void> start();          // an error: the descriptor table is full
  Result<void> watch_process();  // no error if the kernel does not show that process: the socket's end must do
  void stop();

  Result<void> send(std::span<const std::byte> bytes, std::span<const int> descriptors = {});
  void wake();  // by a message WAKE. A worker with a full queue has messages to read, so it does not sleep
  // As soon as the other side has read enough, behind what waits already. Who asks for much at once need not read meanwhile. What waits
  // counts as the user's bytes of the store. The descriptor of `memory` is passed.
  Result<void> send_in_turn(std::vector<std::byte> packet, std::shared_ptr<const shm::Segment> memory = nullptr);
  // A long answer in several packets, as fast as the other side reads them. kViolation while the last one is on its way.
  Result<void> send_all(std::deque<std::vector<std::byte>> packets);
  // ERROR; operation 0: the job failed. A worker that is gone hears nothing, which is no error.
  void send_error(const Error& error, std::uint64_t operation);

  [[nodiscard]] const ipc::PeerIdentity& peer() const { return peer_; }

 private:
  // Reads at most `packets`. The others come in the next round, so that one busy client does not keep other clients waiting.
  void read(int packets);
  void on_events(std::uint32_t events);
  Result<void> flush();

  struct Waiting {
    std::vector<std::byte> packet;
    std::shared_ptr<const shm::Segment> memory;
    std::size_t charged = 0;  // of the user's bytes of the store
  };
  Result<bool> try_send(const Waiting& message);

  Reactor& reactor_;
  ipc::MessageSocket socket_;
  std::shared_ptr<QuotaAccount> account_;
  Events events_;
  ipc::PeerIdentity peer_;
  Descriptor process_;        // pidfd
  std::deque<Waiting> rest_;  // for room in the socket's queue
  bool stopped_ = false;
};

}  // namespace deft::daemon
