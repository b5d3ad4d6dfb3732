// Converts the path of a unix socket to the form of the kernel.
//
//   auto address = UnixAddress::of(path);
//   bind(fd, address->get(), address->bytes());
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <string>

#include "core/base/status.h"

namespace deft::ipc {

class UnixAddress {
 public:
  // kInvalid if the path is empty or too long for the kernel.
  static Result<UnixAddress> of(const std::string& path) {
    UnixAddress out;
    if (path.empty() || path.size() >= sizeof out.address_.sun_path)
      return fail(ErrorKind::kInvalid,
                  "the socket path '" + path + "' has " + std::to_string(path.size()) + " characters",
                  "set DEFT_SOCKET to a path of 1 to " + std::to_string(sizeof out.address_.sun_path - 1));
    out.address_.sun_family = AF_UNIX;
    std::memcpy(out.address_.sun_path, path.c_str(), path.size() + 1);
    return out;
  }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  [[nodiscard]] socklen_t bytes() const { return sizeof address_; }

 private:
  sockaddr_un address_{};
};

}  // namespace deft::ipc
