// Links that the workers run themselves: what they are told, their rendezvous, and how they fail.
#include "core/link/backends.h"
#include "daemon/node/job.h"

namespace deft::daemon {

std::string Job::link_prefix(std::size_t link) const {
  const std::string prefix = name_ + "/" + std::to_string(incarnation_) + "/" + std::to_string(link);
  return links_[link].epoch == 0 ? prefix : prefix + "/" + std::to_string(links_[link].epoch);
}

JobLinks Job::links_of_job() const {
  JobLinks links;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (!links_[i].driver->runs_in_daemon())
      links.in_workers.push_back({static_cast<std::uint32_t>(i), link_specs_[i], link_prefix(i)});
    else
      ++links.in_daemons;
  }
  return links;
}

std::unique_ptr<LinkDriver> Job::in_process_driver(std::size_t link) {
  return std::make_unique<InProcessDriver>(
      context_.reactor, static_cast<std::uint32_t>(link), workers_.size(),
      [this](const SubCommTask& launch) {
        if (launch.is_operation) return operation_records(launch);
        return InProcessDriver::Records(workers_.size(), {gradient_record(launch)});
      },
      [this](std::size_t worker, const shm::Record& record) {
        WorkerPort* const session = workers_[worker].session;
        if (session != nullptr) session->complete(record);
      },
      [this, link](Result<void> result) { on_link_open(link, std::move(result)); },
      [this, link](TransferDone done) { on_done(link, std::move(done)); });
}

shm::StartRecord Job::gradient_record(const SubCommTask& launch) const {
  const Gradients& gradients = *groups_.at(launch.group).gradients;
  shm::StartRecord record;
  record.group = launch.group;
  record.slot = static_cast<std::uint32_t>(gradients.slot_of(launch.generation));
  record.offset_bytes = gradients.buckets()[launch.bucket].offset + launch.offset;
  record.bytes = launch.bytes;
  return record;
}

// An all-gather is a broadcast of each rank's block. What is empty is left out.
InProcessDriver::Records Job::operation_records(const SubCommTask& launch) const {
  const Operation& operation = operations_.at(launch.operation);
  InProcessDriver::Records records(workers_.size());
  for (std::size_t worker = 0; worker < workers_.size(); ++worker) {
    const ipc::Operation& call = operation.requests[worker]->call;
    if (call.collective == ipc::Collective::kBarrier) continue;
    const std::size_t element = model::dtype_bytes(static_cast<model::DType>(call.dtype));
    shm::StartCollectiveRecord record;
    record.collective = static_cast<std::uint32_t>(call.collective);
    record.staging_buffer = call.heap;
    record.dtype = call.dtype;
    record.reduce_op = call.reduce_op;
    record.root = call.root;
    record.offset_bytes = call.offset;
    record.bytes = call.count * element;
    if (call.collective != ipc::Collective::kAllGather) {
      if (record.bytes > 0) records[worker].push_back(record);
      continue;
    }
    record.collective = static_cast<std::uint32_t>(ipc::Collective::kBroadcast);
    std::size_t next = 0;
    for (const auto& node : nodes_) {
      for (const auto rank : node.ranks) {
        record.root = rank;
        record.bytes = operation.counts[next++] * element;
        if (record.bytes > 0) records[worker].push_back(record);
        record.offset_bytes += record.bytes;
      }
    }
  }
  return records;
}

Result<void> Job::on_ran(std::size_t worker, const shm::RanRecord& ran) {
  if (ran.link >= links_.size()) return fail(ErrorKind::kViolation, "an unknown in-process link ran a launch");
  return links_[ran.link].driver->answered(worker, ran.launch);
}

void Job::link_failed(WorkerPort& session, const Error& error) {
  if (state_ != State::kRunning) return;
  const Error told = error.in(session.describe() + " on " + context_.host);
  if (error.kind == ErrorKind::kLost || error.kind == ErrorKind::kTimeout) return suspect(told);
  fail_job(told);
}

void Job::store_set(const std::string& key, std::span<const std::byte> value) {
  if (state_ == State::kRunning) static_cast<void>(store_->set(key, value));
}

void Job::store_get(WorkerPort& session, std::uint32_t request, const std::string& key) {
  if (state_ != State::kRunning) return;
  store_->ask(key,
              [weak = weak_from_this(), worker = index_of(session), request, key](std::span<const std::byte> value) {
                const auto job = weak.lock();
                if (job && job->workers_[worker].session != nullptr)
                  job->workers_[worker].session->send_store_value(request, key, value);
              });
}

}  // namespace deft::daemon
