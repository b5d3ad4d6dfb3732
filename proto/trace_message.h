// An event between core/model's plain data and its protobuf message (deft.Event).
#pragma once

#include "core/base/status.h"
#include "core/model/events.h"
#include "proto/trace.pb.h"

namespace deft::messages {

deft::Event to_message(const model::Event& event);

// Checks every value as parse_event does; an error names the field: "event.end_us: it lies before start_us".
Result<model::Event> from_message(const deft::Event& message);

}  // namespace deft::messages
