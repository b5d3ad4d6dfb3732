// The parameter servers of one link, as DEFT_LINKS gives them: host:port+host:port.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace deft::link {

// Their addresses, in the order given; IPv4 addresses or names.
Result<std::vector<std::string>> split_servers(std::string_view text);

}  // namespace deft::link
