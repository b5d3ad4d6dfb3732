#include "core/model/policy_text.h"

#include <nlohmann/json.hpp>

namespace deft::model {
namespace {

using Json = nlohmann::json;

std::string in_force_on(const Json& leader) {
  std::string text;
  const auto found = leader.find("policies_in_force");
  if (found == leader.end() || !found->is_array()) return text;
  for (const auto& policy : *found)
    if (policy.is_string()) text += (text.empty() ? "" : " and ") + policy.get<std::string>();
  return text;
}

}  // namespace

std::string policy_text(const Json& job) {
  const auto found = job.find("policy");
  const std::string configured = found != job.end() && found->is_string() ? found->get<std::string>() : "-";
  const auto leader = job.find("leader");
  if (leader == job.end()) return "configured policy " + configured;
  const std::string in_force = in_force_on(*leader);
  if (in_force.empty() || in_force == configured) return "policy " + configured;
  return "policy " + in_force + " (configured: " + configured + ")";
}

}  // namespace deft::model
