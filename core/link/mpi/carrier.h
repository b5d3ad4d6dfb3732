// Ordered messages to and from every other node, carried by the MPI process: in each direction of each pair of nodes the
// n-th message that is sent is the n-th one that is expected there.
//
// All functions but abort() belong to one thread. One that fails returns false (or null), and so do all later ones;
// failure() says why.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/link/mpi/agent_process.h"
#include "core/link/mpi/wire.h"

namespace deft::link::mpi_backend {

class Carrier {
 public:
  Carrier(std::unique_ptr<AgentProcess> helper, std::uint32_t node, std::uint32_t nodes, std::size_t slot_bytes,
          std::uint32_t tag_limit);

  [[nodiscard]] std::uint32_t node() const { return node_; }
  [[nodiscard]] std::uint32_t nodes() const { return static_cast<std::uint32_t>(peers_.size()); }
  [[nodiscard]] std::size_t slot_bytes() const { return slot_bytes_; }

  // The messages from now on belong to an operation of this hash. Nodes that disagree about it get nothing from each other.
  void begin(std::uint64_t operation_hash);

  // Whether one more message from `peer` can be expected now.
  [[nodiscard]] bool can_expect(std::uint32_t peer) const;
  // The next message from `peer` has so many bytes, slot_bytes() at most.
  bool expect(std::uint32_t peer, std::size_t bytes);
  // Waits for the oldest message that is expected from `peer`. Its bytes stay until the next call of expect() for it.
  const std::byte* receive(std::uint32_t peer);

  // How far this node may run ahead of a receiver: as far as MPI buffers, or no more than all slots.
  enum class Pace : std::uint8_t { kFree, kOfReceiver };
  // Sends a copy of the bytes; waits while all slots to `peer` are in use.
  bool send(std::uint32_t peer, const std::byte* data, std::size_t bytes, Pace pace);
  // Waits until MPI has sent everything.
  bool flush();

  // Any thread.
  void abort(const Error& reason);
  [[nodiscard]] std::optional<Error> failure();

 private:
  enum class Slot : std::uint8_t { kFree, kBusy, kArrived };
  // One direction of one pair of nodes.
  struct Stream {
    std::array<Slot, kSlots> slots{};
    std::uint64_t begun = 0;     // messages given to MPI
    std::uint64_t consumed = 0;  // received messages that the caller has got
  };
  struct Peer {
    Stream in;
    Stream out;
  };

  void command(CommandKind kind, std::uint32_t peer, std::uint64_t message, std::size_t bytes);
  bool push_commands();
  bool await_news();
  bool take(const News& news);
  bool helper_ended();
  bool fail_with(ErrorKind kind, std::string what, std::string fix);
  [[nodiscard]] std::byte* slot(std::uint32_t peer, bool incoming, std::uint64_t message) const;

  const std::uint32_t node_;
  const std::size_t slot_bytes_;
  const std::uint32_t tag_limit_;
  std::unique_ptr<AgentProcess> helper_;
  std::vector<Peer> peers_;  // by node; this node's own is unused
  std::vector<Command> commands_;
  std::size_t unsent_ = 0;
  std::uint32_t tag_ = 0;

  std::mutex mutex_;
  std::optional<Error> failed_;  // guarded by mutex_
};

}  // namespace deft::link::mpi_backend
