// The C interface (deft.h) of sessions, groups and collectives.
#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>

#include "core/base/placement.h"
#include "core/client/api.h"
#include "core/client/options.h"

namespace client = deft::client;
using client::answered;
using client::deadline_in;
using client::guarded;
using client::missing;
using client::report;
using client::with_group;
using deft::Error;
using deft::ErrorKind;
using deft::Result;

namespace {

Result<deft::model::TensorSpec> spec_of(const deft_tensor& tensor, std::size_t index) {
  const bool known = tensor.name != nullptr && tensor.dtype >= 0 && tensor.dtype <= 255 && tensor.dims >= 0 &&
                     tensor.dims <= static_cast<int>(deft::model::kMaxDims) &&
                     (tensor.dims == 0 || tensor.shape != nullptr);
  if (!known)
    return deft::fail(ErrorKind::kInvalid, "tensor " + std::to_string(index) + " has no name, type or shape",
                      "a shape has 0 to 8 dimensions");
  deft::model::TensorSpec spec;
  spec.name = tensor.name;
  spec.dtype = static_cast<deft::model::DType>(tensor.dtype);
  spec.shape.assign(tensor.shape, tensor.shape + tensor.dims);
  spec.forward_position = tensor.forward_position;
  return spec;
}

client::Completions::Callback callback_of(deft_callback callback, void* user_data) {
  return [callback, user_data](const Result<void>& result) {
    deft_error error{};
    report(result, &error);
    callback(user_data, &error);
  };
}

int start(deft_session* session, const client::CollectiveCall& request, deft_operation** out, deft_error* error) {
  auto started = client::StagedCollective::start(*session->session, session->buffers, request);
  if (!started) return report(started.error(), error);
  auto operation = std::make_unique<deft_operation>(deft_operation{session, std::move(*started)});
  *out = operation.get();
  const std::lock_guard lock(session->mutex);
  session->operations.emplace(operation.get(), std::move(operation));
  return DEFT_OK;
}

std::unique_ptr<deft_operation> take(deft_operation* operation) {
  deft_session& session = *operation->session;
  const std::lock_guard lock(session.mutex);
  auto node = session.operations.extract(operation);
  return node ? std::move(node.mapped()) : nullptr;
}

client::CollectiveCall request_of(const char* name, deft::ipc::Collective collective, const void* input, int dtype) {
  client::CollectiveCall request;
  request.name = name;
  request.collective = collective;
  request.input = input;
  request.dtype = static_cast<std::uint32_t>(dtype);
  request.reduce_op = DEFT_SUM;
  return request;
}

Result<client::CollectiveCall> request_of(const deft_collective& from, const client::World& world) {
  const auto kind = static_cast<deft::ipc::Collective>(from.collective);
  const bool gathers = kind == deft::ipc::Collective::kAllGather;
  const bool barrier = kind == deft::ipc::Collective::kBarrier;
  if (from.collective < DEFT_ALLREDUCE || from.collective > DEFT_BARRIER)
    return deft::fail(ErrorKind::kInvalid, "unknown collective " + std::to_string(from.collective));
  if (from.counts == nullptr && !barrier) return deft::fail(ErrorKind::kInvalid, "the counts are NULL");
  const bool sends =
      !barrier && (kind != deft::ipc::Collective::kBroadcast || static_cast<int>(world.rank) == from.root);
  auto request = request_of(from.name, kind, sends ? from.input : nullptr, barrier ? DEFT_UINT8 : from.dtype);
  request.counts.assign(from.counts, from.counts + (barrier ? 0 : gathers ? world.size : 1));
  if (barrier) request.counts = {0};
  if (sends && from.input == nullptr && request.counts[gathers ? world.rank : 0] > 0)
    return deft::fail(ErrorKind::kInvalid, "the input is NULL");
  if (kind == deft::ipc::Collective::kAllReduce) request.reduce_op = static_cast<std::uint32_t>(from.reduce_op);
  if (kind == deft::ipc::Collective::kBroadcast) request.root = from.root;
  if (from.terms != nullptr) request.terms = from.terms;
  return request;
}

deft_generation described(const deft::client::GradientGroup& group, const deft::model::UpdateWindow& dated) {
  return {dated.generation, dated.first_step, dated.last_step, dated.apply_step, group.slot_of(dated.generation)};
}

}  // namespace

