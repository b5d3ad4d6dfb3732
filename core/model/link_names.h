// Facts in the name of a link, as it stands in DEFT_LINKS, in traces and in profiles: gloo:eth0, ps:host:port+host:port, mpi.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace deft::model {

// The backend of a link by its name: of gloo:eth0 it is gloo. Of a backend it is the backend.
constexpr std::string_view backend_of(std::string_view link) { return link.substr(0, link.find(':')); }

// True if all nodes of the link are on one machine, and no NIC carries it.
constexpr bool is_loopback(std::string_view link) { return link.ends_with(":lo"); }

// True if parameter servers add the gradients that the nodes send over it.
constexpr bool has_servers(std::string_view link) { return backend_of(link) == "ps"; }

// True if the workers run it in their own processes.
constexpr bool runs_in_workers(std::string_view link) {
  return backend_of(link) == "nccl" || backend_of(link) == "tcp";
}

// True if the daemons can run one half of its all-reduces without the other (dear).
constexpr bool has_halves(std::string_view link) { return !has_servers(link) && !runs_in_workers(link); }

// The option `links` that asks for these links. One over several NICs is called nccl:eth0+eth1, and the option says nccl:eth0,eth1.
inline std::string links_option(const std::vector<std::string>& links) {
  std::string option;
  for (const std::string& link : links) {
    if (!option.empty()) option += ',';
    for (const char c : link) option += c == '+' && backend_of(link) == "nccl" ? ',' : c;
  }
  return option;
}

}  // namespace deft::model
