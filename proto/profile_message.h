// A profile between core/model's plain data and its protobuf message (deft.Profile). The JSON form needs neither:
// core/model/profile.h reads and writes it.
#pragma once

#include "core/base/status.h"
#include "core/model/profile.h"
#include "proto/profile.pb.h"

namespace deft::messages {

deft::Profile to_message(const model::Profile& profile);

// Checks every value as parse_profile does; an error names the field: "profile: buckets[3].forward_us: -2 is negative".
Result<model::Profile> from_message(const deft::Profile& message);

}  // namespace deft::messages
