#include "daemon/node/collective_table.h"

#include <algorithm>

namespace deft::daemon {

bool CollectiveTable::CollectiveState::complete() const {
  return std::ranges::all_of(requests, [](const auto& request) { return request.has_value(); });
}

// Fields that the collective does not use stay zero: the codec refuses others.
wire::CollectiveSpec CollectiveTable::spec_of(std::size_t worker, const CollectiveRequest& request) const {
  const ipc::Operation& call = request.call;
  wire::CollectiveSpec spec;
  spec.rank = members_.workers()[worker].rank;
  spec.collective = call.collective;
  spec.terms = request.terms;
  if (call.collective == ipc::Collective::kBarrier) return spec;
  spec.dtype = static_cast<model::DType>(call.dtype);
  spec.op = static_cast<model::ReduceOp>(call.reduce_op);
  spec.root = call.root;
  spec.count = call.count;
  if (call.collective == ipc::Collective::kAllGather) spec.capacity = call.capacity;
  return spec;
}

Result<void> CollectiveTable::request(std::size_t worker, CollectiveRequest request, TimeUs now_us) {
  const std::string name = request.name;
  const auto [it, added] = collectives_.try_emplace(name);
  CollectiveState& collective = it->second;
  if (added) {
    collective.requests.resize(members_.workers().size());
    collective.since_us = now_us;
  }
  if (collective.requests[worker])
    return deft::fail(ErrorKind::kInvalid, "a collective named '" + name + "' is still under way",
                      "finish it first, or give the new one another name");
  collective.requests[worker] = std::move(request);
  if (!collective.complete()) return {};
  wire::CollectiveReady ready{name, {}};
  for (std::size_t i = 0; i < collective.requests.size(); ++i)
    ready.specs.push_back(spec_of(i, *collective.requests[i]));
  leader_.send(std::move(ready));
  return {};
}

Result<SubCommTask> CollectiveTable::start(const wire::CollectiveStart& message) {
  const std::string what = "the leader started '" + message.name + "'";
  const auto it = collectives_.find(message.name);
  if (it == collectives_.end() || !it->second.complete() || it->second.started)
    return deft::fail(ErrorKind::kViolation, what + ", which nobody here asked for");
  const std::size_t first = view_->first_position();
  if (message.counts.size() != view_->world())
    return deft::fail(ErrorKind::kViolation, what + " with " + std::to_string(message.counts.size()) + " counts for " +
                                                 std::to_string(view_->world()) + " ranks");
  CollectiveState& collective = it->second;
  for (std::size_t i = 0; i < collective.requests.size(); ++i) {
    const ipc::Operation& call = collective.requests[i]->call;
    if (call.collective == ipc::Collective::kBarrier) continue;
    if (call.root >= view_->world())
      return deft::fail(ErrorKind::kViolation,
                        what + " from rank " + std::to_string(call.root) + ", which does not exist");
    if (message.counts[first + i] != call.count)
      return deft::fail(ErrorKind::kViolation, what + " with " + std::to_string(message.counts[first + i]) +
                                                   " elements of rank " + std::to_string(members_.workers()[i].rank) +
                                                   ", which brought " + std::to_string(call.count));
    if (call.collective != ipc::Collective::kAllGather) continue;
    std::uint64_t room = call.capacity;
    for (const std::uint64_t count : message.counts) {
      if (count > room)
        return deft::fail(ErrorKind::kViolation, what + " with more elements than " + std::to_string(call.capacity));
      room -= count;
    }
  }
  collective.started = true;
  collective.counts = message.counts;
  SubCommTask launch;
  launch.number = message.number;
  launch.is_collective = true;
  launch.collective = message.name;
  return launch;
}

void CollectiveTable::fail(const wire::CollectiveFailed& message) {
  const auto found = collectives_.extract(message.name);
  if (found.empty()) return;
  for (std::size_t i = 0; i < found.mapped().requests.size(); ++i) {
    const auto& request = found.mapped().requests[i];
    WorkerPort* const worker = members_.workers()[i].port;
    if (worker != nullptr && request) worker->send_error(message.error, request->call.operation);
  }
}

Transfer CollectiveTable::transfer_of(const SubCommTask& launch) const {
  const CollectiveState& collective = collectives_.at(launch.collective);
  const ipc::Operation& call = collective.requests.front()->call;
  Transfer transfer;
  transfer.collective = call.collective;
  if (call.collective == ipc::Collective::kBarrier) return transfer;
  transfer.dtype = static_cast<model::DType>(call.dtype);
  transfer.op = static_cast<model::ReduceOp>(call.reduce_op);
  transfer.count = call.count;
  for (std::size_t i = 0; i < collective.requests.size(); ++i) {
    const CollectiveRequest& request = *collective.requests[i];
    transfer.buffers.push_back(request.staging_buffer->data() + request.call.offset);
    transfer.keep.push_back(request.staging_buffer);
    if (members_.workers()[i].rank == call.root) transfer.root_local = i;
  }
  transfer.root_node = view_->node_of_rank()[call.root];
  if (call.collective != ipc::Collective::kAllGather) return transfer;
  const std::size_t element = model::dtype_bytes(transfer.dtype);
  std::size_t next = 0;
  for (std::uint32_t node = 0; node < view_->node_count(); ++node) {
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < view_->nodes()[node].ranks.size(); ++i, ++next) {
      bytes += collective.counts[next] * element;
      if (node == view_->node()) transfer.local_bytes.push_back(collective.counts[next] * element);
    }
    transfer.node_bytes.push_back(bytes);
  }
  return transfer;
}

