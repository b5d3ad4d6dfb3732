#include "daemon/wire/version_gate.h"

namespace deft::daemon {

Error VersionGate::error_for(std::uint32_t version) const {
  return {ErrorKind::kMismatch,
          "the daemon on " + host_ + " speaks control version " + std::to_string(wire::kControlVersion) +
              ", another one version " + std::to_string(version),
          "install the same version of Deft on all nodes",
          {}};
}

std::optional<Error> VersionGate::mismatch(const wire::Received& received) const {
  if (received.is_refusal()) return received.refusal();
  if (received.header().version == wire::kControlVersion) return std::nullopt;
  return error_for(received.header().version);
}

std::optional<std::string> VersionGate::answer(const Peer& from, const wire::Received& received) {
  if (received.is_refusal()) return std::nullopt;
  if (refused_.size() >= kRemembered) refused_.clear();
  if (!refused_.insert(from).second) return std::nullopt;
  const wire::Header& asked = received.header();
  return wire::encode_refusal({.job = asked.job, .incarnation = asked.incarnation}, error_for(asked.version));
}

}  // namespace deft::daemon
