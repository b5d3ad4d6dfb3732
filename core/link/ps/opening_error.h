// Explains what ZeroMQ throws while the sockets of a link or of a parameter server are opened.
#pragma once

#include <cerrno>
#include <string>
#include <zmq.hpp>

#include "core/base/status.h"

namespace deft::link::ps_backend {

// kExhausted without descriptors or memory; else kInvalid, because the addresses are the user's, and `fix` says how to correct them.
inline Error opening_error(const zmq::error_t& error, const std::string& what, const std::string& fix) {
  const int number = error.num();
  const bool exhausted = number == EMFILE || number == ENFILE || number == ENOMEM || number == ENOBUFS;
  return {exhausted ? ErrorKind::kExhausted : ErrorKind::kInvalid,
          what + ": " + error.what(),
          exhausted ? "allow more descriptors and memory: ulimit -n, LimitNOFILE and MemoryMax of the unit" : fix,
          {}};
}

}  // namespace deft::link::ps_backend
