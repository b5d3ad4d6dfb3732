// How much memory this process could still get, without asking the kernel for it.
//
//   if (bytes > available_memory()) ...   // allocating would end in the out-of-memory killer, not in an error
#pragma once

#include <cstdint>
#include <string>

namespace deft::shm {

// The smaller of the machine's available memory and what the process's control groups (v1 or v2) leave; the largest
// number if neither is known.
std::uint64_t available_memory();

// The same from files under `proc` and `cgroup`, for tests ("/proc", "/sys/fs/cgroup").
std::uint64_t available_memory(const std::string& proc, const std::string& cgroup);

}  // namespace deft::shm
