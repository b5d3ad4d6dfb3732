// What this worker has asked the daemon for by number, and what became of it: collectives, staging buffers,
// declarations and values of the store.
//
//   const auto number = requests.next_operation();
//   requests.expect(number);   ... send OPERATION with `number` ...
//   auto ok = requests.wait_for(number);
//   requests.forget(number);
//
// Any thread, unless a function says that it is called under the connection's lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/client/connection.h"
#include "core/ipc/messages.h"

namespace deft::client {

class RequestTable {
 public:
  explicit RequestTable(Connection& connection) : connection_(connection) {}

  // Numbers for new operations, and for staging buffers and questions to the store. No operation ever has the number of
  // one of the latter.
  std::uint64_t next_operation() { return operations_.fetch_add(1, std::memory_order_relaxed); }
  std::uint32_t next_number() { return numbers_.fetch_add(1, std::memory_order_relaxed); }

  // An operation, or a staging buffer: expect it before it is asked for, forget it afterwards.
  void expect(std::uint64_t operation);
  void forget(std::uint64_t operation);
  // Of an operation that is expected: whether it has ended; its own error if it failed.
  Result<bool> finished(std::uint64_t operation);
  Result<void> wait_for(std::uint64_t operation);

  // Waits for the answer of `kind` to what was asked with `number`, or until `deadline_us` (MonotonicClock; 0: none).
  Result<ipc::Packet> answer(ipc::MessageKind kind, std::uint32_t number, TimeUs deadline_us = 0);

  // Under the lock. Null: it has not ended. A number that is not expected has ended without an error.
  [[nodiscard]] std::optional<Result<void>> result_of(std::uint64_t operation) const;
  void end(const shm::OperationDoneRecord& ended, TimeUs now_us);
  void fail(std::uint64_t operation, Error error);
  void take_answer(ipc::MessageKind kind, std::uint32_t number, ipc::Packet packet);
  // Ends the operations whose text is overdue. True: a text is still awaited.
  bool give_up_on_texts(TimeUs now_us);

 private:
  struct Outcome {
    bool done = false;
    std::optional<Error> error;
    std::uint32_t error_kind = 0;  // the ring said that it failed
    TimeUs text_due_us = 0;        // and the text must have come by then
  };

  Connection& connection_;
  std::atomic<std::uint64_t> operations_{std::uint64_t{1} << 32};
  std::atomic<std::uint32_t> numbers_{1};
  std::unordered_map<std::uint64_t, Outcome> outcomes_;
  bool texts_due_ = false;  // of some outcome
  std::map<std::pair<ipc::MessageKind, std::uint32_t>, ipc::Packet> answers_;
};

}  // namespace deft::client
