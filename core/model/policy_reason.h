// Why a policy is in force. Plain data, for the scheduler that decides and for traces that tell of it.
#pragma once

#include <cstdint>

namespace deft::model {

// Traces have these numbers: another reason comes at the end.
enum class PolicyReason : std::uint8_t {
  kBegan = 1,      // the job begins with it
  kForecast = 2,   // the simulator expects it to be faster, and it is tried
  kConfirmed = 3,  // tried, and faster
  kNoBetter = 4,   // another one was tried, and was no faster
  kKept = 5,       // the simulator expects no other one to be faster
  kUser = 6,       // the user has set it, or its sizes
  kLinkLost = 7,   // as kForecast, because a link is lost
};
inline constexpr PolicyReason kLastPolicyReason = PolicyReason::kLinkLost;

}  // namespace deft::model
