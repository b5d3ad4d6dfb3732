// The error that a daemon tells by a message ERROR.
//
//   const auto told = read_error(packet.bytes);
//   if (told) return tl::unexpected(told->error);
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/status.h"

namespace deft::ipc {

struct RemoteError {
  Error error;
  std::uint64_t operation = 0;  // 0: the job failed
};

// kViolation if the message is no ERROR. A kind of error that is not known here becomes kInternal.
Result<RemoteError> read_error(std::span<const std::byte> bytes);

}  // namespace deft::ipc
