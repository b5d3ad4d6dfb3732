#include "daemon/leader/collective_coordinator.h"

#include <algorithm>

#include "core/model/dtype.h"

namespace deft::daemon {
namespace {

std::string describe(const wire::CollectiveSpec& spec) {
  static constexpr std::string_view kCollectives[] = {"?", "an allreduce", "a broadcast", "an allgather", "a barrier"};
  static constexpr std::string_view kOps[] = {"?", "sum", "min", "max"};
  std::string text(kCollectives[static_cast<std::size_t>(spec.collective)]);
  if (spec.collective != ipc::Collective::kBarrier)
    text += " of " + std::to_string(spec.count) + " " + std::string(model::to_string(spec.dtype));
  if (spec.collective == ipc::Collective::kAllReduce)
    text += " (" + std::string(kOps[static_cast<std::size_t>(spec.op)]) + ")";
  if (spec.collective == ipc::Collective::kBroadcast) text += " from rank " + std::to_string(spec.root);
  if (!spec.terms.empty()) text += " (" + spec.terms + ")";
  return text + " on rank " + std::to_string(spec.rank);
}

bool alike(const wire::CollectiveSpec& a, const wire::CollectiveSpec& b) {
  const bool gathers = a.collective == ipc::Collective::kAllGather;
  return a.collective == b.collective && a.dtype == b.dtype && a.op == b.op && a.root == b.root && a.terms == b.terms &&
         (gathers ? a.capacity == b.capacity : a.count == b.count);
}

}  // namespace

// decode() has limited every count to 4 TiB, and there are at most 2^20 ranks: the sum does not overflow.
std::optional<Error> CollectiveCoordinator::mismatch(const std::string& name, const Pending& pending) const {
  const auto& first = pending.requests.front()->specs.front();
  std::uint64_t total = 0;
  for (const auto& request : pending.requests) {
    for (const auto& spec : request->specs) {
      total += spec.count;
      if (!alike(first, spec))
        return Error{ErrorKind::kMismatch,
                     "'" + name + "' is " + describe(first) + " and " + describe(spec),
                     "all ranks must ask for the same",
                     {}};
    }
  }
  if (first.collective == ipc::Collective::kAllGather && total != first.capacity)
    return Error{ErrorKind::kMismatch,
                 "'" + name + "': the ranks bring " + std::to_string(total) + " elements where " +
                     std::to_string(first.capacity) + " are expected",
                 "give the same counts on all ranks",
                 {}};
  if (first.root >= world_)
    return Error{ErrorKind::kInvalid, "'" + name + "': there is no rank " + std::to_string(first.root), "", {}};
  return std::nullopt;
}

std::optional<CollectiveCoordinator::Ready> CollectiveCoordinator::ask(std::size_t node, wire::CollectiveReady request,
                                                                       TimeUs now_us) {
  const auto [it, added] = pending_.try_emplace(request.name);
  Pending& pending = it->second;
  if (added) pending = {std::vector<std::optional<wire::CollectiveReady>>(nodes_), now_us};
  pending.requests[node] = std::move(request);
  for (const auto& one : pending.requests)
    if (!one) return std::nullopt;
  Ready ready{.name = it->first, .mismatch = mismatch(it->first, pending), .counts = {}};
  const auto& first = pending.requests.front()->specs.front();
  ready.bytes = std::max(first.count, first.capacity) * model::dtype_bytes(first.dtype);
  for (const auto& one : pending.requests)
    for (const auto& spec : one->specs) ready.counts.push_back(spec.count);
  pending_.erase(it);
  return ready;
}

std::vector<CollectiveCoordinator::Owed> CollectiveCoordinator::watch(
    TimeUs now_us, const std::function<bool(std::size_t node)>& is_gone) const {
  std::vector<Owed> owed;
  for (const auto& [name, pending] : pending_) {
    const TimeUs age = now_us - pending.since_us;
    const bool due = age / timing_.warning_us != (age - timing_.heartbeat_us) / timing_.warning_us;
    for (std::size_t node = 0; node < pending.requests.size(); ++node) {
      if (pending.requests[node]) continue;
      const Owed one{node, name, age, is_gone(node) && age > timing_.gone_us, age > timing_.stall_timeout_us};
      if (one.gone || one.too_long || (age >= timing_.warning_us && due)) owed.push_back(one);
      if (one.gone || one.too_long) return owed;
    }
  }
  return owed;
}

}  // namespace deft::daemon
