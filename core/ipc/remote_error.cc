#include "core/ipc/remote_error.h"

#include "core/ipc/wire.h"

namespace deft::ipc {

Result<RemoteError> read_error(std::span<const std::byte> bytes) {
  auto message = decode<ErrorMessage>(bytes, MessageKind::kError, 3);
  if (!message) return tl::unexpected(message.error());
  return RemoteError{
      {error_kind_of(message->fixed.error_kind), message->texts[0], message->texts[1], message->texts[2]},
      message->fixed.operation};
}

}  // namespace deft::ipc
