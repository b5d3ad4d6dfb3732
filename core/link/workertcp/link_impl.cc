#include "core/link/workertcp/link_impl.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "core/reduce/reduce.h"

namespace deft::link::workertcp_backend {
namespace {

// Tells apart what members may do at the same time by mistake.
enum Kind : std::uint64_t { kScatter = 1, kGather, kBroadcast, kAllGather };

std::uint64_t tag_of(Kind kind, model::DType dtype = {}, model::ReduceOp op = {}) {
  return kind | static_cast<std::uint64_t>(dtype) << 8 | static_cast<std::uint64_t>(op) << 16;
}

}  // namespace

LinkImpl::LinkImpl(std::string name, std::unique_ptr<Mesh> mesh, std::vector<std::uint32_t> node_of)
    : name_(std::move(name)), mesh_(std::move(mesh)), node_of_(std::move(node_of)) {}

// Runs `operation`; its error makes the link fail for good.
template <typename Operation>
Result<void> LinkImpl::run(Operation operation) {
  if (auto ok = failure_.check(); !ok) return ok;
  if (mesh_->members() == 1) return {};
  auto done = operation();
  if (done) return done;
  mesh_->abort();
  return tl::unexpected(failure_.keep(done.error().in(name_)));
}

Result<void> LinkImpl::all_reduce(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op) {
  if (model::dtype_bytes(dtype) == 0 || !model::is_known(op))
    return fail(ErrorKind::kInvalid, "all-reduce of an unknown dtype or operation");
  if (count == 0) return {};
  return run([&] { return reduce_slices(data, count, dtype, op); });
}

// Sums first what comes from one node, as daemons do: so the bits are those of the links that daemons run.
void LinkImpl::reduce_by_node(std::span<std::byte> out, std::span<std::byte* const> inputs, model::DType dtype,
                              model::ReduceOp op) {
  const std::size_t count = out.size() / model::dtype_bytes(dtype);
  if (node_of_.empty()) {
    const std::vector<const std::byte*> all(inputs.begin(), inputs.end());
    return reduce::reduce(out.data(), all, count, dtype, op);
  }
  std::map<std::uint32_t, std::vector<std::byte*>> nodes;
  for (std::size_t member = 0; member < inputs.size(); ++member) nodes[node_of_[member]].push_back(inputs[member]);
  std::vector<const std::byte*> sums;
  for (const auto& [node, parts] : nodes) {
    const std::vector<const std::byte*> inputs_of_node(parts.begin(), parts.end());
    if (parts.size() > 1) reduce::reduce(parts.front(), inputs_of_node, count, dtype, op);
    sums.push_back(parts.front());
  }
  if (sums.size() > 1) return reduce::reduce(out.data(), sums, count, dtype, op);
  if (sums.front() != out.data()) std::memcpy(out.data(), sums.front(), out.size());
}

// Each member gets its slice from all, reduces it in the order of the members, and sends the result to all.
Result<void> LinkImpl::reduce_slices(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op) {
  const std::uint32_t members = mesh_->members(), own = mesh_->own();
  const std::size_t element = model::dtype_bytes(dtype);
  const auto slice = [&](std::uint32_t member) {
    const std::size_t first = count * member / members, last = count * (member + 1) / members;
    return std::span(data + first * element, (last - first) * element);
  };
  const auto mine = slice(own);
  scratch_.resize(mine.size() * members);
  std::vector<Message> messages(members);
  std::vector<std::byte*> inputs(members, mine.data());
  for (std::uint32_t peer = 0; peer < members; ++peer) {
    if (peer == own) continue;
    messages[peer] = {slice(peer), std::span(scratch_).subspan(peer * mine.size(), mine.size())};
    inputs[peer] = messages[peer].in.data();
  }
  if (auto ok = mesh_->exchange(tag_of(kScatter, dtype, op), messages); !ok) return ok;
  if (!mine.empty()) reduce_by_node(mine, inputs, dtype, op);
  for (std::uint32_t peer = 0; peer < members; ++peer) messages[peer] = {mine, slice(peer)};
  return mesh_->exchange(tag_of(kGather, dtype, op), messages);
}

Result<void> LinkImpl::broadcast(std::byte* data, std::size_t bytes, std::uint32_t root) {
  if (root >= mesh_->members())
    return fail(ErrorKind::kInvalid,
                "broadcast from member " + std::to_string(root) + " of " + std::to_string(mesh_->members()));
  if (bytes == 0) return {};
  std::vector<std::size_t> sizes(mesh_->members(), 0);
  sizes[root] = bytes;
  return run([&] { return exchange_blocks(data, sizes, tag_of(kBroadcast)); });
}

Result<void> LinkImpl::all_gather(std::byte* data, std::span<const std::size_t> bytes) {
  if (bytes.size() != mesh_->members())
    return fail(ErrorKind::kInvalid, "all-gather of " + std::to_string(bytes.size()) + " blocks on " +
                                         std::to_string(mesh_->members()) + " members");
  return run([&] { return exchange_blocks(data, bytes, tag_of(kAllGather)); });
}

Result<void> LinkImpl::exchange_blocks(std::byte* data, std::span<const std::size_t> bytes, std::uint64_t tag) {
  std::vector<std::span<std::byte>> blocks;
  for (const std::size_t size : bytes) {
    blocks.emplace_back(data, size);
    data += size;
  }
  std::vector<Message> messages(bytes.size());
  for (std::uint32_t peer = 0; peer < bytes.size(); ++peer) messages[peer] = {blocks[mesh_->own()], blocks[peer]};
  return mesh_->exchange(tag, messages);
}

void LinkImpl::abort(std::string_view reason) {
  failure_.keep({ErrorKind::kLost, std::string(reason), {}, name_});
  mesh_->abort();
}

}  // namespace deft::link::workertcp_backend
