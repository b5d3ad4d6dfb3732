// Connects the members of a link by TCP, and lets nobody else in.
//
//   auto connections = connect_peers(spec, group, "gloo");   // blocks: a connected socket for each other member, by member
//
// Each member listens on a free port of the link's NIC. It publishes the address in the group's store, together with a secret that
// it has just made. A member connects to those before it. It says the secret of the member that it wants, and the other side answers
// with the secret of the member that calls. So whoever cannot read the store of the job gets no further: a port scan, a health check,
// another user's program. What strangers send is read up to the length of a greeting, and never passed on. A connection that says
// nothing holds nobody up. A member calls again for some seconds if the other side hangs up: strangers may crowd a member out, and a
// connection may break before the answer is heard. The port is closed when all members are connected.
//
// This proves who is at the other end. What travels afterwards is encrypted if the group says so (LinkGroup::encrypts). Then each member
// also publishes a public key, made for this set of connections, and what two members say in their greetings is not the secrets, but
// what only they can make of their keys (encryption/key_exchange.h). The sockets lead through a thread that encrypts
// (encryption/encrypted_sockets.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/descriptor.h"
#include "core/base/status.h"
#include "core/link/encryption/encrypted_sockets.h"
#include "core/link/group.h"

namespace deft::link {

// A connection to each other member, by member; the own place is empty.
struct PeerConnections {
  std::unique_ptr<EncryptedSockets> encryption;  // null: the sockets are the connections themselves
  std::vector<Descriptor> sockets;               // to write to and to read from; they do not block

  // The TCP socket, for its options and counters.
  [[nodiscard]] int wire(std::uint32_t peer) const;
  // Why the connection has ended, if it was encrypted and the peer did not close it; else empty. Any thread.
  [[nodiscard]] std::string failure_of(std::uint32_t peer) const;
  // Ends encrypted connections at once. Any thread.
  void abandon() const;
};

// `topic`: of the keys in the store; it differs for each set of connections of a link. Errors name the members that are missing: kTimeout
// at the group's deadline, kLost if one cannot be reached or if the job ends; kExhausted without descriptors.
Result<PeerConnections> connect_peers(const LinkSpec& spec, const LinkGroup& group, std::string_view topic);

// Connections of strangers to the ports of this process, since it began. Any thread.
struct StrangerCounts {
  std::uint64_t wrong = 0;        // said what no member says, or hung up
  std::uint64_t late = 0;         // did not say all of a greeting in time
  std::uint64_t crowded_out = 0;  // had to make room for newer ones
};
StrangerCounts stranger_counts();

}  // namespace deft::link
