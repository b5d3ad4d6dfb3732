// The link backends that Deft knows, and whether this build and this machine have them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/model/link_names.h"

namespace deft::link {

// The part behind the colon in DEFT_LINKS.
enum class Place : std::uint8_t {
  kNics,          // gloo:eth0, a link on each NIC
  kNicsTogether,  // nccl:eth0,eth1, one link over all of them; without a NIC the backend chooses
  kServers,       // ps:host:port
  kNicOrNone,     // mpi:eth0, or mpi: it chooses by its own options
};

// How the links of a backend encrypt what travels between nodes (encrypt_gradients).
enum class Encryption : std::uint8_t {
  kNone,         // they cannot
  kPeerSockets,  // core/link/peer_sockets.h, by keys that the members exchange through the job's store
  kDaemonKey,    // by the key that daemons and servers share (secret_file)
};

// How many descriptors a link takes of the daemon, about.
struct DescriptorNeeds {
  std::uint32_t of_link = 0;
  std::uint32_t for_each_peer = 0;       // another node, or a server
  std::uint32_t for_each_encrypted = 0;  // instead of that, if what travels is encrypted
};

struct Backend {
  std::string_view name;
  Place place;
  bool built;                // in this build
  std::string_view summary;  // a description, or why it is missing
  // Its all-reduces are composed of halves, with an owner's stage between them (Link::composes).
  bool composes = false;
  bool adds_encoded = false;         // WorkRequest::encoded: in the owner's stage, or on servers; and kReduceByAll
  bool takes_device_memory = false;  // reduces a GPU's memory in place
  Encryption encryption = Encryption::kNone;
  bool receives_unasked = false;     // peers may send while nothing is in flight (Link::poll)
  DescriptorNeeds descriptors = {};  // links in workers take none

  // In the training process instead of the daemon; the members of its links are ranks, not nodes.
  [[nodiscard]] constexpr bool runs_in_workers() const { return model::runs_in_workers(name); }
};

std::span<const Backend> backends();

// Backend::receives_unasked of a link of this name.
bool receives_unasked(std::string_view link);

// The former name of tcp: an error that names tcp.
inline constexpr std::string_view kFormerTcp = "workertcp";

// The backend of this name. Null: Deft does not know the name.
const Backend* find_backend(std::string_view name);

// An error if links of this backend cannot be opened: unknown, or not in this build.
Result<void> check_backend(std::string_view name);

}  // namespace deft::link
