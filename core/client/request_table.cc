#include "core/client/request_table.h"

namespace deft::client {

void RequestTable::expect(std::uint64_t operation) {
  const auto lock = connection_.lock();
  outcomes_[operation] = {};
}

void RequestTable::forget(std::uint64_t operation) {
  const auto lock = connection_.lock();
  outcomes_.erase(operation);
}

std::optional<Result<void>> RequestTable::result_of(std::uint64_t operation) const {
  const auto found = outcomes_.find(operation);
  if (found == outcomes_.end()) return Result<void>{};
  if (found->second.error) return Result<void>(tl::unexpected(*found->second.error));
  if (!found->second.done) return std::nullopt;
  return Result<void>{};
}

Result<bool> RequestTable::finished(std::uint64_t operation) {
  auto looked = connection_.look();
  const auto lock = connection_.lock();
  const auto result = result_of(operation);
  if (result && !*result) return tl::unexpected(result->error());
  if (!result && !looked) return tl::unexpected(looked.error());
  return result.has_value();
}

Result<bool> RequestTable::wait_for(std::uint64_t operation, TimeUs deadline_us) {
  std::optional<Result<void>> result;
  const auto ended = [&] {
    result = result_of(operation);
    return result.has_value();
  };
  if (auto waited = connection_.wait(ended, nullptr, deadline_us); !waited) return tl::unexpected(waited.error());
  if (!result) return false;
  if (!*result) return tl::unexpected(result->error());
  return true;
}

Result<ipc::Packet> RequestTable::answer(ipc::MessageKind kind, std::uint32_t number, TimeUs deadline_us) {
  std::optional<ipc::Packet> packet;
  std::optional<Error> refusal;
  bool late = false;
  auto waited = connection_.wait(
      [&] {
        if (auto found = answers_.extract({kind, number})) packet = std::move(found.mapped());
        if (const auto outcome = outcomes_.find(number);
            kind == ipc::MessageKind::kStagingBufferMade && outcome != outcomes_.end())
          refusal = outcome->second.error;
        late = deadline_us != 0 && MonotonicClock::now() >= deadline_us;
        return packet.has_value() || refusal.has_value() || late;
      },
      nullptr, deadline_us);
  if (!waited) return tl::unexpected(waited.error());
  if (refusal) return tl::unexpected(*refusal);
  if (!packet) return deft::fail(ErrorKind::kTimeout, "no answer from the daemon in time");
  return std::move(*packet);
}

void RequestTable::end(const shm::OperationDoneRecord& ended, TimeUs now_us) {
  const auto found = outcomes_.find(ended.operation);
  if (found == outcomes_.end() || found->second.done) return;
  if (ended.error_kind == 0) {
    found->second.done = true;
    return;
  }
  found->second.error_kind = ended.error_kind;
  found->second.text_due_us = now_us + kTextDueUs;
  texts_due_ = true;
}

void RequestTable::fail(std::uint64_t operation, Error error) {
  const auto found = outcomes_.find(operation);
  if (found == outcomes_.end()) return;
  found->second.error = std::move(error);
  found->second.done = true;
}

void RequestTable::take_answer(ipc::MessageKind kind, std::uint32_t number, ipc::Packet packet) {
  answers_.insert_or_assign({kind, number}, std::move(packet));
}

bool RequestTable::give_up_on_texts(TimeUs now_us) {
  if (!texts_due_) return false;
  texts_due_ = false;
  for (auto& [number, outcome] : outcomes_) {
    if (outcome.text_due_us == 0 || outcome.done) continue;
    if (now_us >= outcome.text_due_us) {
      outcome.error = Error{error_kind_of(outcome.error_kind), "the operation failed", "see deftd's log", ""};
      outcome.done = true;
    } else {
      texts_due_ = true;
    }
  }
  return texts_due_;
}

}  // namespace deft::client
