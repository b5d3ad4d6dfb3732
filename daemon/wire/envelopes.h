// Envelopes that both a node and its leader send, and errors on their way through them.
#pragma once

#include <cstdint>

#include "core/base/status.h"
#include "proto/control.pb.h"

namespace deft::daemon {

inline proto::Failure failure_of(const Error& error) {
  proto::Failure failure;
  failure.set_kind(static_cast<std::uint32_t>(error.kind));
  failure.set_what(error.what);
  failure.set_fix(error.fix);
  failure.set_where(error.where);
  return failure;
}

inline proto::Envelope failure_envelope(const Error& error, bool suspected = false) {
  proto::Envelope envelope;
  *envelope.mutable_failure() = failure_of(error);
  envelope.mutable_failure()->set_suspected(suspected);
  return envelope;
}

inline Error error_of(const proto::Failure& failure) {
  return {static_cast<ErrorKind>(failure.kind()), failure.what(), failure.fix(), failure.where()};
}

inline proto::Envelope heartbeat_reply(std::uint64_t number) {
  proto::Envelope envelope;
  envelope.mutable_heartbeat()->set_number(number);
  envelope.mutable_heartbeat()->set_reply(true);
  return envelope;
}

}  // namespace deft::daemon
