// Numbers of this process, from the kernel: memory, CPU time, descriptors, threads.
//
//   json["process"] = process_numbers();
//
// Reads some files of /proc/self; a number that cannot be read is left out. Any thread, but not the reactor's: a list of thousands of
// descriptors takes milliseconds.
#pragma once

#include <nlohmann/json.hpp>

namespace deft::daemon {

nlohmann::json process_numbers();

}  // namespace deft::daemon
