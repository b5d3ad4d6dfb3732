#include "daemon/node/job_facts.h"

namespace deft::daemon {

std::vector<std::uint32_t> Job::Facts::local_ranks() const {
  std::vector<std::uint32_t> ranks;
  for (const auto& worker : job_.workers_) ranks.push_back(worker.rank);
  return ranks;
}

std::size_t Job::Facts::first_position() const {
  std::size_t position = 0;
  for (std::size_t node = 0; node < job_.node_ && node < job_.nodes_.size(); ++node)
    position += job_.nodes_[node].ranks.size();
  return position;
}

std::vector<std::uint32_t> Job::Facts::link_epochs() const {
  std::vector<std::uint32_t> epochs(job_.link_specs_.size(), 0);
  for (std::size_t link = 0; link < job_.links_.size(); ++link) epochs[link] = job_.links_[link].epoch;
  return epochs;
}

std::optional<wire::NodeFacts::Group> Job::Facts::group(std::uint32_t id) const {
  const auto it = job_.groups_.find(id);
  if (it == job_.groups_.end() || !it->second.gradients) return std::nullopt;
  const Gradients& gradients = *it->second.gradients;
  Group group{.slot_bytes = gradients.layout().slot_bytes, .slots = gradients.layout().slots, .buckets = {}};
  if (it->second.agreed) group.buckets = gradients.buckets();
  return group;
}

std::optional<wire::NodeFacts::Operation> Job::Facts::operation(const std::string& name) const {
  const auto it = job_.operations_.find(name);
  if (it == job_.operations_.end()) return std::nullopt;
  Operation operation;
  operation.started = it->second.started;
  const auto& requests = it->second.requests;
  for (std::size_t worker = 0; worker < requests.size(); ++worker) {
    if (!requests[worker]) break;
    const auto spec = collective_spec(requests[worker]->call, job_.workers_[worker].rank);
    if (worker == 0) operation.first = spec;
    operation.counts.push_back(spec.count);
  }
  return operation;
}

}  // namespace deft::daemon
