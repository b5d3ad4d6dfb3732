// Whether links would encrypt what they send if encrypt_gradients is on: one rule for jobs, deft doctor and deft probe.
#pragma once

#include <cstdint>

#include "core/link/backends.h"

namespace deft::link {

// Why the links of a backend send in the clear.
enum class ClearCause : std::uint8_t {
  kNone,     // they do not
  kBackend,  // the backend cannot encrypt
  kNoKey,    // the daemons and servers have no key (secret_file)
};

// The keys of gloo and tcp links come through the control plane. Without a key of the daemons, who stands between machines could exchange
// these, too.
constexpr ClearCause clear_cause(Encryption encryption, bool has_key, bool is_one_machine) {
  if (encryption == Encryption::kNone) return ClearCause::kBackend;
  const bool needs_key = encryption == Encryption::kDaemonKey || !is_one_machine;
  return needs_key && !has_key ? ClearCause::kNoKey : ClearCause::kNone;
}

}  // namespace deft::link
