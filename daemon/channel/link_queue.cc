#include "daemon/channel/link_queue.h"

#include <algorithm>

namespace deft::daemon {

std::uint64_t LinkQueue::finished_below(std::uint64_t next) const {
  const std::uint64_t waits = started_below(next);
  return running.empty() ? waits : std::min(waits, running.begin()->first);
}

void LinkQueue::finished(SubCommTask launch, std::size_t transferred) {
  if (!launch.contribution) return;
  untold_bytes += transferred;
  const std::uint64_t number = launch.number;
  kept.insert_or_assign(number, std::move(launch));
}

Result<void> LinkQueue::run_again(std::uint64_t from) {
  release(from);
  std::map<std::uint64_t, SubCommTask> again = std::move(running);
  again.merge(kept);
  running.clear();
  kept.clear();
  for (const auto& [number, launch] : again)
    if (!launch.contribution)
      return fail(ErrorKind::kInternal, "launch " + std::to_string(number) + " was not kept to be run again");
  for (auto& launch : waiting) {
    const std::uint64_t number = launch.number;
    again.emplace(number, std::move(launch));
  }
  waiting.clear();
  for (auto& [number, launch] : again) waiting.push_back(std::move(launch));
  run_again_parts += static_cast<std::uint64_t>(
      std::count_if(waiting.begin(), waiting.end(), [](const SubCommTask& l) { return l.contribution != nullptr; }));
  return {};
}

}  // namespace deft::daemon
