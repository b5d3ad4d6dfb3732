// Estimates how much memory this process could still get, without allocating it.
//
//   if (bytes > available_memory()) ...   // refuse: to allocate so much would call the out-of-memory killer
#pragma once

#include <cstdint>
#include <string>

namespace deft::shm {

// The available bytes: the smaller one of the machine's available memory and the rest of the limits of the process's control
// groups (v1 or v2). The largest number if neither is known. Any thread.
std::uint64_t available_memory();

// The same from files under `proc` and `cgroup` in place of /proc and /sys/fs/cgroup, for tests.
std::uint64_t available_memory(const std::string& proc, const std::string& cgroup);

}  // namespace deft::shm
