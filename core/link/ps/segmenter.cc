#include "core/link/ps/segmenter.h"

#include <algorithm>

namespace deft::link::ps_backend {
namespace {

constexpr std::size_t kSmallest = 32 << 10;  // below it a message costs more than it carries
constexpr std::size_t kSegmentsAServer = 8;  // so that the first sums come back while the last parts go out

std::size_t segment_bytes(std::size_t bytes, std::size_t servers, const SegmentRule& rule) {
  const std::size_t share = std::max(bytes / (servers * kSegmentsAServer), kSmallest);
  return std::min(share, rule.most) / rule.granule * rule.granule;
}

}  // namespace

void Segmenter::cut(std::size_t offset, std::size_t bytes, std::uint32_t owner, std::vector<PsSegment>& segments,
                    const SegmentRule& rule) {
  const std::size_t size = segment_bytes(bytes, load_.size(), rule);
  for (std::size_t done = 0; done < bytes; done += size) {
    const auto least = std::ranges::min_element(load_);
    const std::size_t part = std::min(size, bytes - done);
    *least += part;
    segments.push_back({offset + done, part, owner, static_cast<std::uint32_t>(least - load_.begin()), rule.keeper});
  }
}

}  // namespace deft::link::ps_backend
