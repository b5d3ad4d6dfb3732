#include "core/shm/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace deft::shm {
namespace {

constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();

std::optional<std::uint64_t> read_number(const std::string& path) {
  std::ifstream in(path);
  std::uint64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;  // no such file, or "max"
}

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

std::uint64_t left(std::optional<std::uint64_t> limit, std::optional<std::uint64_t> used) {
  if (!limit || !used) return kUnknown;
  return *limit > *used ? *limit - *used : 0;
}

// What every group from `path` up to the root leaves.
std::uint64_t group_available(const std::string& root, std::string path, const char* limit, const char* used) {
  std::uint64_t least = kUnknown;
  while (true) {
    const std::string folder = root + path + "/";
    least = std::min(least, left(read_number(folder + limit), read_number(folder + used)));
    const auto slash = path.rfind('/');
    if (slash == std::string::npos) return least;
    path.resize(slash);
  }
}

}  // namespace

std::uint64_t available_memory(const std::string& proc, const std::string& cgroup) {
  std::uint64_t least = machine_available(proc);
  std::ifstream in(proc + "/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // "0::/user.slice" or "7:memory:/docker/1234"
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty())
      least = std::min(least, group_available(cgroup, path, "memory.max", "memory.current"));
    else if (("," + controllers + ",").find(",memory,") != std::string::npos)
      least =
          std::min(least, group_available(cgroup + "/memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes"));
  }
  return least;
}

std::uint64_t available_memory() { return available_memory("/proc", "/sys/fs/cgroup"); }

}  // namespace deft::shm
