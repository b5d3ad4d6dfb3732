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
std::optional<Error> CollectiveCoordinator::mismatch(const std::string& name, const Requests& requests) const {
  const auto& first = requests.front()->specs.front();
  std::uint64_t total = 0;
  for (const auto& request : requests) {
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
  const auto it = pending_.try_emplace(request.name, nodes_).first;
  Requests& requests = it->second;
  late_.came(request.name, node, nodes_, now_us);
  requests[node] = std::move(request);
  for (const auto& one : requests)
    if (!one) return std::nullopt;
  Ready ready{.name = it->first, .mismatch = mismatch(it->first, requests), .counts = {}};
  const auto& first = requests.front()->specs.front();
  ready.bytes = std::max(first.count, first.capacity) * model::dtype_bytes(first.dtype);
  for (const auto& one : requests)
    for (const auto& spec : one->specs) ready.counts.push_back(spec.count);
  late_.done(it->first);
  pending_.erase(it);
  return ready;
}

}  // namespace deft::daemon
