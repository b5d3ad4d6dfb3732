#include "core/client/gradient_group.h"

#include <algorithm>

#include "core/base/text.h"
#include "core/ipc/wire.h"

namespace deft::client {
namespace {

Result<void> check_in_use(const TensorProgress& progress, const std::string& name) {
  if (!progress.released()) return {};
  return fail(ErrorKind::kInvalid, "the group '" + name + "' was released", "use it before its release");
}

Result<void> check_names(const std::string& group, const std::vector<model::TensorSpec>& tensors) {
  if (auto ok = check_name(group, ipc::kMaxJobNameBytes, "the group's name"); !ok) return ok;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto ok = check_name(tensors[i].name, ipc::kMaxNameBytes, "the name of tensor " + std::to_string(i));
    if (!ok) return ok;
  }
  return {};
}

Result<void> send_declaration(Connection& connection, ipc::Declare declare, const std::string& name,
                              const std::vector<model::TensorSpec>& tensors) {
  declare.tensors = static_cast<std::uint32_t>(tensors.size());
  if (auto sent = connection.send(ipc::encode(declare, ipc::MessageKind::kDeclare, {name})); !sent) return sent;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    ipc::DeclareTensor tensor;
    tensor.group = declare.group;
    tensor.index = static_cast<std::uint32_t>(i);
    tensor.forward_position = tensors[i].forward_position;
    tensor.dtype = static_cast<std::uint32_t>(tensors[i].dtype);
    tensor.dims = static_cast<std::uint32_t>(tensors[i].shape.size());
    std::copy(tensors[i].shape.begin(), tensors[i].shape.end(), tensor.shape);
    auto sent =
        connection.send(ipc::encode(tensor, ipc::MessageKind::kDeclareTensor, {tensors[i].name, tensors[i].codec}));
    if (!sent) return sent;
  }
  return {};
}

}  // namespace

GradientGroup::GradientGroup(Session& session, std::string name, std::vector<model::TensorSpec> tensors,
                             model::ArenaLayout layout, model::ReduceOp op)
    : session_(session),
      name_(std::move(name)),
      tensors_(std::move(tensors)),
      layout_(std::move(layout)),
      op_(op),
      progress_(std::make_shared<TensorProgress>(tensors_.size())),
      generations_(std::make_shared<Generations>(tensors_.size(), layout_.slots)),
      next_(tensors_.size()) {}

Result<std::shared_ptr<GradientGroup>> GradientGroup::declare(Session& session, const std::string& name,
                                                              const std::vector<model::TensorSpec>& tensors,
                                                              std::uint32_t slots, model::ReduceOp op) {
  const std::string where = "declare '" + name + "'";
  auto layout = model::lay_out(tensors, slots);
  if (!layout) return tl::unexpected(layout.error().in(where));
  if (auto ok = check_names(name, tensors); !ok) return tl::unexpected(ok.error().in(where));
  if (!model::is_known(op)) return tl::unexpected(fail(ErrorKind::kInvalid, "unknown reduction").value().in(where));
  if (auto ok = session.connection().usable(); !ok) return tl::unexpected(ok.error());
  std::shared_ptr<GradientGroup> group(new GradientGroup(session, name, tensors, std::move(*layout), op));
  const auto turn = session.groups().declaring();
  group->number_ = session.groups().add(group->progress_, group->generations_);
  ipc::Declare declare;
  declare.group = group->number_;
  declare.slots = slots;
  declare.reduce_op = static_cast<std::uint32_t>(op);
  if (auto ok = send_declaration(session.connection(), declare, name, tensors); !ok)
    return tl::unexpected(ok.error().in(where));
  if (auto ok = group->map_arena(); !ok) return tl::unexpected(ok.error().in(where));
  return group;
}

Result<void> GradientGroup::map_arena() {
  auto packet = session_.requests().answer(ipc::MessageKind::kDeclared, number_);
  if (!packet) return tl::unexpected(packet.error());
  auto declared = ipc::decode<ipc::Declared>(packet->bytes, ipc::MessageKind::kDeclared, 0);
  if (!declared) return tl::unexpected(declared.error());
  if (declared->fixed.arena_bytes != layout_.total_bytes() || packet->descriptors.size() != 1)
    return fail(ErrorKind::kViolation, "the daemon laid out an arena of " +
                                           std::to_string(declared->fixed.arena_bytes) + " bytes, this worker one of " +
                                           std::to_string(layout_.total_bytes()));
  auto arena = shm::Segment::map(std::move(packet->descriptors[0]), layout_.total_bytes());
  if (!arena) return tl::unexpected(arena.error());
  arena_ = std::make_shared<const shm::Segment>(std::move(*arena));
  return {};
}

std::byte* GradientGroup::data(std::size_t tensor, std::uint32_t slot) const {
  if (tensor >= tensors_.size() || slot >= layout_.slots) return nullptr;
  return arena_->data() + slot * layout_.slot_bytes + layout_.tensors[tensor].offset;
}

Result<Part> GradientGroup::part(std::uint32_t slot, std::uint64_t offset, std::uint64_t bytes) const {
  for (const auto& region : layout_.regions) {
    if (slot >= layout_.slots || offset < region.offset || offset - region.offset >= region.bytes ||
        bytes > region.bytes - (offset - region.offset))
      continue;
    std::byte* const device = device_arena_;
    std::byte* const base = device != nullptr ? device : arena_->data();
    return Part{base + slot * layout_.slot_bytes + offset, bytes / model::dtype_bytes(region.dtype), region.dtype, op_};
  }
  return fail(ErrorKind::kViolation, "the daemon started a launch outside of group '" + name_ + "'");
}

