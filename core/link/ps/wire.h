// The messages between a ps link and its servers, over ZeroMQ (DEALER on the link's side, ROUTER on the server's). Each is
// a PsHeader and a payload frame.
//
// From the link of `node` of `nodes`:
//   kHello    the first one of a connection; payload: a secret of 16 bytes and the link's name, which all nodes of the link share
//   kPush     segment `segment` of round `round`; payload: its elements, or nothing if it asks for another node's
//   kTaken    nothing but `taken`, if there was no push to say it
// From the server:
//   kPresent  payload: a byte for each node, 1 if its link has said hello
//   kWelcome  all have: pushes may begin
//   kResult   the answer to a push; payload: the reduced elements, the owner's, or (for the owner itself) nothing
//   kFailed   `error` is the kind, payload: the text; the link is of no use any more
//   kPing     nothing: shows the server that the connection stands
//
// The secret is made anew for each link and stands in the job's store (core/link/secret.h). The server keeps links of different secrets
// apart, whatever their names are, so nobody who cannot read the store gets into a link or sees its gradients. With a key both sides
// also prove that they hold it, and all is encrypted (core/link/curve).
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
#include <type_traits>
#include <zmq.hpp>

#include "core/link/secret.h"

namespace deft::link::ps_backend {

inline constexpr std::uint32_t kMagic = 0x53504644;  // "DFPS"
inline constexpr std::uint16_t kVersion = 3;
inline constexpr std::uint32_t kNoOwner = 0xFFFFFFFF;
inline constexpr std::uint32_t kMaxNodes = 4096;
inline constexpr std::size_t kMaxSegmentBytes = 128 << 10;
inline constexpr std::size_t kMaxLinkName = 512;
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
};
static_assert(sizeof(PsHeader) == 64 && std::is_trivially_copyable_v<PsHeader>);

// The header in a frame; nothing if the frame is none. The caller checks the version. In a header of another version, the
// fields up to `kind` can be read: they never move.
inline std::optional<PsHeader> header_of(const zmq::message_t& frame) {
  PsHeader header;
  if (frame.size() < offsetof(PsHeader, node)) return std::nullopt;
  std::memcpy(&header, frame.data(), std::min(frame.size(), sizeof header));
  if (header.magic != kMagic || (header.version == kVersion && frame.size() != sizeof header)) return std::nullopt;
  return header;
}

}  // namespace deft::link::ps_backend
