// What a job's policy is called where people read a daemon's status: in `deft status`, and on the daemon's page.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace deft::model {

// Of a job in the status of a daemon: the policy in force, and the configured one if that is another. Only the leader knows the first, and
// a group may have its own. The names are the user's: the caller escapes the text.
std::string policy_text(const nlohmann::json& job);

}  // namespace deft::model
