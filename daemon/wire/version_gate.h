// Refuses messages of daemons that speak another version of the protocol.
//
//   if (const auto error = gate.mismatch(received)) {        // the job that it is for hears of this error
//     if (const auto answer = gate.answer(from, received)) plane.send(from, *answer);
//     return;                                                // and nothing else is read of it
//   }
//
// Each peer is refused once, and a refusal is never answered: so two daemons of different versions exchange one message each,
// whatever either of them does with it. Not thread-safe.
#pragma once

#include <optional>
#include <string>
#include <unordered_set>

#include "core/base/status.h"
#include "daemon/wire/codec.h"

namespace deft::daemon {

class VersionGate {
 public:
  explicit VersionGate(std::string host) : host_(std::move(host)) {}

  // The error of a message of another version, or of a refusal. It names both versions.
  [[nodiscard]] std::optional<Error> mismatch(const wire::Received& received) const;
  // The refusal to send to the peer that such a message came from.
  std::optional<std::string> answer(const Peer& from, const wire::Received& received);

 private:
  static constexpr std::size_t kRemembered = 4096;  // peers
  [[nodiscard]] Error error_for(std::uint32_t version) const;
  const std::string host_;
  std::unordered_set<Peer> refused_;
};

}  // namespace deft::daemon
