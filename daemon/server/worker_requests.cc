#include "daemon/server/worker_requests.h"

#include <array>
#include <string>
#include <utility>

#include "core/base/text.h"
#include "core/ipc/wire.h"
#include "daemon/wire/codec.h"

namespace deft::daemon {
namespace {

constexpr std::size_t kMaxStoreItems =
    65536;  // keys that a worker has set, and questions that wait, each up to a message

Result<void> check_operation(const ipc::Operation& call, const std::string& name, const std::string& terms) {
  if (call.collective < ipc::Collective::kAllReduce || call.collective > ipc::Collective::kBarrier)
    return fail(ErrorKind::kViolation, "an unknown collective");
  if (auto ok = check_name(name, ipc::kMaxNameBytes, "the collective's name"); !ok) return ok;
  return check_text(terms, ipc::kMaxTermsBytes, "the text of the collective's terms");
}

// The buffer must hold all elements, at a place that fits their size.
Result<void> check_place(const ipc::Operation& call, std::uint64_t buffer_bytes) {
  const std::uint64_t element = model::dtype_bytes(static_cast<model::DType>(call.dtype));
  if (element == 0 || !model::is_known(static_cast<model::ReduceOp>(call.reduce_op)))
    return fail(ErrorKind::kViolation, "a collective of an unknown type");
  const std::uint64_t elements = call.collective == ipc::Collective::kAllGather ? call.capacity : call.count;
  if (call.count > elements || call.offset > buffer_bytes || elements > (buffer_bytes - call.offset) / element ||
      call.offset % element != 0)
    return fail(ErrorKind::kViolation, "a collective outside its staging buffer");
  return {};
}

// The bytes of a DECLARE at most, as protobuf writes it.
std::size_t most_on_wire(const Declaration& declaration) {
  constexpr std::size_t kAround = 1024;               // the envelope with the job's name, and the group's name
  constexpr std::size_t kOfTensor = 32, kOfDim = 10;  // beside its texts: numbers, and lengths of all fields
  std::size_t bytes = kAround;
  for (const auto& tensor : declaration.tensors)
    bytes += kOfTensor + tensor.name.size() + tensor.codec.size() + kOfDim * tensor.shape.size();
  return bytes;
}

}  // namespace

WorkerRequests::Handler WorkerRequests::handler_of(ipc::MessageKind kind) {
  static constexpr std::array<std::pair<ipc::MessageKind, Handler>, 9> kHandlers{{
      {ipc::MessageKind::kDeclare, &WorkerRequests::on_declare},
      {ipc::MessageKind::kDeclareTensor, &WorkerRequests::on_declare_tensor},
      {ipc::MessageKind::kStagingBuffer, &WorkerRequests::on_staging_buffer},
      {ipc::MessageKind::kFreeStagingBuffer, &WorkerRequests::on_free_staging_buffer},
      {ipc::MessageKind::kOperation, &WorkerRequests::on_operation},
      {ipc::MessageKind::kError, &WorkerRequests::on_link_failed},
      {ipc::MessageKind::kStoreSet, &WorkerRequests::on_store_set},
      {ipc::MessageKind::kStoreGet, &WorkerRequests::on_store_get},
      {ipc::MessageKind::kStatistics, &WorkerRequests::on_statistics},
  }};
  for (const auto& [known, handler] : kHandlers)
    if (known == kind) return handler;
  return nullptr;
}

Result<void> WorkerRequests::handle(const ipc::Packet& packet, ipc::MessageKind kind) {
  const Handler handler = handler_of(kind);
  if (handler == nullptr) return fail(ErrorKind::kViolation, "a message of an unknown kind");
  return (this->*handler)(packet);
}

Result<void> WorkerRequests::on_declare(const ipc::Packet& packet) {
  auto message = ipc::decode<ipc::Declare>(packet.bytes, ipc::MessageKind::kDeclare, 1);
  if (!message) return tl::unexpected(message.error());
  const auto& declare = message->fixed;
  const auto op = static_cast<model::ReduceOp>(declare.reduce_op);
  if (declaring_ || declare.group != next_group_)
    return fail(ErrorKind::kViolation, "groups were declared out of order");
  if (name_bytes_.size() >= wire::kMaxGroups)
    return fail(ErrorKind::kExhausted,
                "it has " + std::to_string(wire::kMaxGroups) + " groups of gradients that are not released",
                "let go of optimizers that are not used any more, on all ranks");
  if (declare.group >= wire::kMaxGroupNumbers)
    return fail(ErrorKind::kExhausted,
                "it has declared " + std::to_string(wire::kMaxGroupNumbers) + " groups of gradients in one session",
                "call shutdown() and init() again");
  if (!model::is_known(op) || declare.tensors == 0 || declare.tensors > model::kMaxTensors)
    return fail(ErrorKind::kInvalid, "a group of " + std::to_string(declare.tensors) + " tensors");
  if (auto ok = check_name(message->texts[0], ipc::kMaxJobNameBytes, "the group's name"); !ok) return ok;
  declaring_.emplace();
  declaring_->group = next_group_++;
  name_bytes_[declaring_->group] = 0;
  declaring_->name = message->texts[0];
  declaring_->slots = declare.slots;
  declaring_->op = op;
  declaring_->expected = declare.tensors;
  return {};
}

Result<void> WorkerRequests::on_declare_tensor(const ipc::Packet& packet) {
  auto message = ipc::decode<ipc::DeclareTensor>(packet.bytes, ipc::MessageKind::kDeclareTensor, 2);
  if (!message) return tl::unexpected(message.error());
  const auto& tensor = message->fixed;
  if (!declaring_ || tensor.group != declaring_->group || tensor.index != declaring_->tensors.size() ||
      tensor.dims > model::kMaxDims)
    return fail(ErrorKind::kViolation, "a tensor was declared out of order");
  if (auto ok = check_name(message->texts[0], ipc::kMaxNameBytes, "a tensor's name"); !ok) return ok;
  const std::string& codec = message->texts[1];
  if (codec.size() > model::kMaxCodecTextBytes || !is_utf8(codec))
    return fail(ErrorKind::kViolation, "a tensor's codec has more than 128 bytes, or is no text");
  model::TensorSpec spec;
  spec.name = message->texts[0];
  spec.dtype = static_cast<model::DType>(tensor.dtype);
  spec.shape.assign(tensor.shape, tensor.shape + tensor.dims);
  spec.forward_position = tensor.forward_position;
  spec.codec = codec;
  const std::uint64_t bytes =
      sizeof spec + spec.name.size() + spec.codec.size() + spec.shape.size() * sizeof(std::uint64_t);
  if (auto ok = account_.take(Quota::kNameBytes, bytes); !ok) return ok;
  name_bytes_[declaring_->group] += bytes;
  declaring_->tensors.push_back(std::move(spec));
  if (declaring_->tensors.size() < declaring_->expected) return {};
  if (const std::size_t most = most_on_wire(*declaring_); most > wire::kMaxMessageBytes)
    return fail(ErrorKind::kInvalid,
                "names and shapes of " + std::to_string(declaring_->expected) + " tensors take up to " +
                    std::to_string(most) + " bytes, and a message between daemons has at most " +
                    std::to_string(wire::kMaxMessageBytes),
                "give the tensors shorter names, or make several optimizers of fewer parameters each");
  Declaration declaration = std::move(*declaring_);
  declaring_.reset();
  if (const auto job = job_.lock()) job->declare(worker_, std::move(declaration));
  return {};
}

Result<void> WorkerRequests::on_staging_buffer(const ipc::Packet& packet) {
  auto message = ipc::decode<ipc::StagingBuffer>(packet.bytes, ipc::MessageKind::kStagingBuffer, 0);
  if (!message) return tl::unexpected(message.error());
  return memory_.make_buffer(
      message->fixed.buffer, message->fixed.bytes, [this, asked = message->fixed](WorkerMemory::Made buffer) {
        if (!buffer) return worker_.send_error(buffer.error(), asked.buffer);  // only what asked for it fails
        const auto sent = connection_.send_in_turn(ipc::encode(asked, ipc::MessageKind::kStagingBufferMade), *buffer);
        if (!sent) worker_.close(sent.error().in(worker_.describe()));
      });
}

Result<void> WorkerRequests::on_free_staging_buffer(const ipc::Packet& packet) {
  auto message = ipc::decode<ipc::StagingBuffer>(packet.bytes, ipc::MessageKind::kFreeStagingBuffer, 0);
  if (!message) return tl::unexpected(message.error());
  memory_.free_buffer(message->fixed.buffer);
  return {};
}

Result<void> WorkerRequests::on_operation(const ipc::Packet& packet) {
  auto message = ipc::decode<ipc::Operation>(packet.bytes, ipc::MessageKind::kOperation, 2);
  if (!message) return tl::unexpected(message.error());
  const auto& call = message->fixed;
  if (auto ok = check_operation(call, message->texts[0], message->texts[1]); !ok) return ok;
  CollectiveRequest request{message->texts[0], call, nullptr, message->texts[1]};
  if (call.collective != ipc::Collective::kBarrier) {
    request.staging_buffer = memory_.find_buffer(call.staging_buffer);
    if (!request.staging_buffer) return fail(ErrorKind::kViolation, "a collective on an unknown staging buffer");
    if (auto ok = check_place(call, request.staging_buffer->bytes()); !ok) return ok;
  }
  const auto job = job_.lock();
  if (!job) return {};
  const auto begun = begin_operation(call.operation);
  if (!begun && begun.error().kind == ErrorKind::kExhausted) {  // only what asked for it fails
    worker_.send_error(begun.error(), call.operation);
    return {};
  }
  if (begun) job->request(worker_, std::move(request));
  return begun;
}

Result<void> WorkerRequests::begin_operation(std::uint64_t operation) {
  if (operations_.contains(operation))
    return fail(ErrorKind::kViolation, "operation " + std::to_string(operation) + " is under way already");
  if (auto ok = account_.take(Quota::kOperations, 1); !ok) return ok;
  operations_.insert(operation);
  return {};
}

void WorkerRequests::released(std::uint32_t group) {
  const auto names = name_bytes_.extract(group);
  if (!names) return;
  account_.give_back(Quota::kNameBytes, names.mapped());
  memory_.free_arena(group);
}

void WorkerRequests::done(std::uint64_t operation) {
  if (operations_.erase(operation) != 0) account_.give_back(Quota::kOperations, 1);
}

Result<void> WorkerRequests::on_link_failed(const ipc::Packet& packet) {
  auto message = ipc::decode<ipc::ErrorMessage>(packet.bytes, ipc::MessageKind::kError, 3);
  if (!message) return tl::unexpected(message.error());
  for (std::string& text : message->texts) {
    if (!is_utf8(text)) return fail(ErrorKind::kViolation, "the text of an error is not valid UTF-8");
    text = readable(text, ipc::kMaxTextBytes);  // it is shown to other users, too
  }
  const Error error{error_kind_of(message->fixed.error_kind), message->texts[0], message->texts[1], message->texts[2]};
  if (const auto job = job_.lock()) job->link_failed(worker_, error);
  return {};
}

Result<void> WorkerRequests::on_statistics(const ipc::Packet& packet) {
  auto message = ipc::decode<ipc::Statistics>(packet.bytes, ipc::MessageKind::kStatistics, 0);
  if (!message) return tl::unexpected(message.error());
  if (message->fixed.group >= next_group_) return fail(ErrorKind::kViolation, "statistics of an undeclared group");
  if (const char* value = ipc::impossible_value(message->fixed))
    return fail(ErrorKind::kViolation, std::string(value) + " in its statistics is no finite number of 0 or more");
  if (const auto job = job_.lock()) job->take_statistics(worker_, message->fixed);
  return {};
}

Result<void> WorkerRequests::check_store_item(const std::string& key, bool known) const {
  if (!known && store_keys_.size() + questions_ >= kMaxStoreItems)
    return fail(ErrorKind::kExhausted, "more than " + std::to_string(kMaxStoreItems) + " items of the job's store",
                "while a rank has joined, each reduction of another one is an item: let the ranks' numbers of steps "
                "differ by less");
  return check_name(key, ipc::kMaxNameBytes, "a key of the job's store");
}

Result<void> WorkerRequests::on_store_set(const ipc::Packet& packet) {
  auto message = ipc::decode<ipc::StoreItem>(packet.bytes, ipc::MessageKind::kStoreSet, 1);
  if (!message) return tl::unexpected(message.error());
  const auto known = store_keys_.find(message->texts[0]);
  const bool goes = message->tail.empty();
  if (auto ok = check_store_item(message->texts[0], goes || known != store_keys_.end()); !ok) return ok;
  // A key that is set again and again, for years, costs as much as its longest value.
  const std::size_t bytes = message->texts[0].size() + message->tail.size();
  const std::size_t had = known == store_keys_.end() ? 0 : known->second;
  if (goes && had > 0) {
    account_.give_back(Quota::kStoreBytes, had);
    store_keys_.erase(known);
  } else if (!goes && bytes > had) {
    if (auto ok = account_.take(Quota::kStoreBytes, bytes - had); !ok) return ok;
    store_keys_[message->texts[0]] = bytes;
  }
  if (const auto job = job_.lock()) job->store_set(message->texts[0], message->tail);
  return {};
}

Result<void> WorkerRequests::on_store_get(const ipc::Packet& packet) {
  auto message = ipc::decode<ipc::StoreItem>(packet.bytes, ipc::MessageKind::kStoreGet, 1);
  if (!message) return tl::unexpected(message.error());
  if (auto ok = check_store_item(message->texts[0], false); !ok) return ok;
  ++questions_;
  if (const auto job = job_.lock()) job->store_get(worker_, message->fixed.request, message->texts[0]);
  return {};
}

}  // namespace deft::daemon
