#include "core/link/nccl/link_impl.h"

namespace deft::link::nccl_backend {
namespace {

std::optional<ncclDataType_t> nccl_type(model::DType dtype) {
  switch (dtype) {
    case model::DType::kFloat32: return ncclFloat32;
    case model::DType::kFloat64: return ncclFloat64;
    case model::DType::kFloat16: return ncclFloat16;
    case model::DType::kBFloat16: return ncclBfloat16;
    case model::DType::kInt32: return ncclInt32;
    case model::DType::kInt64: return ncclInt64;
    case model::DType::kUInt8: return ncclUint8;
    case model::DType::kInt8: return ncclInt8;
  }
  return std::nullopt;
}

std::optional<ncclRedOp_t> nccl_op(model::ReduceOp op) {
  switch (op) {
    case model::ReduceOp::kSum: return ncclSum;
    case model::ReduceOp::kMin: return ncclMin;
    case model::ReduceOp::kMax: return ncclMax;
  }
  return std::nullopt;
}

}  // namespace

LinkImpl::LinkImpl(std::string name, std::unique_ptr<Communicator> communicator)
    : name_(std::move(name)), communicator_(std::move(communicator)) {}

LinkImpl::~LinkImpl() {
  const Libraries& libraries = communicator_->libraries();
  communicator_.reset();  // first: a kernel that hangs would make cudaFree wait for it
  if (scratch_ != nullptr) libraries.cudaFree(scratch_);
}

// Runs `operation` on this worker's GPU; its error makes the link fail for good. The data is given back when neither NCCL nor
// a copy touches it any more.
template <typename Operation>
Result<void> LinkImpl::run(Operation operation) {
  Result<void> done;
  {
    const std::lock_guard lock(turn_);
    if (auto ok = failure_.check(); !ok) return ok;
    done = communicator_->use_device();
    if (done) done = operation();
    if (!done) communicator_->halt();
  }
  halt_if_aborted();  // by somebody who left it to this operation, when that had ended already
  if (done) return done;
  return tl::unexpected(failure_.keep(done.error().in(name_)));
}

void LinkImpl::halt_if_aborted() {
  if (!communicator_->aborted()) return;
  if (const std::unique_lock lock(turn_, std::try_to_lock); lock) communicator_->halt();
}

Result<void> LinkImpl::reserve(std::size_t bytes) {
  if (bytes <= scratch_bytes_) return {};
  const Libraries& libraries = communicator_->libraries();
  if (scratch_ != nullptr) libraries.cudaFree(scratch_);
  scratch_ = nullptr;
  scratch_bytes_ = 0;
  void* made = nullptr;
  if (auto ok = libraries.check(libraries.cudaMalloc(&made, bytes), "cudaMalloc"); !ok) return ok;
  scratch_ = static_cast<std::byte*>(made);
  scratch_bytes_ = bytes;
  return {};
}

// Calls `operation` with `data` itself, or with a copy of it on the GPU that is copied back.
template <typename Operation>
Result<void> LinkImpl::on_device(std::byte* data, std::size_t bytes, Operation operation) {
  const auto there = communicator_->is_device_memory(data);
  if (!there) return tl::unexpected(there.error());
  if (*there) return operation(data);
  if (auto ok = reserve(bytes); !ok) return ok;
  if (auto ok = communicator_->copy(scratch_, data, bytes); !ok) return ok;
  if (auto ok = operation(scratch_); !ok) return ok;
  if (auto ok = communicator_->copy(data, scratch_, bytes); !ok) return ok;
  return communicator_->wait("copy from the GPU");
}

Result<void> LinkImpl::all_reduce(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op) {
  const auto type = nccl_type(dtype);
  const auto reduction = nccl_op(op);
  if (!type || !reduction) return fail(ErrorKind::kInvalid, "all-reduce of an unknown dtype or operation");
  if (count == 0) return {};
  return run([&] {
    return on_device(data, count * model::dtype_bytes(dtype), [&](std::byte* memory) {
      return communicator_->run("ncclAllReduce", [&](ncclComm_t communicator, cudaStream_t stream) {
        return communicator_->libraries().ncclAllReduce(memory, memory, count, *type, *reduction, communicator, stream);
      });
    });
  });
}

Result<void> LinkImpl::broadcast_block(std::byte* data, std::size_t bytes, std::uint32_t root) {
  return on_device(data, bytes, [&](std::byte* memory) {
    return communicator_->run("ncclBroadcast", [&](ncclComm_t communicator, cudaStream_t stream) {
      return communicator_->libraries().ncclBroadcast(memory, memory, bytes, ncclUint8, static_cast<int>(root),
                                                      communicator, stream);
    });
  });
}

Result<void> LinkImpl::broadcast(std::byte* data, std::size_t bytes, std::uint32_t root) {
  if (root >= communicator_->members())
    return fail(ErrorKind::kInvalid,
                "broadcast from rank " + std::to_string(root) + " of " + std::to_string(communicator_->members()));
  if (bytes == 0) return {};
  return run([&] { return broadcast_block(data, bytes, root); });
}

Result<void> LinkImpl::all_gather(std::byte* data, std::span<const std::size_t> bytes) {
  if (bytes.size() != communicator_->members())
    return fail(ErrorKind::kInvalid, "all-gather of " + std::to_string(bytes.size()) + " blocks on " +
                                         std::to_string(communicator_->members()) + " ranks");
  return run([&]() -> Result<void> {
    for (std::uint32_t root = 0; root < bytes.size(); data += bytes[root], ++root) {
      if (bytes[root] == 0) continue;
      if (auto ok = broadcast_block(data, bytes[root], root); !ok) return ok;
    }
    return {};
  });
}

void LinkImpl::abort(std::string_view reason) {
  failure_.keep({ErrorKind::kLost, std::string(reason), {}, name_});
  communicator_->abort();
  halt_if_aborted();  // else the operation that runs does it
}

}  // namespace deft::link::nccl_backend
