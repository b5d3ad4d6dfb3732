// The name of this machine, for people.
//
//   host_name()   // "node1"; "(unknown host)" if the kernel gives none
//
// Any thread.
#pragma once

#include <unistd.h>

#include <array>
#include <string>

namespace deft {

inline std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "(unknown host)";
}

}  // namespace deft
