// HELLO, the first message of a worker, is checked before the daemon keeps or allocates anything for it.
#pragma once

#include "core/base/status.h"
#include "core/ipc/message_socket.h"
#include "daemon/node/worker_port.h"

namespace deft::daemon {

inline constexpr std::size_t kMaxSettingsBytes = 8192;

// kViolation for a packet that is no HELLO; kInvalid, with the field's name, for a value that no worker can have.
Result<WorkerHello> read_hello(const ipc::Packet& packet);

}  // namespace deft::daemon
