// The limits that control groups (v1 or v2) put on this process: a container's, a systemd unit's, a batch system's.
//
//   const ControlGroups groups;
//   if (const auto limit_bytes = groups.memory_limit_bytes()) ...
//   if (const auto cores = groups.cores()) ...        // 0.5: half of one core's time
//
// A group's limits hold for all groups below it, so each getter looks at the process's own group and at all above it. Reads files each
// time. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace deft {

class ControlGroups {
 public:
  // Tests give other folders.
  explicit ControlGroups(std::string proc = "/proc", std::string root = "/sys/fs/cgroup")
      : proc_(std::move(proc)), root_(std::move(root)) {}

  // The least limit on memory. Nothing: no group limits it.
  [[nodiscard]] std::optional<std::uint64_t> memory_limit_bytes() const;
  // The memory that the limits leave. Files that the kernel caches count as free, because it drops them when memory is short.
  [[nodiscard]] std::optional<std::uint64_t> memory_left_bytes() const;
  // How many cores' time the process may use. Nothing: no group limits it.
  [[nodiscard]] std::optional<double> cores() const;

 private:
  struct Group {
    std::string folder;
    bool is_v2 = false;
  };
  // The groups of this process, from its own up to the root.
  [[nodiscard]] std::vector<Group> groups(const std::string& controller) const;
  static std::optional<std::uint64_t> limit_of(const Group& group);
  static std::optional<std::uint64_t> left_in(const Group& group);

  const std::string proc_;
  const std::string root_;
};

}  // namespace deft
