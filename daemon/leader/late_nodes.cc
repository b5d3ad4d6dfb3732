#include "daemon/leader/late_nodes.h"

#include <algorithm>
#include <utility>

namespace deft::daemon {

void LateNodes::came(const std::string& name, std::size_t node, std::size_t nodes, TimeUs now_us,
                     std::optional<std::uint32_t> group) {
  const auto [it, added] = waits_.try_emplace(name);
  if (added) it->second = {std::vector<bool>(nodes), now_us, group};
  it->second.came[node] = true;
}

std::vector<LateNodes::Owed> LateNodes::watch(TimeUs now_us, const std::function<bool(std::size_t node)>& is_gone) {
  const TimeUs before_us = std::exchange(watched_us_, now_us);
  std::vector<Owed> owed;
  for (const auto& [name, wait] : waits_) {
    // An age below zero would be told as an endless one, so it is none here, whatever clock the caller has.
    const TimeUs age = std::max<TimeUs>(now_us - wait.since_us, 0);
    const TimeUs age_before = std::max<TimeUs>(before_us - wait.since_us, 0);
    const bool due = age / timing_.warning_us > age_before / timing_.warning_us;
    for (std::size_t node = 0; node < wait.came.size(); ++node) {
      if (wait.came[node]) continue;
      const Owed one{
          node, duty_, name, wait.group, age, is_gone(node) && age > timing_.gone_us, age > timing_.stall_timeout_us};
      if (one.gone || one.too_long || due) owed.push_back(one);
      if (one.gone || one.too_long) return owed;
    }
  }
  return owed;
}

}  // namespace deft::daemon
