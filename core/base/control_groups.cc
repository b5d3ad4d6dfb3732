#include "core/base/control_groups.h"

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <string_view>

namespace deft {
namespace {

constexpr std::uint64_t kNoMemoryLimit = std::uint64_t{1} << 62;  // v1 writes a number near 2^63 in place of none

// Nothing: there is no such file, or no number in it ("max", "-1").
template <typename Number>
std::optional<Number> read_number(const std::string& path) {
  std::ifstream in(path);
  Number value = 0;
  if (in >> value && value >= 0) return value;
  return std::nullopt;
}

// The sum of these fields of a group's memory.stat.
std::uint64_t sum_of_fields(const std::string& path, std::initializer_list<std::string_view> fields) {
  std::ifstream in(path);
  std::string name;
  std::uint64_t value = 0, sum = 0;
  while (in >> name >> value)
    if (std::ranges::find(fields, name) != fields.end()) sum += value;
  return sum;
}

template <typename Number>
void take_less(std::optional<Number>& least, std::optional<Number> value) {
  if (value && (!least || *value < *least)) least = value;
}

}  // namespace

std::vector<ControlGroups::Group> ControlGroups::groups(const std::string& controller) const {
  std::vector<Group> found;
  std::ifstream in(proc_ + "/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // "0::/user.slice" or "7:memory:/docker/1234"
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_v2 = controllers.empty();
    if (!is_v2 && ("," + controllers + ",").find("," + controller + ",") == std::string::npos) continue;
    std::string path = line.substr(second + 1);
    while (true) {
      found.push_back({root_ + (is_v2 ? "" : "/" + controller) + path + "/", is_v2});
      const auto slash = path.rfind('/');
      if (slash == std::string::npos) break;
      path.resize(slash);
    }
  }
  return found;
}

std::optional<std::uint64_t> ControlGroups::limit_of(const Group& group) {
  const auto limit = read_number<std::uint64_t>(group.folder + (group.is_v2 ? "memory.max" : "memory.limit_in_bytes"));
  return limit && *limit < kNoMemoryLimit ? limit : std::nullopt;
}

std::optional<std::uint64_t> ControlGroups::left_in(const Group& group) {
  const auto limit = limit_of(group);
  auto used = read_number<std::uint64_t>(group.folder + (group.is_v2 ? "memory.current" : "memory.usage_in_bytes"));
  if (!limit || !used) return std::nullopt;
  const std::string statistics = group.folder + "memory.stat";
  *used -= std::min(*used, group.is_v2 ? sum_of_fields(statistics, {"inactive_file", "active_file"})
                                       : sum_of_fields(statistics, {"total_inactive_file", "total_active_file"}));
  return *limit > *used ? *limit - *used : 0;
}

std::optional<std::uint64_t> ControlGroups::memory_limit_bytes() const {
  std::optional<std::uint64_t> least;
  for (const Group& group : groups("memory")) take_less(least, limit_of(group));
  return least;
}

std::optional<std::uint64_t> ControlGroups::memory_left_bytes() const {
  std::optional<std::uint64_t> least;
  for (const Group& group : groups("memory")) take_less(least, left_in(group));
  return least;
}

std::optional<double> ControlGroups::cores() const {
  std::optional<double> least;
  for (const Group& group : groups("cpu")) {
    std::ifstream both(group.folder + "cpu.max");  // "50000 100000" or "max 100000"
    double quota = 0, period = 0;
    if (group.is_v2 && both >> quota >> period && period > 0) take_less(least, std::optional(quota / period));
    const auto old_quota = read_number<std::int64_t>(group.folder + "cpu.cfs_quota_us");
    const auto old_period = read_number<std::int64_t>(group.folder + "cpu.cfs_period_us");
    if (!group.is_v2 && old_quota && old_period && *old_period > 0)
      take_less(least, std::optional(static_cast<double>(*old_quota) / static_cast<double>(*old_period)));
  }
  return least;
}

}  // namespace deft
