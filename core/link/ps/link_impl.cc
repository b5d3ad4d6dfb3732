#include "core/link/ps/link_impl.h"

namespace deft::link::ps_backend {

LinkImpl::LinkImpl(std::string name, std::unique_ptr<Exchange> exchange)
    : name_(std::move(name)), exchange_(std::move(exchange)) {}

// Runs `segments_`; an error makes the link fail for good.
Result<void> LinkImpl::run(std::byte* data, Header shape) {
  {
    const std::lock_guard lock(mutex_);
    if (failed_) return tl::unexpected(*failed_);
  }
  if (exchange_->nodes() == 1 || segments_.empty()) return {};
  for (const Segment& segment : segments_) shape.total += segment.bytes;
  auto result = exchange_->round(data, segments_, shape);
  if (result) return result;
  const std::lock_guard lock(mutex_);
  if (!failed_) failed_ = result.error().in(name_);
  return tl::unexpected(*failed_);
}

Result<void> LinkImpl::all_reduce(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op) {
  if (model::dtype_bytes(dtype) == 0 || !model::is_known(op)) {
    return fail(ErrorKind::kInvalid, "all-reduce of an unknown dtype or operation");
  }
  Header shape;
  shape.dtype = static_cast<std::uint8_t>(dtype);
  shape.op = static_cast<std::uint8_t>(op);
  segments_.clear();
  exchange_->spread().cut(0, count * model::dtype_bytes(dtype), kNoOwner, segments_);
  return run(data, shape);
}

Result<void> LinkImpl::broadcast(std::byte* data, std::size_t bytes, std::uint32_t root) {
  if (root >= exchange_->nodes()) {
    return fail(ErrorKind::kInvalid,
                "broadcast from node " + std::to_string(root) + " of " + std::to_string(exchange_->nodes()));
  }
  segments_.clear();
  exchange_->spread().cut(0, bytes, root, segments_);
  return run(data, Header{});
}

Result<void> LinkImpl::all_gather(std::byte* data, std::span<const std::size_t> bytes) {
  if (bytes.size() != exchange_->nodes()) {
    return fail(ErrorKind::kInvalid, "all-gather of " + std::to_string(bytes.size()) + " blocks on " +
                                         std::to_string(exchange_->nodes()) + " nodes");
  }
  segments_.clear();
  std::size_t offset = 0;
  for (std::uint32_t node = 0; node < bytes.size(); ++node) {
    exchange_->spread().cut(offset, bytes[node], node, segments_);
    offset += bytes[node];
  }
  return run(data, Header{});
}

void LinkImpl::abort(std::string_view reason) {
  {
    const std::lock_guard lock(mutex_);
    if (!failed_) failed_ = Error{ErrorKind::kLost, std::string(reason), {}, name_};
  }
  exchange_->abort();
}

}  // namespace deft::link::ps_backend
