// Clients that the daemon refused or dropped: counted by user and reason, and told in the log, which a flood of them does not fill.
//
//   refusals.add(uid, error, now_us);   // the error names the client
//   json["refusals"] = refusals.status();
//
// Reactor thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/base/status.h"
#include "daemon/base/rate_limit.h"

namespace deft::daemon {

class Refusals {
 public:
  void add(uid_t user, const Error& error, TimeUs now_us);

  // One object for each user and reason: of this user, or of all users.
  [[nodiscard]] nlohmann::json status(std::optional<uid_t> user = std::nullopt) const;

 private:
  std::map<std::pair<uid_t, ErrorKind>, std::uint64_t> counts_;
  RateLimit lines_;
};

}  // namespace deft::daemon
