#include "tools/policy_argument.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "core/base/policy_traits.h"
#include "core/base/text.h"

namespace deft::tools {

Result<void> check_policy(const std::string& policy) {
  std::vector<std::string_view> names = {"all"};
  for (const PolicyTraits& traits : kPolicyTraits) names.push_back(traits.name);
  if (std::ranges::find(names, policy) != names.end()) return {};
  return fail(ErrorKind::kInvalid, "--policy: '" + policy + "' is none of " + joined(names, " "),
              did_you_mean(policy, names));
}

}  // namespace deft::tools
