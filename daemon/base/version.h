// The version of the daemon, from CMake.
#pragma once

namespace deft::daemon {

inline constexpr char kVersion[] = DEFT_VERSION;

}  // namespace deft::daemon
