#include "daemon/server/refusals.h"

#include <glog/logging.h>

namespace deft::daemon {

void Refusals::add(uid_t user, const Error& error, TimeUs now_us) {
  ++counts_[{user, error.kind}];
  const auto left_out = lines_.admit(now_us);
  if (!left_out) return;
  LOG(WARNING) << "a client of user " << user << " is refused: " << error.message() << RateLimit::describe(*left_out);
}

nlohmann::json Refusals::status(std::optional<uid_t> user) const {
  nlohmann::json json = nlohmann::json::array();
  for (const auto& [key, count] : counts_)
    if (!user || key.first == *user)
      json.push_back({{"user", key.first}, {"reason", to_string(key.second)}, {"count", count}});
  return json;
}

}  // namespace deft::daemon
