// Finds the folder in which a daemon keeps files that outlive it.
//
//   const std::string folder = state_folder();   // $STATE_DIRECTORY of a systemd unit, or a folder of the user's environment
#pragma once

#include <string>

namespace deft::daemon {

// $STATE_DIRECTORY; of root /var/lib/deft; else $XDG_STATE_HOME/deft, $HOME/.local/state/deft or /tmp/deft-UID. It may not exist yet.
std::string state_folder();

}  // namespace deft::daemon
