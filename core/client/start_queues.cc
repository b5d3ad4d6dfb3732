#include "core/client/start_queues.h"

namespace deft::client {

StartQueues::StartQueues(Connection& connection) : connection_(connection) {
  for (const AnnouncedLink& link : connection.attachment().links) starts_[link.number];
}

Result<shm::Record> StartQueues::next(std::uint32_t link) {
  shm::Record start;
  auto waited = connection_.wait([&] {
    auto& waiting = starts_.at(link);
    if (waiting.empty()) return false;
    start = waiting.front();
    waiting.pop_front();
    return true;
  });
  if (!waited) return tl::unexpected(waited.error());
  return start;
}

Result<void> StartQueues::push(std::uint32_t link, const shm::Record& start) {
  const auto found = starts_.find(link);
  if (found == starts_.end()) return tl::unexpected(violation("a launch for a link that this worker does not run"));
  found->second.push_back(start);
  return {};
}

}  // namespace deft::client
