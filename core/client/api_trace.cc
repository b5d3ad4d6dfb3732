// The C interface (deft_trace.h) for traces of the running job.
#include <span>

#include "core/client/api.h"
#include "core/client/deft.h"
#include "core/client/deft_trace.h"
#include "core/ipc/daemon_query.h"
#include "core/ipc/wire.h"
#include "core/shm/memory_records.h"

namespace client = deft::client;
using client::guarded;
using client::missing;
using client::report;
using client::with_group;
using deft::Error;
using deft::ErrorKind;

namespace {

constexpr std::size_t kMostMemoryRecords = 16'384;  // of a step; the daemon keeps the newest 65,536 of all

int order_trace(deft_session* session, deft::ipc::TraceAction action, const char* folder, unsigned steps,
                deft_error* error) {
  deft::ipc::TraceRequest request;
  request.action = action;
  request.steps = steps;
  const auto& attachment = session->session->connection().attachment();
  const auto message = deft::ipc::encode(request, deft::ipc::MessageKind::kTrace, {attachment.job, folder});
  const auto answer = deft::ipc::ask_daemon(attachment.socket, message, attachment.timeout_us);
  return answer ? DEFT_OK : report(answer.error(), error);
}

deft::Result<void> record_memory(deft::client::Connection& connection, std::uint32_t group,
                                 const deft_step_memory& memory, std::span<const deft_layer> layers,
                                 std::span<const deft_memory> amounts) {
  deft::shm::LayerRecord layer{.group = group};
  for (const deft_layer& from : layers) {
    layer.tensor = from.tensor, layer.forward_ns = from.forward_ns;
    if (auto ok = connection.submit(layer); !ok) return ok;
    ++layer.layer;
  }
  for (const deft_memory& from : amounts) {
    const deft::shm::MemoryRecord amount{.part = static_cast<std::uint32_t>(from.part),
                                         .begin = from.begin,
                                         .end = from.end,
                                         .input_of = from.input_of,
                                         .bytes = from.bytes,
                                         .growing = from.growing};
    if (auto ok = connection.submit(amount); !ok) return ok;
  }
  return connection.submit(deft::shm::MemoryStepRecord{.layers = static_cast<std::uint32_t>(layers.size()),
                                                       .amounts = static_cast<std::uint32_t>(amounts.size()),
                                                       .samples = memory.samples,
                                                       .step = memory.step});
}

}  // namespace

extern "C" {

int deft_trace_start(deft_session* session, const char* folder, unsigned steps, deft_error* error) {
  return guarded(error, [&] {
    if (session == nullptr || folder == nullptr) return missing("a session or a folder", error);
    return order_trace(session, deft::ipc::TraceAction::kStart, folder, steps, error);
  });
}

uint64_t deft_traces(const deft_session* session) { return session == nullptr ? 0 : session->session->traces(); }

int deft_record_memory(deft_group* group, const deft_step_memory* memory, deft_error* error) {
  return guarded(error, [&] {
    if (group == nullptr || memory == nullptr) return missing("group or memory", error);
    const std::span layers(memory->layers, memory->layer_count);
    const std::span amounts(memory->amounts, memory->amount_count);
    if (layers.size() > kMostMemoryRecords || amounts.size() > kMostMemoryRecords)
      return report(Error{ErrorKind::kInvalid, "too many layers, or amounts of memory", "", ""}, error);
    return with_group(group, error, [&](auto& used) {
      return record_memory(group->session->session->connection(), used.number(), *memory, layers, amounts);
    });
  });
}

int deft_trace_stop(deft_session* session, deft_error* error) {
  return guarded(error, [&] {
    if (session == nullptr) return missing("the session", error);
    return order_trace(session, deft::ipc::TraceAction::kStop, "", 0, error);
  });
}

}  // extern "C"
