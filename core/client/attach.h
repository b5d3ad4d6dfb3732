// Attaches this worker to its node's daemon: connects, sends HELLO, and waits for WELCOME.
//
//   auto attachment = attach(config, placement);   // blocks until all workers of the job have come
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/placement.h"
#include "core/base/status.h"
#include "core/ipc/message_socket.h"
#include "core/link/link.h"
#include "core/shm/control_segment.h"
#include "core/shm/doorbell.h"

namespace deft::client {

inline constexpr const char* kVersion = DEFT_VERSION;

// This worker's place among the workers of the job.
struct World {
  std::uint32_t rank = 0, size = 1, local_rank = 0, local_size = 1, node = 0, nodes = 1;
  std::vector<std::uint32_t> node_of;  // [rank]
};

// A link that this worker runs itself.
struct AnnouncedLink {
  std::uint32_t number = 0;  // its number in START
  link::LinkSpec spec;
  std::string prefix;  // the prefix of its keys in the job's store
  bool encrypts = false;
};

// Everything that a worker has after it attached. It owns the socket, the shared memory and the doorbells.
struct Attachment {
  ipc::MessageSocket channel;
  shm::Segment segment;
  shm::ControlSegment view;
  shm::Doorbell daemon_bell;  // the worker rings it
  shm::Doorbell own_bell;     // other threads of this worker ring it
  World world;
  TimeUs timeout_us = 0;
  TimeUs spin_us = 0;
  std::vector<AnnouncedLink> links;
  std::uint32_t daemon_links = 0;  // how many links of the job the daemons run
  std::string job = {};            // its name
  std::string socket = {};         // the path of the daemon's
  TimeUs opens_by_us = 0;          // MonotonicClock: the deadline of the links that this worker runs
};

// Blocks until all workers of the job have come. If workers are missing, the daemon's deadline comes first, and its error names
// them. The deadline of this function comes later, and its error says that the daemon is silent.
Result<Attachment> attach(const Config& config, const Placement& placement);

}  // namespace deft::client