extern "C" {

int deft_open(const char* const* options, deft_session** session, deft_error* error) {
  return guarded(error, [&] {
    if (session == nullptr) return missing("session", error);
    std::vector<std::string> given;
    for (; options != nullptr && *options != nullptr; ++options) given.emplace_back(*options);
    auto config = client::open_options(given);
    if (!config) return report(config.error(), error);
    auto placement = find_placement(*config, client::worker_environment(given));
    if (!placement) return report(placement.error(), error);
    auto opened = client::Session::open(*config, *placement);
    if (!opened) return report(opened.error(), error);
    auto made = std::make_unique<deft_session>(std::move(*opened));
    auto links = client::WorkerLinks::open(*made->session, made->buffers);
    if (!links) return report(links.error(), error);
    made->links = std::move(*links);
    *session = made.release();
    return int{DEFT_OK};
  });
}

void deft_close(deft_session* session) {
  // A forked child leaves its parent's session alone: locks may be held by threads that it does not have.
  if (session == nullptr || session->session->connection().in_fork()) return;
  guarded(nullptr, [&] {
    session->session->end();
    {
      std::unique_lock lock(session->mutex);
      session->all_left.wait(lock, [&] { return session->calls == 0; });
    }
    delete session;
    return int{DEFT_OK};
  });
}

deft_world deft_get_world(const deft_session* session) {
  const auto& world = session->session->world();
  return {static_cast<int>(world.rank),       static_cast<int>(world.size), static_cast<int>(world.local_rank),
          static_cast<int>(world.local_size), static_cast<int>(world.node), static_cast<int>(world.nodes)};
}

int deft_node_of(const deft_session* session, int rank) {
  const auto& nodes = session->session->world().node_of;
  return rank >= 0 && static_cast<std::size_t>(rank) < nodes.size() ? static_cast<int>(nodes[rank]) : -1;
}

int deft_declare(deft_session* session, const char* name, const deft_tensor* tensors, size_t count, unsigned slots,
                 int reduce_op, deft_group** group, deft_error* error) {
  return deft_declare_encoded(session, name, tensors, nullptr, count, slots, reduce_op, group, error);
}

int deft_declare_encoded(deft_session* session, const char* name, const deft_tensor* tensors, const char* const* codecs,
                         size_t count, unsigned slots, int reduce_op, deft_group** group, deft_error* error) {
  return guarded(session, error, [&] {
    if (session == nullptr || name == nullptr || (tensors == nullptr && count > 0) || group == nullptr)
      return missing("session, name, tensors or group", error);
    std::vector<deft::model::TensorSpec> specs;
    for (std::size_t i = 0; i < count; ++i) {
      auto spec = spec_of(tensors[i], i);
      if (!spec) return report(spec.error().in(std::string("declare '") + name + "'"), error);
      if (codecs != nullptr && codecs[i] != nullptr) spec->codec = codecs[i];
      specs.push_back(std::move(*spec));
    }
    const auto op = static_cast<deft::model::ReduceOp>(reduce_op >= 0 && reduce_op <= 255 ? reduce_op : 0);
    auto declared = client::GradientGroup::declare(*session->session, name, specs, slots, op);
    if (!declared) return report(declared.error(), error);
    session->links->add(*declared);
    auto owned = std::make_unique<deft_group>(session, std::move(*declared));
    *group = owned.get();
    const std::lock_guard lock(session->mutex);
    session->groups.push_back(std::move(owned));
    return int{DEFT_OK};
  });
}

int deft_release(deft_session* session, deft_group* group, deft_error* error) {
  return answered(nullptr, error, [&] {
    if (session == nullptr || group == nullptr) return -missing("session or group", error);
    if (group->session != session)
      return -report(Error{ErrorKind::kInvalid, "the group is of another session", "", ""}, error);
    const int done = with_group(group, error, [](auto& used) { return used.release(); });
    if (done >= 0) group->let_go();
    return done;
  });
}

void* deft_tensor_data(deft_group* group, size_t tensor, unsigned slot) {
  const auto used = group->use();
  return used ? used->data(tensor, slot) : nullptr;
}

size_t deft_tensor_bytes(const deft_group* group, size_t tensor) {
  const auto used = group->use();
  return used ? used->bytes(tensor) : 0;
}

int deft_on_device(const deft_session* session) { return session->session->on_device() ? 1 : 0; }

size_t deft_arena_bytes(const deft_group* group) {
  const auto used = group->use();
  return used ? used->arena()->bytes() : 0;
}

int deft_use_device_arena(deft_group* group, void* memory, deft_error* error) {
  return with_group(group, error, [&](auto& used) -> Result<void> {
    if (memory == nullptr) return deft::fail(ErrorKind::kInvalid, "the device memory is NULL");
    used.use_device_arena(static_cast<std::byte*>(memory));
    return {};
  });
}

int deft_ready(deft_group* group, size_t first, size_t count, uint64_t generation, unsigned slot, deft_error* error) {
  return with_group(group, error, [&](auto& used) { return used.ready(first, count, generation, slot); });
}

int deft_wait(deft_group* group, size_t first, size_t count, uint64_t generation, deft_error* error) {
  return with_group(group, error, [&](auto& used) -> Result<void> {
    const auto waited = used.wait(first, count, generation);
    return waited ? Result<void>{} : tl::unexpected(waited.error());
  });
}

int deft_test_for(deft_group* group, size_t first, size_t count, uint64_t generation, uint64_t timeout_us,
                  deft_error* error) {
  return with_group(group, error,
                    [&](auto& used) { return used.wait(first, count, generation, deadline_in(timeout_us)); });
}

int deft_test(deft_group* group, size_t first, size_t count, uint64_t generation, deft_error* error) {
  return with_group(group, error, [&](auto& used) { return used.test(first, count, generation); });
}

void deft_generations_of_step(const deft_group* group, uint64_t step, deft_generation* out) {
  if (const auto used = group->use())
    used->generations().each_of_step(
        step, [&](std::size_t tensor, const auto& dated) { out[tensor] = described(*used, dated); });
}

void deft_generations_at(const deft_group* group, const uint64_t* generations, deft_generation* out) {
  if (const auto used = group->use())
    used->generations().each_at(generations,
                                [&](std::size_t tensor, const auto& dated) { out[tensor] = described(*used, dated); });
}

int deft_flush(deft_group* group, uint64_t step, deft_error* error) {
  return with_group(group, error, [&](auto& used) { return used.flush(step); });
}

int deft_send_residuals(deft_group* group, uint64_t step, deft_error* error) {
  return with_group(group, error, [&](auto& used) { return used.send_residuals(step); });
}

int deft_stage(deft_session* session, int stage, uint64_t step, deft_error* error) {
  return guarded(session, error, [&] {
    if (stage != DEFT_FORWARD && stage != DEFT_BACKWARD)
      return report(Error{ErrorKind::kInvalid, "unknown stage " + std::to_string(stage), "", ""}, error);
    deft::shm::StageRecord record;
    record.stage = static_cast<std::uint32_t>(stage);
    record.tells_waits = session->session->has_waited() ? 1 : 0;
    record.step = step;
    record.waited_us = static_cast<std::uint64_t>(session->session->take_waited_us());
    if (auto ok = session->session->connection().submit(record); !ok) return report(ok, error);
    return report(session->session->connection().look(), error);  // a job that failed is noticed between waits, too
  });
}

int deft_report_statistics(deft_group* group, const deft_statistics* statistics, deft_error* error) {
  if (group == nullptr || statistics == nullptr) return missing("group or statistics", error);
  return with_group(group, error, [&](auto& used) {
    deft::ipc::Statistics message;
    message.step = statistics->step;
    message.local_norm = statistics->local_norm;
    message.average_norm = statistics->average_norm;
    message.learning_rate = statistics->learning_rate;
    message.loss = statistics->loss;
    message.target = statistics->target;
    message.merged_as_sums = statistics->merged_as_sums != 0 ? 1 : 0;
    return used.report(message);
  });
}

int deft_allreduce(deft_session* session, const char* name, const void* input, size_t count, int dtype, int reduce_op,
                   deft_operation** operation, deft_error* error) {
  return guarded(session, error, [&] {
    if (name == nullptr || (input == nullptr && count > 0)) return missing("name or input", error);
    auto request = request_of(name, deft::ipc::Collective::kAllReduce, input, dtype);
    request.counts = {count};
    request.reduce_op = static_cast<std::uint32_t>(reduce_op);
    return start(session, request, operation, error);
  });
}

int deft_broadcast(deft_session* session, const char* name, const void* input, size_t count, int dtype, int root,
                   deft_operation** operation, deft_error* error) {
  return guarded(session, error, [&] {
    const bool is_root = static_cast<int>(session->session->world().rank) == root;
    if (name == nullptr || (input == nullptr && count > 0 && is_root)) return missing("name or input", error);
    auto request = request_of(name, deft::ipc::Collective::kBroadcast, is_root ? input : nullptr, dtype);
    request.counts = {count};
    request.root = root;
    return start(session, request, operation, error);
  });
}

int deft_allgather(deft_session* session, const char* name, const void* input, const size_t* counts, int dtype,
                   deft_operation** operation, deft_error* error) {
  return guarded(session, error, [&] {
    if (name == nullptr || counts == nullptr) return missing("name or counts", error);
    const auto& world = session->session->world();
    if (input == nullptr && counts[world.rank] > 0) return missing("input", error);
    auto request = request_of(name, deft::ipc::Collective::kAllGather, input, dtype);
    request.counts.assign(counts, counts + world.size);
    return start(session, request, operation, error);
  });
}

int deft_barrier(deft_session* session, const char* name, deft_error* error) {
  return guarded(session, error, [&] {
    if (name == nullptr) return missing("name", error);
    auto request = request_of(name, deft::ipc::Collective::kBarrier, nullptr, DEFT_UINT8);
    request.counts = {0};
    auto operation = client::StagedCollective::start(*session->session, session->buffers, request);
    if (!operation) return report(operation.error(), error);
    return report((*operation)->finish(nullptr), error);
  });
}

int deft_start(deft_session* session, const deft_collective* collective, deft_operation** operation,
               deft_error* error) {
  return guarded(session, error, [&] {
    if (collective == nullptr || collective->name == nullptr || operation == nullptr)
      return missing("collective, its name or operation", error);
    auto request = request_of(*collective, session->session->world());
    return request ? start(session, *request, operation, error) : report(request.error(), error);
  });
}

int deft_poll(deft_operation* operation, deft_error* error) {
  return answered(operation->session, error, [&] { return report(operation->operation->poll(), error); });
}

int deft_poll_for(deft_operation* operation, uint64_t timeout_us, deft_error* error) {
  return answered(operation->session, error,
                  [&] { return report(operation->operation->wait_until(deadline_in(timeout_us)), error); });
}

int deft_finish(deft_operation* operation, void* output, deft_error* error) {
  return guarded(operation->session, error, [&] {
    auto owned = take(operation);
    if (owned == nullptr) return report(Error{ErrorKind::kInvalid, "the operation was finished before", "", ""}, error);
    return report(owned->operation->finish(output), error);
  });
}

int deft_when_reduced(deft_group* group, size_t first, size_t count, uint64_t generation, deft_callback callback,
                      void* user_data, deft_error* error) {
  if (group == nullptr || callback == nullptr) return missing("group or callback", error);
  return with_group(group, error, [&](auto& used) {
    return group->session->completions.when_reduced(used, first, count, generation, callback_of(callback, user_data));
  });
}

int deft_when_done(deft_operation* operation, deft_callback callback, void* user_data, deft_error* error) {
  return guarded(error, [&] {
    if (operation == nullptr || callback == nullptr) return missing("operation or callback", error);
    return report(
        operation->session->completions.when_done(operation->operation->number(), callback_of(callback, user_data)),
        error);
  });
}

}  // extern "C"
