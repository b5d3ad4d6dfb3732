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

LinkImpl::LinkImpl(const LinkSpec& spec, const LinkGroup& group, std::unique_ptr<Communicator> communicator)
    : Link(spec.name(), group, 1), communicator_(std::move(communicator)) {}

LinkImpl::~LinkImpl() {
  const Libraries& libraries = communicator_->libraries();
  communicator_.reset();  // first: a kernel that hangs would make cudaFree wait for it
  if (scratch_ != nullptr) libraries.cudaFree(scratch_);
}

// One request is in flight. It runs when it is waited for.
Result<void> LinkImpl::start(const WorkRequest& request) {
  request_ = request;
  return {};
}

// An error means that the data was given back: neither NCCL nor a copy touches it any more.
Result<std::optional<std::uint64_t>> LinkImpl::await() {
  Result<void> done;
  {
    const std::lock_guard lock(turn_);
    done = communicator_->aborted() ? fail(ErrorKind::kLost, "aborted") : communicator_->use_device();
    if (done) done = run_on_gpu(request_);
    if (!done) communicator_->halt();
  }
  halt_if_aborted();  // an abort may have left it to this request just when that had ended
  if (!done) return tl::unexpected(done.error());
  return request_.id;
}

void LinkImpl::settle() {
  const std::lock_guard lock(turn_);
  communicator_->halt();
}

void LinkImpl::stop(const Error& /*reason*/) {
  communicator_->abort();
  halt_if_aborted();  // else the request that runs does it
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

// Calls `work` with `data` itself, or with a copy of it on the GPU that is copied back.
template <typename Work>
Result<void> LinkImpl::on_device(std::byte* data, std::size_t bytes, Work work) {
  const auto there = communicator_->is_device_memory(data);
  if (!there) return tl::unexpected(there.error());
  if (*there) return work(data);
  if (auto ok = reserve(bytes); !ok) return ok;
  if (auto ok = communicator_->copy(scratch_, data, bytes); !ok) return ok;
  if (auto ok = work(scratch_); !ok) return ok;
  if (auto ok = communicator_->copy(data, scratch_, bytes); !ok) return ok;
  return communicator_->wait("copy from the GPU");
}

Result<void> LinkImpl::run_on_gpu(const WorkRequest& request) {
  if (request.reduces()) return all_reduce(request);
  std::byte* data = request.data;
  const std::vector<std::size_t> bytes = request.blocks(communicator_->members());
  for (std::uint32_t root = 0; root < bytes.size(); data += bytes[root], ++root) {
    if (bytes[root] == 0) continue;
    if (auto ok = broadcast_block(data, bytes[root], root); !ok) return ok;
  }
  return {};
}

Result<void> LinkImpl::all_reduce(const WorkRequest& request) {
  const auto type = nccl_type(request.dtype);
  const auto reduction = nccl_op(request.op);
  if (!type || !reduction) return fail(ErrorKind::kInvalid, "NCCL has no such dtype or operation");
  return on_device(request.data, request.bytes(), [&](std::byte* memory) {
    return communicator_->run("ncclAllReduce", [&](ncclComm_t communicator, cudaStream_t stream) {
      return communicator_->libraries().ncclAllReduce(memory, memory, request.count, *type, *reduction, communicator,
                                                      stream);
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

}  // namespace deft::link::nccl_backend
