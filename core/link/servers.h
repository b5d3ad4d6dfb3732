// The parameter servers of one link, as DEFT_LINKS gives them: host:port+host:port.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace deft::link {

// Their addresses, in the order given; IPv4 addresses or names.
Result<std::vector<std::string>> split_servers(std::string_view text);

// Whether an address is this machine itself, so that no other machine can mean the same server by it.
bool is_loopback_address(std::string_view host_and_port);

}  // namespace deft::link
