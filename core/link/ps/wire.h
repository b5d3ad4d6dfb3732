// The messages between a ps link and its servers, over ZeroMQ (DEALER on the link's side, ROUTER on the server's). Each is
// a PsHeader and a payload frame.
//
// From the link of `node` of `nodes`:
//   kHello    the first one of a connection; payload: a secret of 16 bytes and the link's name, which all nodes of the link share
//   kPush     segment `segment` of round `round`; payload: its elements, or nothing if it asks for another node's.
//   kTaken    nothing but `taken`, if there was no push to say it
//   kPing     nothing: now and then, as heartbeats are no messages (core/link/curve/unfinished_messages.h). It is answered
// From the server:
//   kPresent  payload: a byte for each node, 1 if its link has said hello
//   kWelcome  all have: pushes may begin
//   kResult   the answer to a push; payload: the reduced elements, the owner's, or (for the owner itself) nothing; or what a keeper gets
//   kFailed   `error` is the kind, payload: the text; the link is of no use any more
//   kPing     nothing: answers a link's, and shows the server that the connection stands
//
// The secret is made anew for each link and stands in the job's store (core/link/secret.h). The server keeps links of different secrets
// apart, whatever their names are, so nobody who cannot read the store gets into a link or sees its gradients. With a key both sides
// also prove that they hold it, and all is encrypted (core/link/curve).
//
// Encoded segments (`recipe_bytes` > 0). The recipe (core/compress/encoded_sum.h) stands behind the header, in its frame, and tells
// the server how to decode, add and encode the codes of all nodes. All nodes say the same bytes. `keeper` is the node that keeps
// what the second encoding leaves out, in its own residuals: so it gets the codes of the other nodes, or the sum as float32 where
// that is less, and makes the result itself, of the same bits. All others get the result. A server keeps nothing of it. So a
// lost server loses nothing, and another link can replay the segment.
//
// If the keeper is kEveryNode, there is no recipe: every node gets the codes of the other nodes, and adds them itself.
//
// A round is one request of the link. Every node pushes each segment of it once, in rising order. A result names the round and
// the segment that was pushed, so no node can get another round's result. A segment without an owner is reduced over all
// nodes. A segment with an owner goes from the owner to all others.
//
// A link pushes the most urgent of its rounds first. A server lets kAnswersAhead results leave for a link that has not taken
// them (`taken` counts the results that it took). Of the others the most urgent result goes next (core/link/ps/priority.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>
#include <zmq.hpp>

#include "core/link/secret.h"

namespace deft::link::ps_backend {

inline constexpr std::uint32_t kMagic = 0x53504644;  // "DFPS"
inline constexpr std::uint16_t kVersion = 5;
inline constexpr std::uint32_t kNoOwner = 0xFFFFFFFF;
inline constexpr std::uint32_t kEveryNode = 0xFFFFFFFE;  // as a keeper
inline constexpr std::uint32_t kMaxNodes = 4096;
inline constexpr std::size_t kMaxSegmentBytes = 128 << 10;
inline constexpr std::size_t kMaxLinkName = 512;
// 4096 runs of 12 bytes and more: a run of bf16, which has the most blocks in a segment, has 16 elements or more.
inline constexpr std::size_t kMaxRecipeBytes = 64 << 10;
inline constexpr std::size_t kMaxAnswerBytes = 1 << 20;  // to a keeper: it bounds the values of an encoded segment
inline constexpr std::size_t kMostFromALinkBytes =
    kMaxSegmentBytes + 1024;               // from a link; encrypted, it is a little longer
inline constexpr std::size_t kWindow = 8;  // pushes to a server that a link leaves unanswered
// Results that leave before the link has taken the first of them. With 4 a NIC of 1 Gbit/s stood idle at times, because
// `taken` arrives behind pushes.
inline constexpr std::size_t kAnswersAhead = 6;
inline constexpr std::size_t kOvertakes = 32;    // rounds that a link starts while an older one does not end
inline constexpr std::size_t kRoundsApart = 64;  // never between two that it pushes: kOvertakes and its depth are fewer

enum class Kind : std::uint16_t {
  kHello = 1,
  kPush = 2,
  kPresent = 3,
  kWelcome = 4,
  kResult = 5,
  kFailed = 6,
  kPing = 7,
  kTaken = 8,
};

struct PsHeader {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  Kind kind = Kind::kPing;
  std::uint32_t node = 0;
  std::uint32_t nodes = 0;
  std::uint64_t round = 0;
  std::uint64_t bytes = 0;  // of the segment's elements
  std::uint64_t total = 0;  // of the whole operation
  std::uint64_t taken = 0;  // results of this connection that the link has got
  std::uint32_t segment = 0;
  std::uint32_t owner = kNoOwner;
  std::uint8_t dtype = 0;
  std::uint8_t op = 0;
  std::uint8_t error = 0;
  std::uint8_t unused = 0;
  std::uint32_t priority = 0;  // 0: the most urgent
  std::uint32_t keeper = kNoOwner;
  std::uint32_t recipe_bytes = 0;
};
static_assert(sizeof(PsHeader) == 72 && std::is_trivially_copyable_v<PsHeader>);

// The header in a frame; nothing if the frame is none. The caller checks the version. In a header of another version, the
// fields up to `kind` can be read: they never move.
inline std::optional<PsHeader> header_of(const zmq::message_t& frame) {
  PsHeader header;
  if (frame.size() < offsetof(PsHeader, node)) return std::nullopt;
  std::memcpy(&header, frame.data(), std::min(frame.size(), sizeof header));
  if (header.magic != kMagic) return std::nullopt;
  const bool is_whole = frame.size() >= sizeof header && frame.size() - sizeof header == header.recipe_bytes;
  if (header.version == kVersion && (!is_whole || header.recipe_bytes > kMaxRecipeBytes)) return std::nullopt;
  return header;
}
// The recipe in a frame that header_of() can read.
inline std::span<const std::byte> recipe_of(const zmq::message_t& frame) {
  return std::span(frame.data<std::byte>(), frame.size()).subspan(std::min(frame.size(), sizeof(PsHeader)));
}

// The answer for the keeper of an encoded segment: the codes of the other nodes, of `bytes` each, or the sum.
inline bool gets_sum(std::uint32_t nodes, std::size_t bytes, std::size_t values) {
  return (nodes - 1) * bytes > values * sizeof(float);
}
inline std::size_t keeper_bytes(std::uint32_t nodes, std::size_t bytes, std::size_t values) {
  return gets_sum(nodes, bytes, values) ? values * sizeof(float) : (nodes - 1) * bytes;
}

}  // namespace deft::link::ps_backend
