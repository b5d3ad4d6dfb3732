// The numbered requests of this worker to the daemon and their outcomes: collectives, staging buffers, declarations and values
// of the store.
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

  // New numbers: next_operation() for operations, next_number() for staging buffers and questions to the store. The two never
  // give the same number.
  std::uint64_t next_operation() { return operations_.fetch_add(1, std::memory_order_relaxed); }
  std::uint32_t next_number() { return numbers_.fetch_add(1, std::memory_order_relaxed); }

  // Call expect() before an operation or staging buffer is requested, and forget() when it has ended.
  void expect(std::uint64_t operation);
  void forget(std::uint64_t operation);
  // True if an expected operation has ended. Its error if it failed. wait_for() waits until it has ended, or until `deadline_us`
  // (MonotonicClock; 0: no deadline); it gives true if it has ended.
  Result<bool> finished(std::uint64_t operation);
  Result<bool> wait_for(std::uint64_t operation, TimeUs deadline_us = 0);

  // Waits for the answer of kind `kind` to the request `number`; kTimeout at `deadline_us` (MonotonicClock; 0: no deadline).
  Result<ipc::Packet> answer(ipc::MessageKind kind, std::uint32_t number, TimeUs deadline_us = 0);

  // For these the caller holds the lock. result_of() gives nothing if the operation has not ended; an operation that is not
  // expected has ended without an error.
  [[nodiscard]] std::optional<Result<void>> result_of(std::uint64_t operation) const;
  void end(const shm::OperationDoneRecord& ended, TimeUs now_us);
  void fail(std::uint64_t operation, Error error);
  void take_answer(ipc::MessageKind kind, std::uint32_t number, ipc::Packet packet);
  // Ends the operations whose text is overdue. True if a text is still awaited.
  bool give_up_on_texts(TimeUs now_us);

 private:
  struct Outcome {
    bool done = false;
    std::optional<Error> error;
    std::uint32_t error_kind = 0;  // not 0: the ring said that it failed
    TimeUs text_due_us = 0;        // when the text must have come
  };

  Connection& connection_;
  std::atomic<std::uint64_t> operations_{std::uint64_t{1} << 32};
  std::atomic<std::uint32_t> numbers_{1};
  std::unordered_map<std::uint64_t, Outcome> outcomes_;
  bool texts_due_ = false;  // the text of some outcome has not come yet
  std::map<std::pair<ipc::MessageKind, std::uint32_t>, ipc::Packet> answers_;
};

}  // namespace deft::client
