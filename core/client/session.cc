#include "core/client/session.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/ipc/remote_error.h"
#include "core/ipc/wire.h"
#include "core/link/backends.h"

namespace deft::client {

Result<std::unique_ptr<Session>> Session::open(const Config& config, const Placement& placement) {
  auto attachment = attach(config, placement);
  if (!attachment) return tl::unexpected(attachment.error());
  return std::unique_ptr<Session>(new Session(std::move(*attachment)));
}

Session::Session(Attachment attachment)
    : connection_(std::move(attachment), *this), groups_(connection_), requests_(connection_), starts_(connection_) {}

bool Session::on_device() const {
  const auto& links = worker_links();
  return connection_.attachment().daemon_links == 0 && !links.empty() &&
         std::all_of(links.begin(), links.end(), [](const AnnouncedLink& link) {
           const link::Backend* backend = link::find_backend(link.spec.backend);
           return backend != nullptr && backend->takes_device_memory;
         });
}

void Session::report(const Error& error) {
  ipc::ErrorMessage message;
  message.error_kind = static_cast<std::uint32_t>(error.kind);
  const auto cut = [](const std::string& text) { return std::string_view(text).substr(0, ipc::kMaxTextBytes); };
  static_cast<void>(connection_.send(
      ipc::encode(message, ipc::MessageKind::kError, {cut(error.what), cut(error.fix), cut(error.where)})));
}

void Session::on_failure(std::function<void(const Error&)> call) {
  const auto lock = connection_.lock();
  connection_.failure().on_failure(std::move(call));
}

bool Session::receive(Arrivals arrivals) {
  JobFailure& failure = connection_.failure();
  for (const auto& record : arrivals.records)
    if (auto ok = dispatch(record); !ok) failure.fail(ok.error());
  for (auto& packet : arrivals.packets)
    if (auto ok = dispatch(std::move(packet)); !ok) failure.fail(ok.error());
  if (arrivals.broken) failure.fail(std::move(*arrivals.broken));
  const TimeUs now_us = MonotonicClock::now();
  const bool job_text_due = failure.give_up_on_text(now_us);
  return requests_.give_up_on_texts(now_us) || job_text_due;
}

Result<void> Session::dispatch(const shm::Record& record) {
  switch (record.kind()) {
    case shm::RecordKind::kFinish: return groups_.finish(record.as<shm::FinishRecord>());
    case shm::RecordKind::kPlan: return groups_.take_plan(record.as<shm::PlanRecord>());
    case shm::RecordKind::kPlanGeneration: return groups_.take_plan(record.as<shm::PlanGenerationRecord>());
    case shm::RecordKind::kReleased: return groups_.forget(record.as<shm::ReleasedRecord>());
    case shm::RecordKind::kStart: return starts_.push(record.as<shm::StartRecord>().link, record);
    case shm::RecordKind::kStartCollective: return starts_.push(record.as<shm::StartCollectiveRecord>().link, record);
    case shm::RecordKind::kOperationDone:
      requests_.end(record.as<shm::OperationDoneRecord>(), MonotonicClock::now());
      return {};
    case shm::RecordKind::kTraceBegan: traces_.fetch_add(1, std::memory_order_relaxed); return {};
    case shm::RecordKind::kFailed: connection_.failure().expect_text(MonotonicClock::now()); return {};
    default:
      return tl::unexpected(violation("a record of kind " + std::to_string(static_cast<unsigned>(record.kind()))));
  }
}

Result<void> Session::dispatch(ipc::Packet packet) {
  const auto header = ipc::decode_header(packet.bytes);
  if (!header) return tl::unexpected(header.error());
  switch (header->kind) {
    case ipc::MessageKind::kError: {
      auto remote = ipc::read_error(packet.bytes);
      if (!remote) return tl::unexpected(remote.error());
      if (remote->operation == 0) return tl::unexpected(remote->error);
      requests_.fail(remote->operation, std::move(remote->error));
      return {};
    }
    case ipc::MessageKind::kDeclared: return take_answer(header->kind, std::move(packet), 0, &ipc::Declared::group);
    case ipc::MessageKind::kStoreValue:
      return take_answer(header->kind, std::move(packet), 1, &ipc::StoreItem::request);
    case ipc::MessageKind::kStagingBufferMade:
      return take_answer(header->kind, std::move(packet), 0, &ipc::StagingBuffer::buffer);
    case ipc::MessageKind::kWake: return {};  // the ring has been read since
    default:
      return tl::unexpected(violation("a message of kind " + std::to_string(static_cast<unsigned>(header->kind))));
  }
}

template <typename Message>
Result<void> Session::take_answer(ipc::MessageKind kind, ipc::Packet packet, std::size_t texts,
                                  std::uint32_t Message::*number) {
  const auto message = ipc::decode<Message>(packet.bytes, kind, texts);
  if (!message) return tl::unexpected(message.error());
  requests_.take_answer(kind, message->fixed.*number, std::move(packet));
  return {};
}

}  // namespace deft::client
