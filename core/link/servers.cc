#include "core/link/servers.h"

#include <algorithm>

#include "core/base/numbers.h"

namespace deft::link {
namespace {

constexpr std::string_view kFix =
    "write ps:host:port, and several servers as ps:host:port+host:port, with names or IPv4 addresses";

bool is_address(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  const std::string_view host = text.substr(0, colon);
  if (parse_whole<std::uint16_t>(text.substr(colon + 1)).value_or(0) == 0) return false;
  return host.find_first_of(":[] ") == std::string_view::npos;
}

}  // namespace

Result<std::vector<std::string>> split_servers(std::string_view text) {
  std::vector<std::string> servers;
  while (true) {
    const std::size_t plus = text.find('+');
    const std::string_view server = text.substr(0, plus);
    if (!is_address(server)) {
      return fail(ErrorKind::kInvalid, "'" + std::string(server) + "' is no address of a parameter server",
                  std::string(kFix));
    }
    if (std::ranges::find(servers, server) != servers.end()) {
      return fail(ErrorKind::kInvalid, "the parameter server " + std::string(server) + " is given twice",
                  "name each server once");
    }
    servers.emplace_back(server);
    if (plus == std::string_view::npos) return servers;
    text.remove_prefix(plus + 1);
  }
}

}  // namespace deft::link
