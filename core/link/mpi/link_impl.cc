#include "core/link/mpi/link_impl.h"

#include <utility>
#include <vector>

namespace deft::link::mpi_backend {

LinkImpl::LinkImpl(std::string name, std::unique_ptr<Carrier> carrier)
    : name_(std::move(name)), carrier_(std::move(carrier)) {
  if (!carrier_) return;
  all_reduce_.emplace(*carrier_);
  blocks_.emplace(*carrier_);
}

template <typename Operation>
Result<void> LinkImpl::run(Operation operation) {
  if (!carrier_) {
    const std::lock_guard lock(mutex_);
    if (aborted_) return tl::unexpected(*aborted_);
    return {};
  }
  auto failure = carrier_->failure();
  if (!failure && operation()) return {};
  if (!failure) failure = carrier_->failure();
  return tl::unexpected(failure->in(name_));
}

Result<void> LinkImpl::all_reduce(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op) {
  if (auto ok = start_all_reduce(data, count, dtype, op, 0); !ok) return ok;
  return finish_all_reduce();
}

Result<void> LinkImpl::start_all_reduce(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op,
                                        std::uint32_t /*urgency*/) {
  if (model::dtype_bytes(dtype) == 0 || !model::is_known(op)) {
    return fail(ErrorKind::kInvalid, "all-reduce of an unknown dtype or operation");
  }
  return run([&] { return all_reduce_->start(data, count, dtype, op); });
}

Result<void> LinkImpl::finish_all_reduce() {
  return run([&] { return all_reduce_->finish(); });
}

Result<void> LinkImpl::broadcast(std::byte* data, std::size_t bytes, std::uint32_t root) {
  if (root >= nodes()) {
    return fail(ErrorKind::kInvalid, "broadcast from node " + std::to_string(root) + " of " + std::to_string(nodes()));
  }
  if (bytes == 0) return {};
  return run([&] {
    std::vector<std::size_t> sizes(nodes(), 0);
    sizes[root] = bytes;
    return blocks_->share(data, sizes);
  });
}

Result<void> LinkImpl::all_gather(std::byte* data, std::span<const std::size_t> bytes) {
  if (bytes.size() != nodes()) {
    return fail(ErrorKind::kInvalid,
                "all-gather of " + std::to_string(bytes.size()) + " blocks on " + std::to_string(nodes()) + " nodes");
  }
  return run([&] { return blocks_->share(data, bytes); });
}

void LinkImpl::abort(std::string_view reason) {
  const Error error{ErrorKind::kLost, std::string(reason), {}, {}};
  if (carrier_) return carrier_->abort(error);
  const std::lock_guard lock(mutex_);
  if (!aborted_) aborted_ = error.in(name_);
}

}  // namespace deft::link::mpi_backend
