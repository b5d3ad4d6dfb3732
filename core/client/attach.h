// Attaching to this node's daemon: connect, HELLO, WELCOME.
//
//   auto attachment = attach(config, placement);   // blocks until the whole job has come
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/placement.h"
#include "core/base/status.h"
#include "core/ipc/channel.h"
#include "core/link/link.h"
#include "core/shm/control_segment.h"
#include "core/shm/doorbell.h"

namespace deft::client {

inline constexpr const char* kVersion = DEFT_VERSION;

struct World {
  std::uint32_t rank = 0, size = 1, local_rank = 0, local_size = 1, node = 0, nodes = 1;
  std::vector<std::uint32_t> node_of;  // of each rank
};

// A link that this worker runs itself.
struct AnnouncedLink {
  std::uint32_t number = 0;  // what START calls it
  link::LinkSpec spec;
  std::string prefix;  // of its keys in the job's store
};

struct Attachment {
  ipc::Channel channel;
  shm::Segment segment;
  shm::ControlSegment view;
  shm::Doorbell daemon_bell;  // rung by us
  shm::Doorbell own_bell;     // rung by the daemon
  World world;
  TimeUs timeout_us = 0;
  TimeUs spin_us = 0;
  std::vector<AnnouncedLink> links;
  std::uint32_t daemon_links = 0;  // links of the job that daemons run
};

// Blocks until the whole job has come. The daemon's deadline comes first, and its error names who is missing; ours comes
// later and only says that the daemon is silent.
Result<Attachment> attach(const Config& config, const Placement& placement);

// The Error that an ERROR message carries.
struct RemoteError {
  Error error;
  std::uint64_t operation = 0;  // 0: the job failed
};
Result<RemoteError> read_error(std::span<const std::byte> bytes);

}  // namespace deft::client
