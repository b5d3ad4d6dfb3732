#include "core/client/staged_collective.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/base/text.h"
#include "core/ipc/wire.h"

namespace deft::client {
namespace {

constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 42;

Result<void> check(const CollectiveCall& call, std::uint32_t world) {
  if (auto ok = check_name(call.name, ipc::kMaxNameBytes, "the operation's name"); !ok) return ok;
  if (auto ok = check_text(call.terms, ipc::kMaxTermsBytes, "the text of the operation's terms"); !ok) return ok;
  if (call.dtype > 255 || model::dtype_bytes(static_cast<model::DType>(call.dtype)) == 0)
    return fail(ErrorKind::kInvalid, "unknown element type " + std::to_string(call.dtype));
  if (call.reduce_op > 255 || !model::is_known(static_cast<model::ReduceOp>(call.reduce_op)))
    return fail(ErrorKind::kInvalid, "unknown reduction " + std::to_string(call.reduce_op));
  if (call.root < 0 || call.root >= world)
    return fail(ErrorKind::kInvalid, "there is no rank " + std::to_string(call.root) + " to broadcast from",
                "ranks are 0 to " + std::to_string(world - 1));
  const bool too_large =
      std::any_of(call.counts.begin(), call.counts.end(), [](std::uint64_t count) { return count > kMaxElements; });
  if (too_large) return fail(ErrorKind::kInvalid, "an operation over more than 2^42 elements");
  return {};
}

}  // namespace

Result<std::unique_ptr<StagedCollective>> StagedCollective::start(Session& session, StagingBuffers& buffers,
                                                                  const CollectiveCall& call) {
  const std::string where = "operation '" + call.name + "'";
  if (auto ok = check(call, session.world().size); !ok) return tl::unexpected(ok.error().in(where));
  if (auto ok = session.connection().usable(); !ok) return tl::unexpected(ok.error());
  std::unique_ptr<StagedCollective> operation(new StagedCollective(session, buffers, call.name));
  if (auto ok = operation->lay_out(call); !ok) return tl::unexpected(ok.error().in(where));
  if (auto ok = operation->stage(call); !ok) return tl::unexpected(ok.error().in(where));
  return operation;
}

// In the buffer the blocks lie node by node, and within a node by rank, so that a node's blocks are one piece.
Result<void> StagedCollective::lay_out(const CollectiveCall& call) {
  const std::uint64_t element = model::dtype_bytes(static_cast<model::DType>(call.dtype));
  blocks_.resize(call.counts.size());
  for (std::size_t i = 0; i < blocks_.size(); ++i) blocks_[i].bytes = call.counts[i] * element;
  std::vector<std::size_t> order(blocks_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto& node_of = session_.world().node_of;
  if (blocks_.size() > 1)
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return node_of[a] < node_of[b]; });
  for (const auto i : order) {
    blocks_[i].offset = total_bytes_;
    total_bytes_ += blocks_[i].bytes;
  }
  if (call.collective == ipc::Collective::kBarrier) return {};
  auto piece = buffers_.take(total_bytes_);
  if (!piece) return tl::unexpected(piece.error());
  piece_ = *piece;
  return {};
}

const StagedCollective::Block& StagedCollective::own_block() const {
  return blocks_[blocks_.size() == 1 ? 0 : session_.world().rank];
}

Result<void> StagedCollective::stage(const CollectiveCall& call) {
  const Block& own = own_block();
  if (own.bytes > 0 && call.input != nullptr) std::memcpy(piece_.data + own.offset, call.input, own.bytes);
  const std::uint64_t element = model::dtype_bytes(static_cast<model::DType>(call.dtype));
  ipc::Operation message;
  message.operation = session_.requests().next_operation();
  message.collective = call.collective;
  message.staging_buffer = piece_.buffer;
  message.offset = piece_.offset;
  message.count = own.bytes / element;
  message.capacity = total_bytes_ / element;
  message.dtype = call.dtype;
  message.reduce_op = call.reduce_op;
  message.root = static_cast<std::uint32_t>(call.root);
  session_.requests().expect(message.operation);
  number_ = message.operation;
  return session_.connection().send(ipc::encode(message, ipc::MessageKind::kOperation, {name_, call.terms}));
}

StagedCollective::~StagedCollective() {
  if (number_ != 0) session_.requests().forget(number_);
  if (settled_ && piece_.data != nullptr) buffers_.give_back(piece_);
}

Result<bool> StagedCollective::poll() {
  auto done = session_.requests().finished(number_);
  if (!done) return tl::unexpected(done.error().in("operation '" + name_ + "'"));
  return done;
}

Result<bool> StagedCollective::wait_until(TimeUs deadline_us) {
  auto done = session_.requests().wait_for(number_, deadline_us);
  if (!done) return tl::unexpected(done.error().in("operation '" + name_ + "'"));
  return done;
}

Result<void> StagedCollective::finish(void* output) {
  auto waited = session_.requests().wait_for(number_);
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
