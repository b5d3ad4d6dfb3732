// Collectives on a node: gathering the local workers' requests, running them when the leader says so.
#include "daemon/node/job.h"

namespace deft::daemon {

wire::CollectiveSpec collective_spec(const ipc::Operation& call, std::uint32_t rank) {
  wire::CollectiveSpec spec{.rank = rank, .collective = call.collective};
  if (call.collective == ipc::Collective::kBarrier) return spec;
  spec.dtype = static_cast<model::DType>(call.dtype);
  spec.op = static_cast<model::ReduceOp>(call.reduce_op);
  spec.root = call.root;
  spec.count = call.count;
  if (call.collective == ipc::Collective::kAllGather) spec.capacity = call.capacity;
  return spec;
}

void Job::request(WorkerPort& session, OperationRequest request) {
  if (state_ != State::kRunning) return;
  const std::size_t index = index_of(session);
  Operation& operation = operations_[request.name];
  if (operation.requests.empty()) {
    operation.requests.resize(workers_.size());
    operation.since_us = MonotonicClock::now();
  }
  if (operation.requests[index])
    return session.send_error({ErrorKind::kInvalid,
                               "a collective named '" + request.name + "' is still under way",
                               "finish it first, or give the new one another name",
                               {}},
                              request.call.operation);
  const std::string name = request.name;
  operation.requests[index] = std::move(request);
  wire::OperationReady ready{.name = name, .specs = {}};
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (!operation.requests[i]) return;
    ready.specs.push_back(collective_spec(operation.requests[i]->call, workers_[i].rank));
  }
  to_leader(std::move(ready));
}

void Job::on_operation_start(wire::OperationStart start) {
  if (state_ != State::kRunning || !take_number(start.number)) return;
  const auto it = operations_.find(start.name);
  if (it == operations_.end() || start.link >= links_.size() || start.counts.size() != world_)
    return fail_job(
        {ErrorKind::kInternal, "the leader started '" + start.name + "', which nobody here asked for", "", {}});
  it->second.started = true;
  it->second.counts = std::move(start.counts);
  SubCommTask launch;
  launch.number = start.number;
  launch.is_operation = true;
  launch.operation = start.name;
  links_[start.link].waiting.push_back(std::move(launch));
  pump(start.link);
}

void Job::on_operation_failed(const wire::OperationFailed& failed) {
  const auto it = operations_.find(failed.name);
  if (it == operations_.end()) return;
  const Operation operation = std::move(it->second);
  operations_.erase(it);
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (workers_[i].session != nullptr && operation.requests[i])
      workers_[i].session->send_error(failed.error, operation.requests[i]->call.operation);
}

Transfer Job::operation_transfer(const SubCommTask& launch) const {
  const Operation& operation = operations_.at(launch.operation);
  const ipc::Operation& call = operation.requests.front()->call;
  Transfer transfer;
  transfer.collective = call.collective;
  if (call.collective == ipc::Collective::kBarrier) return transfer;
  transfer.dtype = static_cast<model::DType>(call.dtype);
  transfer.op = static_cast<model::ReduceOp>(call.reduce_op);
  transfer.count = call.count;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const OperationRequest& request = *operation.requests[i];
    transfer.buffers.push_back(request.heap->data() + request.call.offset);
    transfer.keep.push_back(request.heap);
    if (workers_[i].rank == call.root) transfer.root_local = i;
  }
  transfer.root_node = node_of_rank_[call.root];
  if (call.collective != ipc::Collective::kAllGather) return transfer;
  const std::size_t element = model::dtype_bytes(transfer.dtype);
  std::size_t next = 0;
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < nodes_[node].ranks.size(); ++i, ++next) {
      bytes += operation.counts[next] * element;
      if (node == node_) transfer.local_bytes.push_back(operation.counts[next] * element);
    }
    transfer.node_bytes.push_back(bytes);
  }
  return transfer;
}

void Job::finish_operation(const std::string& name) {
  const auto it = operations_.find(name);
  const Operation operation = std::move(it->second);
  operations_.erase(it);  // first: the workers may ask for the same name at once
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].session == nullptr) continue;
    workers_[i].session->complete(shm::OperationDoneRecord{.operation = operation.requests[i]->call.operation});
  }
}

}  // namespace deft::daemon
