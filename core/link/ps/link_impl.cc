#include "core/link/ps/link_impl.h"

namespace deft::link::ps_backend {

LinkImpl::LinkImpl(std::string name, std::unique_ptr<Exchange> exchange)
    : name_(std::move(name)), exchange_(std::move(exchange)) {}

// Runs `operation`; an error makes the link fail for good.
template <typename Operation>
Result<void> LinkImpl::run(Operation operation) {
  if (exchange_->nodes() == 1) return failure_.check();
  if (auto ok = failure_.check(); !ok) {
    exchange_->end();  // an abort() may not have come to that yet, and the caller takes its data back now
    return ok;
  }
  auto result = operation();
  if (result) return result;
  return tl::unexpected(failure_.keep(result.error().in(name_)));
}

Result<void> LinkImpl::push(std::byte* data, std::vector<Segment> segments, Header shape) {
  for (const Segment& segment : segments) shape.total += segment.bytes;
  return run([&] { return exchange_->start(data, std::move(segments), shape); });
}

Result<void> LinkImpl::pull() {
  return run([&] { return exchange_->finish(); });
}

Result<void> LinkImpl::all_reduce(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op) {
  if (auto ok = start_all_reduce(data, count, dtype, op, 0); !ok) return ok;
  return finish_all_reduce();
}

Result<void> LinkImpl::start_all_reduce(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op,
                                        std::uint32_t urgency) {
  if (model::dtype_bytes(dtype) == 0 || !model::is_known(op)) {
    return fail(ErrorKind::kInvalid, "all-reduce of an unknown dtype or operation");
  }
  Header shape;
  shape.dtype = static_cast<std::uint8_t>(dtype);
  shape.op = static_cast<std::uint8_t>(op);
  shape.urgency = urgency;
  std::vector<Segment> segments;
  exchange_->spread().cut(0, count * model::dtype_bytes(dtype), kNoOwner, segments);
  return push(data, std::move(segments), shape);
}

Result<void> LinkImpl::finish_all_reduce() { return pull(); }

Result<std::optional<std::size_t>> LinkImpl::finish_next() {
  std::optional<std::size_t> place = 0;  // where the node is alone
  const auto finished = run([&]() -> Result<void> {
    const auto next = exchange_->finish_next();
    if (!next) return tl::unexpected(next.error());
    place = *next;
    return {};
  });
  if (!finished) return tl::unexpected(finished.error());
  return place;
}

Result<void> LinkImpl::broadcast(std::byte* data, std::size_t bytes, std::uint32_t root) {
  if (root >= exchange_->nodes()) {
    return fail(ErrorKind::kInvalid,
                "broadcast from node " + std::to_string(root) + " of " + std::to_string(exchange_->nodes()));
  }
  std::vector<Segment> segments;
  exchange_->spread().cut(0, bytes, root, segments);
  if (auto ok = push(data, std::move(segments), Header{}); !ok) return ok;
  return pull();
}

Result<void> LinkImpl::all_gather(std::byte* data, std::span<const std::size_t> bytes) {
  if (bytes.size() != exchange_->nodes()) {
    return fail(ErrorKind::kInvalid, "all-gather of " + std::to_string(bytes.size()) + " blocks on " +
                                         std::to_string(exchange_->nodes()) + " nodes");
  }
  std::vector<Segment> segments;
  std::size_t offset = 0;
  for (std::uint32_t node = 0; node < bytes.size(); ++node) {
    exchange_->spread().cut(offset, bytes[node], node, segments);
    offset += bytes[node];
  }
  if (auto ok = push(data, std::move(segments), Header{}); !ok) return ok;
  return pull();
}

void LinkImpl::abort(std::string_view reason) {
  failure_.keep({ErrorKind::kLost, std::string(reason), {}, name_});
  exchange_->abort();
}

}  // namespace deft::link::ps_backend
