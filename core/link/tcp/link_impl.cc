#include "core/link/tcp/link_impl.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/link/segmented.h"
#include "core/reduce/reduce.h"

namespace deft::link::tcp_backend {
namespace {

// Tells apart what members may do at the same time by mistake.
enum Step : std::uint64_t { kScatter = 1, kGather, kBlocks };

Exchanged exchanged(Step step, const WorkRequest& request, model::SegmentPart part) {
  const std::uint64_t tag = step | static_cast<std::uint64_t>(request.dtype) << 8 |
                            static_cast<std::uint64_t>(request.op) << 16 |
                            static_cast<std::uint64_t>(request.kind) << 24;
  return {tag, request.id, part, request.observer.get()};
}

}  // namespace

LinkImpl::LinkImpl(const LinkSpec& spec, const LinkGroup& group, std::unique_ptr<Transport> transport)
    : Link(spec.name(), group, 1), transport_(std::move(transport)), node_of_(group.node_of) {}

// One request is in flight. It runs when it is waited for.
Result<void> LinkImpl::start(const WorkRequest& request) {
  request_ = request;
  return {};
}

Result<std::optional<std::uint64_t>> LinkImpl::await() {
  const auto done = request_.reduces() ? reduce() : exchange_blocks();
  if (!done) return tl::unexpected(done.error());
  return request_.id;
}

// Sums first the members of one node, as daemons do: so the result has the bits of the links that daemons run.
std::vector<const std::byte*> LinkImpl::sums_of_nodes(std::span<std::byte* const> inputs, std::size_t count) const {
  if (node_of_.empty()) return {inputs.begin(), inputs.end()};
  std::map<std::uint32_t, std::vector<const std::byte*>> nodes;
  for (std::size_t member = 0; member < inputs.size(); ++member) nodes[node_of_[member]].push_back(inputs[member]);
  std::vector<const std::byte*> sums;
  for (const auto& [node, parts] : nodes) {
    std::byte* const sum = inputs[static_cast<std::size_t>(std::ranges::find(node_of_, node) - node_of_.begin())];
    if (parts.size() > 1) reduce::reduce(sum, parts, count, request_.dtype, request_.op);
    sums.push_back(sum);
  }
  return sums;
}

// One round: every slice is one segment.
Result<void> LinkImpl::reduce() {
  const std::uint32_t members = transport_->members(), own = transport_->own();
  const Segmented segmented(request_, own, members, request_.bytes() + kMaxBlockBytes, 0);
  const auto slice = [&](std::uint32_t member) { return segmented.bytes(segmented.segment_of(member, 0)); };
  const auto mine = slice(own);
  scratch_.resize(mine.size() * members);
  std::vector<Message> messages(members);
  std::vector<std::byte*> inputs(members, mine.data());
  for (std::uint32_t peer = 0; peer < members; ++peer) {
    if (peer == own) continue;
    messages[peer] = {slice(peer), std::span(scratch_).subspan(peer * mine.size(), mine.size())};
    inputs[peer] = messages[peer].in.data();
  }
  if (auto ok = transport_->exchange(exchanged(kScatter, request_, model::SegmentPart::kSegment), messages); !ok)
    return ok;
  const Range range = segmented.mine(0);
  if (range.count > 0) segmented.own(range, sums_of_nodes(inputs, range.count));
  if (!segmented.gathers()) return {};
  for (std::uint32_t peer = 0; peer < members; ++peer) messages[peer] = {mine, slice(peer)};
  return transport_->exchange(exchanged(kGather, request_, model::SegmentPart::kResult), messages);
}

Result<void> LinkImpl::exchange_blocks() {
  std::vector<std::span<std::byte>> blocks;
  std::byte* data = request_.data;
  for (const std::size_t size : request_.blocks(transport_->members())) {
    blocks.emplace_back(data, size);
    data += size;
  }
  std::vector<Message> messages(blocks.size());
  for (std::uint32_t peer = 0; peer < blocks.size(); ++peer) messages[peer] = {blocks[transport_->own()], blocks[peer]};
  return transport_->exchange(exchanged(kBlocks, request_, model::SegmentPart::kBlock), messages);
}

}  // namespace deft::link::tcp_backend
