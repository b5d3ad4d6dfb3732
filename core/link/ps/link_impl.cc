#include "core/link/ps/link_impl.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace deft::link::ps_backend {

LinkImpl::LinkImpl(const LinkSpec& spec, const LinkGroup& group, std::unique_ptr<Engine> engine)
    : Link(spec.name(), group, kDepth), engine_(std::move(engine)) {}

// Whole blocks, and so few that a keeper's answer is not too long.
SegmentRule LinkImpl::rule_for(const WorkRequest& request) const {
  const std::size_t granule = granule_of(1, request.block);
  const std::size_t most = request.encoded
                               ? kMaxAnswerBytes / sizeof(float) / request.encoded->block_values * request.block
                               : kMaxAnswerBytes / (nodes() - 1);
  return {.granule = granule,
          .most = std::max(std::min(most, kMaxSegmentBytes), granule),
          .keeper = request.encoded ? kNoOwner : kEveryNode};
}

// A node keeps the residuals of the elements that it would own on another link. So residuals stay at the same nodes, whatever the
// links are.
void LinkImpl::cut_encoded(const WorkRequest& request, std::vector<PsSegment>& segments) {
  SegmentRule rule = rule_for(request);
  if (!request.encoded->owner_keeps_rest) return engine_->segmenter().cut(0, request.bytes(), kNoOwner, segments, rule);
  for (rule.keeper = 0; rule.keeper < nodes(); ++rule.keeper) {
    const Range owned = request.owned_by(rule.keeper, nodes());
    engine_->segmenter().cut(owned.first, owned.count, kNoOwner, segments, rule);
  }
}

Result<void> LinkImpl::start(const WorkRequest& request) {
  std::vector<PsSegment> segments;
  Segmenter& segmenter = engine_->segmenter();
  if (request.encoded)
    cut_encoded(request, segments);
  else if (request.kind == WorkRequest::Kind::kReduceByAll)
    segmenter.cut(0, request.bytes(), kNoOwner, segments, rule_for(request));
  else if (request.reduces())
    segmenter.cut(0, request.bytes(), kNoOwner, segments);
  std::size_t offset = 0;
  const std::vector<std::size_t> blocks = request.blocks(nodes());
  for (std::uint32_t node = 0; node < blocks.size(); offset += blocks[node], ++node)
    segmenter.cut(offset, blocks[node], node, segments);
  return engine_->start(request, std::move(segments));
}

}  // namespace deft::link::ps_backend
