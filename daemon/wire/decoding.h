// Inside the codec: functions that its two directions share.
#pragma once

#include <google/protobuf/repeated_field.h>

#include "daemon/wire/codec.h"
#include "daemon/wire/field_checks.h"
#include "proto/control.pb.h"

namespace deft::daemon::wire {

Result<ToLeader> decode(const proto::ToLeader& message, const LeaderFacts& facts);
Result<ToNode> decode(const proto::ToNode& message, const NodeFacts& facts);

// The cause of a failure, for people: its texts are made readable and are never refused.
Error read_error(const proto::Failure& from, const Field& at, Checks& checks);
std::vector<LinkAddress> read_links(const google::protobuf::RepeatedPtrField<proto::LinkAddress>& from, const Field& at,
                                    Checks& checks);
// Reads 1 to kMaxLocalSize ranks of this world, none of them twice.
std::vector<std::uint32_t> read_ranks(const google::protobuf::RepeatedField<std::uint32_t>& from, std::uint32_t world,
                                      const Field& at, Checks& checks);
Heartbeat read(const proto::Heartbeat& from);
inline constexpr std::uint64_t kMostMs = std::uint64_t{1} << 50;
// The caller checks the rank.
Stalled read(const proto::Stalled& from, const Field& at, Checks& checks);
std::vector<std::byte> bytes_of(const std::string& text);

// A numbered message is one of `first` to `last`; every enumeration here has no gaps.
template <typename Enum>
Enum read_enum(std::uint32_t value, Enum first, Enum last, const Field& at, Checks& checks) {
  const bool known = value >= static_cast<std::uint32_t>(first) && value <= static_cast<std::uint32_t>(last);
  checks.require(known, at, [&] { return std::to_string(value) + " is unknown"; });
  return known ? static_cast<Enum>(value) : first;
}

// The message, or the first field that is wrong.
template <typename Variant, typename Message>
Result<Variant> checked(Message&& message, const Checks& checks) {
  if (checks.failed()) return tl::unexpected(*checks.error());
  return Variant(std::forward<Message>(message));
}

}  // namespace deft::daemon::wire