std::size_t GradientGroup::bytes(std::size_t tensor) const {
  return tensor < tensors_.size() ? layout_.tensors[tensor].bytes : 0;
}

Result<void> GradientGroup::check_range(std::size_t first, std::size_t count) const {
  if (count > 0 && first < tensors_.size() && count <= tensors_.size() - first) return {};
  return fail(ErrorKind::kInvalid, "group '" + name_ + "' has " + std::to_string(tensors_.size()) +
                                       " tensors, not those from " + std::to_string(first) + " on, " +
                                       std::to_string(count) + " of them");
}

Result<void> GradientGroup::ready(std::size_t first, std::size_t count, std::uint64_t generation, std::uint32_t slot) {
  if (auto ok = check_range(first, count); !ok) return ok;
  if (slot >= layout_.slots)
    return fail(ErrorKind::kInvalid, "group '" + name_ + "' has " + std::to_string(layout_.slots) +
                                         " slots, not slot " + std::to_string(slot));
  {
    const std::lock_guard lock(mutex_);
    if (auto ok = check_in_use(*progress_, name_); !ok) return ok;
    for (std::size_t i = first; i < first + count; ++i)
      if (next_[i] != generation)
        return fail(ErrorKind::kInvalid,
                    "tensor '" + tensors_[i].name + "' was handed over for step " + std::to_string(generation) +
                        " where step " + std::to_string(next_[i]) + " was due",
                    "hand each tensor over once a step");
    std::fill_n(next_.begin() + static_cast<std::ptrdiff_t>(first), count, generation + 1);
  }
  for (std::size_t at = first, end = first + count; at < end;) {  // those with the same dates together
    const model::UpdateWindow when = generations_->at(at, generation);
    std::size_t next = at + 1;
    while (next < end && generations_->at(next, generation) == when) ++next;
    if (auto ok = submit_ready(at, next - at, when, slot); !ok) return ok;
    at = next;
  }
  return {};
}

Result<void> GradientGroup::submit_ready(std::size_t first, std::size_t count, const model::UpdateWindow& when,
                                         std::uint32_t slot) {
  shm::ReadyRecord record;
  record.group = number_;
  record.slot = slot;
  record.first_tensor = static_cast<std::uint32_t>(first);
  record.tensors = static_cast<std::uint32_t>(count);
  record.generation = when.generation;
  record.last_step = when.last_step;
  record.cycle_step = when.cycle_step;
  return session_.connection().submit(record);
}

Result<bool> GradientGroup::wait(std::size_t first, std::size_t count, std::uint64_t generation, TimeUs deadline_us) {
  if (auto ok = check_range(first, count); !ok) return tl::unexpected(ok.error());
  if (auto ok = session_.connection().usable(); !ok) return tl::unexpected(ok.error());
  const auto finished = [&] { return progress_->finished(first, count, generation); };
  if (finished()) return true;
  const auto ended = [&] { return finished() || progress_->released(); };
  if (auto ok = session_.wait_for_update(ended, deadline_us); !ok) return tl::unexpected(ok.error());
  if (finished()) return true;
  if (auto ok = check_in_use(*progress_, name_); !ok) return tl::unexpected(ok.error());
  return false;
}

Result<bool> GradientGroup::test(std::size_t first, std::size_t count, std::uint64_t generation) {
  if (auto ok = check_range(first, count); !ok) return tl::unexpected(ok.error());
  if (progress_->finished(first, count, generation)) return true;
  if (auto ok = session_.connection().look(); !ok) return tl::unexpected(ok.error());
  return progress_->finished(first, count, generation);
}

Result<void> GradientGroup::flush(std::uint64_t step) {
  if (auto ok = session_.connection().usable(); !ok) return ok;
  generations_->cut(step);
  return session_.connection().submit(shm::FlushRecord{.group = number_, .step = step});
}

Result<void> GradientGroup::send_residuals(std::uint64_t step) {
  if (auto ok = session_.connection().usable(); !ok) return ok;
  return session_.connection().submit(shm::SendResidualsRecord{.group = number_, .step = step});
}

Result<bool> GradientGroup::release() {
  if (auto ok = session_.connection().usable(); !ok) return tl::unexpected(ok.error());
  bool all_reduced = true;
  {
    const std::lock_guard lock(mutex_);
    if (auto ok = check_in_use(*progress_, name_); !ok) return tl::unexpected(ok.error());
    progress_->release();
    for (std::size_t i = 0; i < next_.size(); ++i)
      all_reduced = all_reduced && (next_[i] == 0 || progress_->finished(i, 1, next_[i] - 1));
  }
  session_.groups().release(number_, all_reduced ? nullptr : shared_from_this());
  session_.connection().nudge();
  if (auto ok = session_.connection().submit(shm::ReleaseRecord{.group = number_}); !ok)
    return tl::unexpected(ok.error());
  return all_reduced;
}

Result<void> GradientGroup::report(ipc::Statistics statistics) {
  if (const char* value = ipc::impossible_value(statistics))
    return fail(ErrorKind::kInvalid, std::string(value) + " is no finite number of 0 or more",
                "leave out steps whose gradients or loss overflowed");
  statistics.group = number_;
  return session_.connection().send(ipc::encode(statistics, ipc::MessageKind::kStatistics));
}

}  // namespace deft::client
