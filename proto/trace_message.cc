#include "proto/trace_message.h"

namespace deft::messages {
namespace {

void fill(deft::Event& message, const model::Event&, const model::ComputeSpan& span) {
  deft::ComputeEvent& to = *message.mutable_compute();
  to.set_stage(span.stage == model::Stage::kForward ? deft::ComputeEvent::FORWARD : deft::ComputeEvent::BACKWARD);
  to.set_step(span.step);
  to.set_start_us(span.start_us);
  to.set_end_us(span.end_us);
}

void fill(deft::Event& message, const model::Event& event, const model::SendSpan& send) {
  deft::SendEvent& to = *message.mutable_send();
  to.set_link(event.link);
  to.set_generation(send.generation);
  to.set_offset(send.offset);
  to.set_bytes(send.bytes);
  to.set_start_us(send.start_us);
  to.set_end_us(send.end_us);
}

void fill(deft::Event& message, const model::Event&, const model::UpdateMark& mark) {
  deft::UpdateEvent& to = *message.mutable_update();
  to.set_generation(mark.generation);
  to.set_first_step(mark.first_step);
  to.set_last_step(mark.last_step);
  to.set_at_us(mark.at_us);
}

}  // namespace

deft::Event to_message(const model::Event& event) {
  deft::Event message;
  message.set_policy(event.policy);
  message.set_bucket(event.bucket);
  std::visit([&](const auto& what) { fill(message, event, what); }, event.what);
  return message;
}

Result<model::Event> from_message(const deft::Event& message) {
  model::Event event{message.policy(), message.bucket(), {}, model::UpdateMark{}};
  switch (message.what_case()) {
    case deft::Event::kCompute: {
      const auto& from = message.compute();
      event.what =
          model::ComputeSpan{static_cast<model::Stage>(from.stage()), from.step(), 0, from.start_us(), from.end_us()};
      break;
    }
    case deft::Event::kSend: {
      const auto& from = message.send();
      event.link = from.link();
      event.what =
          model::SendSpan{0, 0, from.generation(), from.offset(), from.bytes(), from.start_us(), from.end_us()};
      break;
    }
    case deft::Event::kUpdate: {
      const auto& from = message.update();
      event.what = model::UpdateMark{0, from.generation(), from.first_step(), from.last_step(), from.at_us()};
      break;
    }
    default: return fail(ErrorKind::kInvalid, "event.what: neither compute nor send nor update");
  }
  if (auto ok = model::check_event(event); !ok) return tl::unexpected(ok.error());
  return event;
}

}  // namespace deft::messages
