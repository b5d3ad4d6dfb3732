#include "core/client/collectives.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/ipc/wire.h"

namespace deft::client {
namespace {

constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 42;

Result<void> check(const Request& request, std::uint32_t world) {
  if (request.name.empty() || request.name.size() > ipc::kMaxNameBytes)
    return fail(ErrorKind::kInvalid, "an operation's name has " + std::to_string(request.name.size()) + " bytes",
                "give it 1 to " + std::to_string(ipc::kMaxNameBytes));
  if (request.dtype > 255 || model::dtype_bytes(static_cast<model::DType>(request.dtype)) == 0)
    return fail(ErrorKind::kInvalid, "unknown element type " + std::to_string(request.dtype));
  if (request.reduce_op > 255 || !model::is_known(static_cast<model::ReduceOp>(request.reduce_op)))
    return fail(ErrorKind::kInvalid, "unknown reduction " + std::to_string(request.reduce_op));
  if (request.root < 0 || request.root >= world)
    return fail(ErrorKind::kInvalid, "there is no rank " + std::to_string(request.root) + " to broadcast from",
                "ranks are 0 to " + std::to_string(world - 1));
  const bool too_large = std::any_of(request.counts.begin(), request.counts.end(),
                                     [](std::uint64_t count) { return count > kMaxElements; });
  if (too_large) return fail(ErrorKind::kInvalid, "an operation over more than 2^42 elements");
  return {};
}

}  // namespace

Result<std::unique_ptr<Operation>> Operation::start(Session& session, Heaps& heaps, const Request& request) {
  const std::string where = "operation '" + request.name + "'";
  if (auto ok = check(request, session.world().size); !ok) return tl::unexpected(ok.error().in(where));
  if (auto ok = session.usable(); !ok) return tl::unexpected(ok.error());
  std::unique_ptr<Operation> operation(new Operation(session, heaps, request.name));
  if (auto ok = operation->lay_out(request); !ok) return tl::unexpected(ok.error().in(where));
  if (auto ok = operation->stage(request); !ok) return tl::unexpected(ok.error().in(where));
  return operation;
}

// On the heap the blocks lie node by node, and within a node by rank, so that a node's blocks are one piece.
Result<void> Operation::lay_out(const Request& request) {
  const std::uint64_t element = model::dtype_bytes(static_cast<model::DType>(request.dtype));
  blocks_.resize(request.counts.size());
  for (std::size_t i = 0; i < blocks_.size(); ++i) blocks_[i].bytes = request.counts[i] * element;
  std::vector<std::size_t> order(blocks_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto& node_of = session_.world().node_of;
  if (blocks_.size() > 1)
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return node_of[a] < node_of[b]; });
  for (const auto i : order) {
    blocks_[i].offset = total_bytes_;
    total_bytes_ += blocks_[i].bytes;
  }
  if (request.collective == ipc::Collective::kBarrier) return {};
  auto piece = heaps_.take(total_bytes_);
  if (!piece) return tl::unexpected(piece.error());
  piece_ = *piece;
  return {};
}

const Operation::Block& Operation::own_block() const {
  return blocks_[blocks_.size() == 1 ? 0 : session_.world().rank];
}

Result<void> Operation::stage(const Request& request) {
  const Block& own = own_block();
  if (own.bytes > 0 && request.input != nullptr) std::memcpy(piece_.data + own.offset, request.input, own.bytes);
  const std::uint64_t element = model::dtype_bytes(static_cast<model::DType>(request.dtype));
  ipc::Operation message;
  message.operation = session_.next_operation();
  message.collective = request.collective;
  message.heap = piece_.heap;
  message.offset = piece_.offset;
  message.count = own.bytes / element;
  message.capacity = total_bytes_ / element;
  message.dtype = request.dtype;
  message.reduce_op = request.reduce_op;
  message.root = static_cast<std::uint32_t>(request.root);
  session_.expect(message.operation);
  number_ = message.operation;
  return session_.send(ipc::encode(message, ipc::MessageKind::kOperation, {name_}));
}

Operation::~Operation() {
  if (number_ != 0) session_.forget(number_);
  if (settled_ && piece_.data != nullptr) heaps_.give_back(piece_);
}

Result<bool> Operation::poll() {
  auto done = session_.finished(number_);
  if (!done) return tl::unexpected(done.error().in("operation '" + name_ + "'"));
  return done;
}

Result<void> Operation::finish(void* output) {
  auto waited = session_.wait_for(number_);
  settled_ = true;
  if (!waited) return tl::unexpected(waited.error().in("operation '" + name_ + "'"));
  if (output == nullptr) return {};
  auto* to = static_cast<std::byte*>(output);
  for (const Block& block : blocks_) {
    if (block.bytes > 0) std::memcpy(to, piece_.data + block.offset, block.bytes);
    to += block.bytes;
  }
  return {};
}

}  // namespace deft::client
