// Times that a command is given: "60s", "500ms", "2m".
#pragma once

#include <string>

#include "core/base/clock.h"
#include "core/base/status.h"

namespace deft::tools {

// kInvalid, naming `flag`, unless it is a time of up to a day.
Result<TimeUs> parse_duration(const std::string& flag, const std::string& text);

}  // namespace deft::tools
