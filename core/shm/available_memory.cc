#include "core/shm/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

#include "core/base/control_groups.h"

namespace deft::shm {
namespace {

constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();

std::uint64_t machine_available(const std::string& proc) {
  std::ifstream in(proc + "/meminfo");
  std::string key;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::uint64_t kilobytes = 0;
    if (words >> key >> kilobytes && key == "MemAvailable:") return kilobytes * 1024;
  }
  return kUnknown;
}

}  // namespace

std::uint64_t available_memory(const std::string& proc, const std::string& cgroup) {
  return std::min(machine_available(proc), ControlGroups(proc, cgroup).memory_left_bytes().value_or(kUnknown));
}

std::uint64_t available_memory() { return available_memory("/proc", "/sys/fs/cgroup"); }

}  // namespace deft::shm
