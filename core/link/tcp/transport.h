// A TCP connection to every other member of a link. All members exchange messages with all others at once.
//
//   auto transport = Transport::connect(spec, group);        // blocks, with the group's deadline
//   (*transport)->exchange({.tag = tag}, messages);          // blocks until all have come and all are sent
//   (*transport)->abort();                                   // any thread: the running exchange and all later ones fail
//
// A message is preceded by a frame that says which exchange it belongs to and how long it is, so members that disagree
// find out instead of adding up each other's nonsense.
//
// A peer may be slow, or stopped, for any time. The way to it is lost if its machine acknowledges no data for
// LinkGroup::silence_us.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/descriptor.h"
#include "core/base/status.h"
#include "core/link/link.h"
#include "core/link/peer_sockets.h"
#include "core/link/segment_observer.h"

namespace deft::link::tcp_backend {

// The bytes to one peer and from it; either may be empty.
struct Message {
  std::span<const std::byte> out;
  std::span<std::byte> in;
};

// What the messages of an exchange are.
struct Exchanged {
  std::uint64_t tag = 0;      // the same on all members
  std::uint64_t request = 0;  // its id, which the observer is told
  model::SegmentPart part{};
  SegmentObserver* observer = nullptr;  // null: nobody wants to know
};

class Transport {
 public:
  static Result<std::unique_ptr<Transport>> connect(const LinkSpec& spec, const LinkGroup& group);

  [[nodiscard]] std::uint32_t own() const { return own_; }
  [[nodiscard]] std::uint32_t members() const { return members_; }

  // `messages` has an entry for each member; this one's own is not looked at. All members call it in the same order, with
  // the same tag. An error names the peer; after it the connections are of no more use. The observer hears of messages that are not empty.
  Result<void> exchange(const Exchanged& what, std::span<const Message> messages);

  void abort();

 private:
  struct Pending;
  explicit Transport(const LinkGroup& group)
      : own_(group.node), members_(group.nodes), noun_(group.member), silence_us_(group.silence_us) {}
  Result<void> send_some(Pending& progress);
  Result<void> receive_some(Pending& progress);
  Result<void> check_answered(std::vector<Pending>& pending) const;
  [[nodiscard]] std::string name_of(std::uint32_t peer) const { return noun_ + " " + std::to_string(peer); }
  [[nodiscard]] tl::unexpected<Error> lost(std::uint32_t peer, const std::string& cause) const;

  const std::uint32_t own_;
  const std::uint32_t members_;
  const std::string noun_;  // the word for a member
  const TimeUs silence_us_;
  PeerConnections connections_;
  Descriptor stop_;  // an eventfd that abort() makes readable for good
  std::uint64_t exchanges_ = 0;
};

}  // namespace deft::link::tcp_backend