InProcessDriver::Records CollectiveTable::records_of(const SubCommTask& launch) const {
  const CollectiveState& collective = collectives_.at(launch.collective);
  InProcessDriver::Records records(collective.requests.size());
  for (std::size_t worker = 0; worker < records.size(); ++worker) {
    const ipc::Operation& call = collective.requests[worker]->call;
    if (call.collective == ipc::Collective::kBarrier) continue;
    const std::size_t element = model::dtype_bytes(static_cast<model::DType>(call.dtype));
    shm::StartCollectiveRecord record;
    record.collective = static_cast<std::uint32_t>(call.collective);
    record.staging_buffer = call.staging_buffer;
    record.dtype = call.dtype;
    record.reduce_op = call.reduce_op;
    record.root = call.root;
    record.offset_bytes = call.offset;
    record.bytes = call.count * element;
    if (call.collective != ipc::Collective::kAllGather) {
      if (record.bytes > 0) records[worker].emplace_back(record);
      continue;
    }
    record.collective = static_cast<std::uint32_t>(ipc::Collective::kBroadcast);
    std::size_t next = 0;
    for (const auto& node : view_->nodes()) {
      for (const auto rank : node.ranks) {
        record.root = rank;
        record.bytes = collective.counts[next++] * element;
        if (record.bytes > 0) records[worker].emplace_back(record);
        record.offset_bytes += record.bytes;
      }
    }
  }
  return records;
}

Result<void> CollectiveTable::finish(const SubCommTask& launch, const TransferDone& /*done*/) {
  const auto found = collectives_.extract(launch.collective);  // first: the workers may ask for the same name at once
  if (found.empty())
    return deft::fail(ErrorKind::kInternal, "the collective '" + launch.collective + "' was done twice");
  for (std::size_t i = 0; i < found.mapped().requests.size(); ++i) {
    WorkerPort* const worker = members_.workers()[i].port;
    if (worker != nullptr)
      worker->complete(shm::OperationDoneRecord{.operation = found.mapped().requests[i]->call.operation});
  }
  return {};
}

std::vector<CollectiveTable::OwedCollective> CollectiveTable::owed(TimeUs before_us) const {
  std::vector<OwedCollective> out;
  for (const auto& [name, collective] : collectives_) {
    if (collective.started || collective.complete() || collective.since_us > before_us) continue;
    OwedCollective owed{name, collective.since_us, {}};
    for (std::size_t i = 0; i < collective.requests.size(); ++i)
      if (!collective.requests[i]) owed.workers.push_back(i);
    out.push_back(std::move(owed));
  }
  return out;
}

bool CollectiveTable::has_asked(std::size_t worker, const std::string& name) const {
  const auto it = collectives_.find(name);
  return it != collectives_.end() && it->second.requests[worker].has_value();
}

std::optional<std::string> CollectiveTable::unstarted(TimeUs before_us) const {
  for (const auto& [name, collective] : collectives_)
    if (collective.complete() && !collective.started && collective.since_us <= before_us) return name;
  return std::nullopt;
}

std::optional<wire::NodeFacts::AskedCollective> CollectiveTable::facts(const std::string& name) const {
  const auto it = collectives_.find(name);
  if (it == collectives_.end()) return std::nullopt;
  const CollectiveState& collective = it->second;
  wire::NodeFacts::AskedCollective facts;
  facts.started = collective.started;
  if (collective.requests.front()) facts.first = spec_of(0, *collective.requests.front());
  for (const auto& request : collective.requests)
    if (request) facts.counts.push_back(spec_of(facts.counts.size(), *request).count);
  return facts;
}

}  // namespace deft::daemon
