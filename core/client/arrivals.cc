// What comes from the daemon, over the completion ring and the socket: taken in by one thread at a time.
#include <poll.h>

#include <algorithm>

#include "core/client/session.h"
#include "core/ipc/wire.h"

namespace deft::client {
namespace {

constexpr TimeUs kPatienceUs = 500'000;     // between two signs of life
constexpr TimeUs kTextPatienceUs = 50'000;  // while a text is due
constexpr TimeUs kTextDueUs = 1'000'000;    // the ring and the socket tell of the same event at nearly the same time
constexpr std::size_t kMaxRecordsAtOnce = 512;

Error violation(const std::string& what) {
  return {ErrorKind::kViolation, "the daemon on this node sent " + what,
          "install the same version of Deft for the daemon and the workers", ""};
}

Error daemon_gone() {
  return {ErrorKind::kLost, "the daemon on this node is gone", "see deftd's log, start it again and restart the job",
          ""};
}

ErrorKind kind_of(std::uint32_t number) {
  const bool known =
      number >= static_cast<unsigned>(ErrorKind::kInvalid) && number <= static_cast<unsigned>(ErrorKind::kInternal);
  return known ? static_cast<ErrorKind>(number) : ErrorKind::kInternal;
}

}  // namespace

void Session::look_once(Lock& lock, bool may_sleep) {
  looking_ = true;
  const TimeUs patience_us = !may_sleep ? 0 : texts_due_ ? kTextPatienceUs : kPatienceUs;
  lock.unlock();
  Arrivals arrivals;
  try {
    arrivals = gather(patience_us);
  } catch (...) {
    lock.lock();
    looking_ = false;
    changed_.notify_all();
    throw;
  }
  lock.lock();
  dispatch(std::move(arrivals));
  give_up_on_texts();
  looking_ = false;
  changed_.notify_all();
}

Session::Arrivals Session::gather(TimeUs patience_us) {
  Arrivals arrivals;
  take_records(arrivals);
  if (arrivals.records.empty() && patience_us > 0) spin(arrivals);
  if (!arrivals.records.empty()) return arrivals;
  if (sleep(patience_us)) take_packets(arrivals);
  take_records(arrivals);
  return arrivals;
}

void Session::take_records(Arrivals& arrivals) {
  shm::Record record;
  while (arrivals.records.size() < kMaxRecordsAtOnce) {
    const auto popped = consumer_.pop(record);
    if (popped == shm::Pop::kCorrupt) arrivals.broken = violation("a completion ring that makes no sense");
    if (popped != shm::Pop::kRecord) return;
    arrivals.records.push_back(record);
  }
}

void Session::take_packets(Arrivals& arrivals) {
  while (true) {
    auto packet = attachment_.channel.try_receive();
    if (!packet) {
      arrivals.broken = packet.error();
      return;
    }
    if (!*packet) return;
    if ((*packet)->bytes.empty()) {
      arrivals.broken = daemon_gone();
      return;
    }
    arrivals.packets.push_back(std::move(**packet));
  }
}

void Session::spin(Arrivals& arrivals) {
  const TimeUs end_us = MonotonicClock::now() + attachment_.spin_us;
  while (arrivals.records.empty() && !arrivals.broken && MonotonicClock::now() < end_us) take_records(arrivals);
}

// True: the socket has something.
bool Session::sleep(TimeUs patience_us) {
  pollfd entries[] = {{attachment_.channel.descriptor(), POLLIN, 0}, {attachment_.own_bell.descriptor(), POLLIN, 0}};
  if (patience_us == 0) return poll(entries, 1, 0) > 0;
  if (!consumer_.prepare_to_sleep()) return false;
  const int ready = poll(entries, 2, static_cast<int>(patience_us / 1000));
  consumer_.woke();
  if (ready > 0 && entries[1].revents != 0) attachment_.own_bell.drain();
  return ready > 0 && entries[0].revents != 0;
}

void Session::dispatch(Arrivals arrivals) {
  for (const auto& record : arrivals.records) dispatch(record);
  for (auto& packet : arrivals.packets) dispatch(std::move(packet));
  if (arrivals.broken) fail_job(std::move(*arrivals.broken));
}

void Session::dispatch(const shm::Record& record) {
  switch (record.kind()) {
    case shm::RecordKind::kFinish: return finish_tensors(record.as<shm::FinishRecord>());
    case shm::RecordKind::kStart: return take_start(record.as<shm::StartRecord>().link, record);
    case shm::RecordKind::kStartCollective: return take_start(record.as<shm::StartCollectiveRecord>().link, record);
    case shm::RecordKind::kPlan: return take_plan(record.as<shm::PlanRecord>());
    case shm::RecordKind::kPlanGeneration: return take_plan(record.as<shm::PlanGenerationRecord>());
    case shm::RecordKind::kOperationDone: return finish_operation(record.as<shm::OperationDoneRecord>());
    case shm::RecordKind::kFailed:
      failure_text_due_us_ = MonotonicClock::now() + kTextDueUs;
      texts_due_ = true;
      return;
    default: return fail_job(violation("a record of kind " + std::to_string(static_cast<unsigned>(record.kind()))));
  }
}

void Session::finish_tensors(const shm::FinishRecord& finished) {
  const std::size_t tensors = finished.group < groups_.size() ? groups_[finished.group].progress->tensors() : 0;
  if (finished.first_tensor > tensors || finished.tensors > tensors - finished.first_tensor)
    return fail_job(violation("the end of tensors that were not declared"));
  groups_[finished.group].progress->finish(finished.first_tensor, finished.tensors, finished.generation);
}

template <typename PlanPart>
void Session::take_plan(const PlanPart& part) {
  if (part.group >= groups_.size()) return fail_job(violation("a plan for tensors that were not declared"));
  if (auto ok = groups_[part.group].generations->receive(part); !ok) fail_job(ok.error());
}

void Session::take_start(std::uint32_t link, const shm::Record& start) {
  const auto found = starts_.find(link);
  if (found == starts_.end()) return fail_job(violation("a launch for a link that this worker does not run"));
  found->second.push_back(start);
}

void Session::finish_operation(const shm::OperationDoneRecord& ended) {
  const auto found = outcomes_.find(ended.operation);
  if (found == outcomes_.end() || found->second.done) return;
  if (ended.error_kind == 0) {
    found->second.done = true;
    return;
  }
  found->second.error_kind = ended.error_kind;
  found->second.text_due_us = MonotonicClock::now() + kTextDueUs;
  texts_due_ = true;
}

void Session::dispatch(ipc::Packet packet) {
  const auto header = ipc::decode_header(packet.bytes);
  if (!header) return fail_job(header.error());
  if (header->kind == ipc::MessageKind::kError) {
    auto remote = read_error(packet.bytes);
    if (!remote) return fail_job(remote.error());
    if (remote->operation == 0) return fail_job(std::move(remote->error));
    if (const auto found = outcomes_.find(remote->operation); found != outcomes_.end()) {
      found->second.error = std::move(remote->error);
      found->second.done = true;
    }
    return;
  }
  if (header->kind == ipc::MessageKind::kDeclared) {
    const auto declared = ipc::decode<ipc::Declared>(packet.bytes, header->kind, 0);
    if (!declared) return fail_job(declared.error());
    answers_.insert_or_assign({header->kind, declared->fixed.group}, std::move(packet));
  } else if (header->kind == ipc::MessageKind::kStoreValue) {
    const auto item = ipc::decode<ipc::StoreItem>(packet.bytes, header->kind, 1);
    if (!item) return fail_job(item.error());
    answers_.insert_or_assign({header->kind, item->fixed.request}, std::move(packet));
  } else if (header->kind == ipc::MessageKind::kHeapMade) {
    const auto heap = ipc::decode<ipc::Heap>(packet.bytes, header->kind, 0);
    if (!heap) return fail_job(heap.error());
    answers_.insert_or_assign({header->kind, heap->fixed.heap}, std::move(packet));
  } else {
    fail_job(violation("a message of kind " + std::to_string(static_cast<unsigned>(header->kind))));
  }
}

// A failure whose text does not come is told without one.
void Session::give_up_on_texts() {
  if (!texts_due_) return;
  const TimeUs now_us = MonotonicClock::now();
  texts_due_ = false;
  if (failure_text_due_us_ != 0 && !failure_) {
    if (now_us >= failure_text_due_us_)
      fail_job({ErrorKind::kLost, "the job failed, and the daemon on this node did not say why", "see its log", ""});
    else
      texts_due_ = true;
  }
  for (auto& [number, outcome] : outcomes_) {
    if (outcome.text_due_us == 0 || outcome.done) continue;
    if (now_us >= outcome.text_due_us) {
      outcome.error = Error{kind_of(outcome.error_kind), "the operation failed", "see deftd's log", ""};
      outcome.done = true;
    } else {
      texts_due_ = true;
    }
  }
}

void Session::fail_job(Error error) {
  if (failure_) return;
  failure_ = std::move(error);
  failed_.store(true, std::memory_order_release);
  if (on_failure_) on_failure_(*failure_);
}

}  // namespace deft::client
