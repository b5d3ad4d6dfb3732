// The records of the rings: 64 bytes each, a kind and the payload of that kind.
//
//   producer.push(ReadyRecord{.group = 1, .slot = 0, .first_tensor = 3, .tensors = 2, .generation = 7});
//   switch (record.kind()) { case RecordKind::kReady: return on_ready(record.as<ReadyRecord>()); ... }
//
// Each kind has a struct of its own, and no field means something else in another kind. A record of zeros is of kind
// kNone: a free place in a ring. Numbers are in the machine's order, because both sides run on one machine.
//
// The fields of the payloads: groups, tensors and slots are numbered from 0 in the order of the worker's declaration. A payload
// means the tensors [first_tensor, first_tensor + tensors). Generations and steps count from 0. A launch is the leader's number
// of a part or collective. A link has the number that the message LINK gave it. The daemon copies a record before it checks it,
// and believes no number of the worker.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "core/shm/record_kind.h"
#include "core/shm/records_of_daemon.h"
#include "core/shm/records_of_worker.h"

namespace deft::shm {

inline constexpr std::size_t kRecordBytes = 64;
inline constexpr std::size_t kPayloadOffset = 8;
inline constexpr std::size_t kPayloadBytes = kRecordBytes - kPayloadOffset;

template <typename T>
concept RecordPayload = std::is_trivially_copyable_v<T> && std::is_standard_layout_v<T> && sizeof(T) <= kPayloadBytes &&
                        alignof(T) <= kPayloadOffset&& std::same_as<decltype(T::kKind), const RecordKind>;

// A tagged union of a kind and the payload of that kind. It is copied as a whole.
class Record {
 public:
  Record() = default;  // kNone, all zero

  template <RecordPayload Payload>
  Record(const Payload& payload)
      : kind_(Payload::kKind) {  // NOLINT(google-explicit-constructor): a payload is a record
    std::memcpy(payload_, &payload, sizeof payload);
  }

  // The kind that the other side wrote. It may be a value that the enumeration does not name.
  [[nodiscard]] RecordKind kind() const { return kind_; }

  // The payload. The caller has found that kind() is Payload::kKind. Another kind is a bug of Deft, and ends the process.
  template <RecordPayload Payload>
  [[nodiscard]] Payload as() const {
    if (kind_ != Payload::kKind) std::abort();
    Payload payload;
    std::memcpy(&payload, payload_, sizeof payload);
    return payload;
  }

 private:
  RecordKind kind_ = RecordKind::kNone;
  std::uint32_t unused_ = 0;
  alignas(8) std::byte payload_[kPayloadBytes] = {};
};

static_assert(sizeof(Record) == kRecordBytes && alignof(Record) == 8, "one record is one cache line");
static_assert(std::is_trivially_copyable_v<Record> && std::is_standard_layout_v<Record>,
              "a record is copied by value between two processes");

}  // namespace deft::shm
