#include "daemon/node/worker_events.h"

namespace deft::daemon {

template <typename Act>
void WorkerEvents::if_running(WorkerPort& worker, const Act& act) {
  if (members_.state() != JobState::kRunning || !parts_) return;
  const auto index = members_.index_of(worker);
  if (index) act(*index);
}

void WorkerEvents::declare(WorkerPort& worker, Declaration declaration) {
  if_running(worker, [&](std::size_t index) {
    if (auto ok = parts_->groups.declare(index, std::move(declaration)); !ok) control_.fail(ok.error());
  });
}

void WorkerEvents::request(WorkerPort& worker, CollectiveRequest request) {
  if_running(worker, [&](std::size_t index) {
    const std::uint64_t operation = request.call.operation;
    if (auto ok = parts_->collectives.request(index, std::move(request), parts_->clock.now_us()); !ok)
      worker.send_error(ok.error(), operation);
  });
}

void WorkerEvents::record(WorkerPort& worker, const shm::Record& record) {
  if_running(worker, [&](std::size_t index) {
    auto ok = take(index, record);
    if (ok) return;
    worker.send_error(ok.error(), 0);
    worker.close(ok.error().in(worker.describe()));
  });
}

Result<void> WorkerEvents::take(std::size_t worker, const shm::Record& record) {
  switch (record.kind()) {
    case shm::RecordKind::kReady: {
      const auto ready = parts_->groups.ready(worker, record.as<shm::ReadyRecord>(), parts_->clock.now_us());
      if (!ready) return tl::unexpected(ready.error());
      parts_->recorder.gradients_ready(worker, record.as<shm::ReadyRecord>(), MonotonicClock::now());
      if (*ready) parts_->links.pump();
      return {};
    }
    case shm::RecordKind::kStage: {
      parts_->measurements.stage_began(worker, record.as<shm::StageRecord>(), parts_->clock.now_us());
      parts_->record_decisions();
      parts_->recorder.stage_began(worker, record.as<shm::StageRecord>(), MonotonicClock::now());
      return {};
    }
    case shm::RecordKind::kLayer:
    case shm::RecordKind::kMemory:
    case shm::RecordKind::kMemoryStep: parts_->recorder.memory_told(worker, record, MonotonicClock::now()); return {};
    case shm::RecordKind::kFlush: return parts_->groups.flush(worker, record.as<shm::FlushRecord>());
    case shm::RecordKind::kSendResiduals:
      return parts_->groups.send_residuals(worker, record.as<shm::SendResidualsRecord>());
    case shm::RecordKind::kRelease: return parts_->groups.release(worker, record.as<shm::ReleaseRecord>());
    case shm::RecordKind::kRan:
    case shm::RecordKind::kRunning:
    case shm::RecordKind::kSegment: return take_of_link(worker, record);
    default: return fail(ErrorKind::kViolation, "a record of an unknown kind");
  }
}

// Of a link that the workers run.
Result<void> WorkerEvents::take_of_link(std::size_t worker, const shm::Record& record) {
  LinkSet& links = parts_->links;
  if (record.kind() == shm::RecordKind::kSegment) {
    const auto segment = record.as<shm::SegmentRecord>();
    return links.driver_of_workers(segment.link).and_then([&](LinkDriver* driver) {
      return driver->moved(worker, segment);
    });
  }
  if (record.kind() == shm::RecordKind::kRunning) {
    const auto running = record.as<shm::RunningRecord>();
    return links.driver_of_workers(running.link).and_then([&](LinkDriver* driver) {
      return driver->waits(worker, running.launch);
    });
  }
  const auto ran = record.as<shm::RanRecord>();
  return links.driver_of_workers(ran.link).and_then(
      [&](LinkDriver* driver) { return driver->answered(worker, ran.launch); });
}

void WorkerEvents::take_statistics(WorkerPort& worker, const ipc::Statistics& statistics) {
  if_running(worker, [&](std::size_t index) {
    const auto& groups = parts_->groups.groups();
    const auto group = groups.find(statistics.group);
    // They come over the socket, so a RELEASE of the ring may overtake them.
    if (group == groups.end() || !group->second.agreed || group->second.released_by(index)) return;
    parts_->measurements.take(index, statistics);
  });
}

void WorkerEvents::link_failed(WorkerPort& worker, const Error& error) {
  if_running(worker, [&](std::size_t /*index*/) {
    const Error told = error.in(worker.describe() + " on " + host_);
    if (error.kind == ErrorKind::kLost || error.kind == ErrorKind::kTimeout)
      return control_.suspect(told, FailureDetector::Broken::kWorkersLink);
    control_.fail(told);
  });
}

void WorkerEvents::store_set(const std::string& key, std::span<const std::byte> value) {
  if (members_.state() == JobState::kRunning) parts_->store->set_now(key, value);
}

void WorkerEvents::store_get(WorkerPort& worker, std::uint32_t request, const std::string& key) {
  if_running(worker, [&](std::size_t index) {
    // The answer may come when the worker is gone. The store forgets its questions when the job ends.
    parts_->store->ask(key, [&members = members_, index, request, key](std::span<const std::byte> value) {
      if (WorkerPort* const asker = members.workers()[index].port) asker->send_store_value(request, key, value);
    });
  });
}

void WorkerEvents::worker_ended(WorkerPort& worker, bool clean, const Error& reason) {
  const auto index = members_.detach(worker);
  if (!index || members_.state() == JobState::kEnded) return;
  if (!clean) return control_.fail(reason.in("on " + host_));
  if (members_.state() != JobState::kRunning)
    return control_.fail({ErrorKind::kLost, worker.describe() + " on " + host_ + " left before the job began", "", {}});
  const std::uint32_t ranks[] = {members_.workers()[*index].rank};
  members_.mark_left(ranks);
  leader_.send(wire::Leave{{ranks[0]}});
}

}  // namespace deft::daemon
