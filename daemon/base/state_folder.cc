#include "daemon/base/state_folder.h"

#include <unistd.h>

#include <cstdlib>

namespace deft::daemon {
namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value == '/' ? value : "";
}

}  // namespace

std::string state_folder() {
  // systemd separates several folders by colons.
  if (const auto given = variable("STATE_DIRECTORY"); !given.empty()) return given.substr(0, given.find(':'));
  if (::geteuid() == 0) return "/var/lib/deft";
  if (const auto home = variable("XDG_STATE_HOME"); !home.empty()) return home + "/deft";
  if (const auto home = variable("HOME"); !home.empty()) return home + "/.local/state/deft";
  return "/tmp/deft-" + std::to_string(::geteuid());
}

}  // namespace deft::daemon
