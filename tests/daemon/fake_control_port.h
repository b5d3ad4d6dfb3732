// A control plane that only remembers what it was given to send.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/server/control_inbox.h"

namespace deft::daemon {

struct FakeControlPort final : ControlPort {
  Result<Peer> connect(const std::string& address, uid_t /*user*/) override {
    if (refuses) return tl::unexpected(*refuses);
    connected.push_back(address);
    return Peer("leader");
  }
  void disconnect(const Peer& peer) override { disconnected.push_back(peer); }
  void send(const Peer& peer, const std::string& message) override { sent.emplace_back(peer, message); }
  [[nodiscard]] bool is_locked_out(const Peer& /*peer*/) const override { return locked_out; }
  [[nodiscard]] bool is_nowhere(const Peer& /*peer*/) const override { return nowhere; }
  std::optional<Error> refuses;
  bool locked_out = false;
  bool nowhere = false;  // the leader's name has no address
  std::vector<std::string> connected;
  std::vector<Peer> disconnected;
  std::vector<std::pair<Peer, std::string>> sent;
};

}  // namespace deft::daemon
