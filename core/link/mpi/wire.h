// The messages between an MPI link and its helper processes.
//
//   daemon  LinkImpl, Engine, BlockExchange, Transport     (no MPI here)
//     |  |       \__ control socket: bootstrap and ending       -> deft-mpi: a PMIx server, the parent of the next
//     |  \__ data socket: Command one way, News the other       -> the MPI process: MPI_Isend and MPI_Irecv of slots
//     \__ slots: memory that the daemon and the MPI process map
//
// Both sockets are SEQPACKET. A data message is an array of records. A control message is one byte of ControlKind and its
// content. When a socket ends, both helper processes say farewell to the other nodes, and end.
//
// Slots: for each peer kSlots for messages to it and kSlots for messages from it, kStreamSlots for each stream. The n-th
// message of a stream in a direction uses its slot n % kStreamSlots. A slot belongs to the MPI process from the Command that
// names it until the News that names it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deft::link::mpi_backend {

constexpr std::uint32_t kSlots = 8;
constexpr std::uint32_t kStreams = 2;
constexpr std::uint32_t kStreamSlots = kSlots / kStreams;
constexpr std::size_t kMaxRecords = 512;            // of one data message
constexpr std::size_t kMaxControlBytes = 64 << 10;  // of one control message

enum class CommandKind : std::uint8_t {
  kSend = 1,
  kSendMatched,  // sent only when the other side has begun to receive it
  kReceive,
};

struct Command {
  CommandKind kind;
  std::uint8_t slot;
  std::uint16_t peer;
  std::uint32_t bytes;
  std::uint32_t tag;  // at most the limit that kReady gave
};

enum class NewsKind : std::uint8_t {
  kGreeted = 1,  // peer: a message went there and one came back
  kReady,        // all peers are connected; value: the largest tag
  kSent,
  kReceived,
  kLost,    // peer left, and messages under way with it will not end; value: the node that left first
  kFailed,  // MPI returned an error, which is on the standard error output; peer: with whom
};

struct News {
  NewsKind kind;
  std::uint8_t slot;
  std::uint16_t peer;
  std::uint32_t value;
};

static_assert(sizeof(Command) == 12 && sizeof(News) == 8);

enum class ControlKind : std::uint8_t {
  kHello = 1,   // to the daemon: the MPI library's version
  kStart,       // to the helper: the nodes have met, start MPI
  kStop,        // to the helper: end at once, nobody waits for a farewell
  kFence,       // to the daemon: this node's bytes, to be exchanged with all nodes'
  kFenced,      // to the helper: the bytes of all nodes, or the end of them
  kEnded,       // to the daemon: how the MPI process ended
  kFencedPart,  // to the helper: bytes that come before those of kFenced
};

// The offset at which a slot begins in the memory.
constexpr std::size_t slot_offset(std::uint32_t peer, bool incoming, std::uint32_t slot, std::size_t slot_bytes) {
  return ((std::size_t{peer} * 2 + (incoming ? 1 : 0)) * kSlots + slot) * slot_bytes;
}
constexpr std::size_t slots_bytes(std::uint32_t nodes, std::size_t slot_bytes) {
  return slot_offset(nodes, false, 0, slot_bytes);
}

}  // namespace deft::link::mpi_backend
