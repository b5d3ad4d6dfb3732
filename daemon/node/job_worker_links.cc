// Links that the workers run themselves: what they are told, their rendezvous, and how they fail.
#include <numeric>

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
    if (links_[i].runs)
      links.in_workers.push_back({static_cast<std::uint32_t>(i), link_specs_[i], link_prefix(i)});
    else
      ++links.in_daemons;
  }
  return links;
}

void Job::make_runs(std::size_t link) {
  links_[link].runs = std::make_unique<WorkerRuns>(static_cast<std::uint32_t>(link), workers_.size(),
                                                   [this](std::size_t worker, const shm::Record& record) {
                                                     WorkerPort* const session = workers_[worker].session;
                                                     if (session != nullptr) session->complete(record);
                                                   });
}

void Job::start_in_workers(std::size_t link, const SubCommTask& launch) {
  WorkerRuns& runs = *links_[link].runs;
  if (launch.is_operation) {
    auto records = operation_records(launch);
    const std::size_t bytes =
        std::accumulate(records[0].begin(), records[0].end(), std::size_t{0},
                        [](std::size_t sum, const shm::Record& record) { return sum + record.bytes; });
    runs.start(launch.number, bytes, std::move(records));
  } else {
    const std::vector<shm::Record> one{gradient_record(launch)};
    runs.start(launch.number, launch.bytes, {workers_.size(), one});
  }
  // Not now: whoever pumps the link is still looking at its queue.
  if (launch.is_operation)
    context_.reactor.post([weak = weak_from_this(), link] {
      const auto job = weak.lock();
      if (!job || job->state_ != State::kRunning) return;
      if (auto done = job->links_[link].runs->take_empty()) job->on_done(link, std::move(*done));
    });
}

shm::Record Job::gradient_record(const SubCommTask& launch) const {
  const Gradients& gradients = *groups_.at(launch.group).gradients;
  shm::Record record;
  record.kind = shm::RecordKind::kStart;
  record.group = launch.group;
  record.slot = static_cast<std::uint16_t>(gradients.slot_of(launch.generation));
  record.generation = launch.generation;
  record.offset = gradients.buckets()[launch.bucket].offset + launch.offset;
  record.bytes = launch.bytes;
  return record;
}

// An all-gather is a broadcast of each rank's block. What is empty is left out.
std::vector<std::vector<shm::Record>> Job::operation_records(const SubCommTask& launch) const {
  const Operation& operation = operations_.at(launch.operation);
  std::vector<std::vector<shm::Record>> records(workers_.size());
  for (std::size_t worker = 0; worker < workers_.size(); ++worker) {
    const ipc::Operation& call = operation.requests[worker]->call;
    if (call.collective == ipc::Collective::kBarrier) continue;
    const std::size_t element = model::dtype_bytes(static_cast<model::DType>(call.dtype));
    shm::Record record;
    record.kind = shm::RecordKind::kStartHeap;
    record.stage = static_cast<std::uint32_t>(call.collective);
    record.group = call.heap;
    record.tensor = call.dtype;
    record.count = call.reduce_op;
    record.generation = call.root;
    record.offset = call.offset;
    record.bytes = call.count * element;
    if (call.collective != ipc::Collective::kAllGather) {
      if (record.bytes > 0) records[worker].push_back(record);
      continue;
    }
    record.stage = static_cast<std::uint32_t>(ipc::Collective::kBroadcast);
    std::size_t next = 0;
    for (const auto& node : nodes_) {
      for (const auto rank : node.ranks()) {
        record.generation = rank;
        record.bytes = operation.counts[next++] * element;
        if (record.bytes > 0) records[worker].push_back(record);
        record.offset += record.bytes;
      }
    }
  }
  return records;
}

Result<void> Job::on_ran(std::size_t worker, const shm::Record& record) {
  const auto link = static_cast<std::size_t>(record.code);
  if (record.code < 0 || link >= links_.size() || !links_[link].runs)
    return fail(ErrorKind::kViolation, "an unknown worker-run link ran a launch");
  auto done = links_[link].runs->ran(worker, record.operation);
  if (!done) return tl::unexpected(done.error());
  if (*done) on_done(link, std::move(**done));
  return {};
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
