#include "core/link/ps/link_impl.h"

#include <utility>
#include <vector>

namespace deft::link::ps_backend {

LinkImpl::LinkImpl(const LinkSpec& spec, const LinkGroup& group, std::unique_ptr<Engine> engine)
    : Link(spec.name(), group, kDepth), engine_(std::move(engine)) {}

Result<void> LinkImpl::start(const WorkRequest& request) {
  PsHeader shape;
  shape.priority = request.priority;
  shape.total = request.bytes();
  std::vector<PsSegment> segments;
  Segmenter& segmenter = engine_->segmenter();
  if (request.reduces()) {
    shape.dtype = static_cast<std::uint8_t>(request.dtype);
    shape.op = static_cast<std::uint8_t>(request.op);
    segmenter.cut(0, request.bytes(), kNoOwner, segments);
  }
  std::size_t offset = 0;
  const std::vector<std::size_t> blocks = request.blocks(nodes());
  for (std::uint32_t node = 0; node < blocks.size(); offset += blocks[node], ++node)
    segmenter.cut(offset, blocks[node], node, segments);
  return engine_->start(request.id, request.data, std::move(segments), shape);
}

}  // namespace deft::link::ps_backend
