// Ordered messages to and from every other node, which the MPI process carries. A pair of nodes has streams in each direction.
// The n-th message that is sent in a stream is the n-th one that is expected there. Streams do not wait for each other.
//
// All functions but abort() belong to one thread. A function that fails returns false (or null), and so do all later calls;
// failure() says why.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/link/mpi/agent_process.h"
#include "core/link/mpi/wire.h"

namespace deft::link::mpi_backend {

enum class Stream : std::uint8_t { kSegments, kResults };

class Transport {
 public:
  Transport(std::unique_ptr<AgentProcess> helper, std::uint32_t node, std::uint32_t nodes, std::size_t slot_bytes,
            std::uint32_t tag_limit);

  [[nodiscard]] std::uint32_t node() const { return node_; }
  [[nodiscard]] std::uint32_t nodes() const { return static_cast<std::uint32_t>(peers_.size()); }
  [[nodiscard]] std::size_t slot_bytes() const { return slot_bytes_; }

  // The tag of the next request's messages; `words` describe the request. Nodes that disagree about it get different tags, and
  // nothing from each other.
  std::uint32_t begin(std::span<const std::uint64_t> words);

  // True if one more message from `peer` can be expected now.
  [[nodiscard]] bool can_expect(std::uint32_t peer, Stream stream) const;
  // The next message from `peer` has so many bytes, slot_bytes() at most.
  bool expect(std::uint32_t peer, Stream stream, std::uint32_t tag, std::size_t bytes);
  // Waits for the oldest message that is expected from `peer`. Its bytes stay until the next call of expect() for it.
  const std::byte* receive(std::uint32_t peer, Stream stream);

  // How far this node may run ahead of a receiver: as far as MPI buffers, or no more than all slots.
  enum class Pace : std::uint8_t { kFree, kOfReceiver };
  // Sends a copy of the bytes; waits while all slots to `peer` are in use.
  bool send(std::uint32_t peer, Stream stream, std::uint32_t tag, std::span<const std::byte> bytes, Pace pace);
  // How many messages went there so far; waits until MPI has sent the first `count` of them.
  [[nodiscard]] std::uint64_t given(std::uint32_t peer, Stream stream) const;
  bool flush(std::uint32_t peer, Stream stream, std::uint64_t count);

  // Any thread.
  void abort(const Error& reason);
  [[nodiscard]] std::optional<Error> failure();

 private:
  enum class Slot : std::uint8_t { kFree, kBusy, kArrived };
  // One stream in one direction of one pair of nodes.
  struct Flow {
    std::array<Slot, kStreamSlots> slots{};
    std::uint64_t begun = 0;     // messages given to MPI
    std::uint64_t consumed = 0;  // received messages that the caller has got
  };
  struct Peer {
    std::array<Flow, kStreams> in;
    std::array<Flow, kStreams> out;
  };

  void command(CommandKind kind, std::uint32_t peer, std::uint32_t slot, std::uint32_t tag, std::size_t bytes);
  bool push_commands();
  bool await_news();
  bool take(const News& news);
  bool helper_ended();
  bool fail_with(ErrorKind kind, std::string what, std::string fix);
  [[nodiscard]] std::byte* place(std::uint32_t peer, bool incoming, std::uint32_t slot) const;
  [[nodiscard]] static std::uint32_t slot_of(Stream stream, std::uint64_t message);

  const std::uint32_t node_;
  const std::size_t slot_bytes_;
  const std::uint32_t tag_limit_;
  std::unique_ptr<AgentProcess> helper_;
  std::vector<Peer> peers_;  // by node; this node's own is unused
  std::vector<Command> commands_;
  std::uint64_t operations_ = 0;

  std::mutex mutex_;
  std::optional<Error> failed_;  // guarded by mutex_
};

}  // namespace deft::link::mpi_backend
