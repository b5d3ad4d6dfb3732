#include "daemon/node/coding_map.h"

#include <algorithm>
#include <utility>

namespace deft::daemon {
namespace {

using link::Range;

// Elements [begin, end) of a slot, as elements of a transfer that begins with `first`.
void add(std::vector<Range>& ranges, std::size_t first, std::size_t begin, std::size_t end) {
  if (begin < end) ranges.push_back({begin - first, end - begin});
}

bool keeps_residuals(const std::shared_ptr<const compress::Codec>& codec) {
  return codec != nullptr && codec->traits().uses_feedback;
}

}  // namespace

CodingMap::CodingMap(std::span<const model::TensorSpec> specs, const model::ArenaLayout& layout, CodecList codecs,
                     std::uint64_t min_bytes, std::uint64_t job_key)
    : codecs_(std::move(codecs)), job_key_(job_key) {
  if (codecs_.size() < 2) return;
  const auto region = std::ranges::find(layout.regions, model::DType::kFloat32, &model::Region::dtype);
  if (region == layout.regions.end()) return;
  std::uint64_t end = region->offset + region->bytes;
  for (std::size_t i = specs.size(); i-- > 0;) {
    if (specs[i].dtype != region->dtype) continue;
    const bool coded = model::is_encodable(specs[i], min_bytes);
    if (coded) coded_bytes_ += specs[i].bytes();
    const std::uint64_t begin = std::exchange(end, layout.tensors[i].offset);
    const Range elements{end / sizeof(float), (begin - end) / sizeof(float)};
    if (const std::size_t own = specs[i].elements(); coded && own < elements.count)
      padding_.push_back({elements.first + own, elements.count - own});
    if (!extents_.empty() && extents_.back().coded == coded)
      extents_.back().elements = {elements.first, extents_.back().elements.count + elements.count};
    else
      extents_.push_back({elements, coded});
  }
  std::ranges::reverse(extents_);
  std::ranges::reverse(padding_);
  if (coded_bytes_ > 0 && std::ranges::any_of(codecs_, keeps_residuals))
    residuals_ = std::make_shared<Residuals>(layout.slot_bytes / sizeof(float));
}

std::shared_ptr<const Codings> CodingMap::codings_of(std::uint64_t offset, std::uint64_t bytes,
                                                     std::uint64_t generation, model::CodecIndex index) {
  const auto& codec = codecs_.at(index);
  if (codec == nullptr && !leaves_residuals_) return nullptr;
  const std::size_t first = offset / sizeof(float), end = (offset + bytes) / sizeof(float);
  auto codings = std::make_shared<Codings>();
  Coding coding{codec, {}};
  auto extent = std::ranges::upper_bound(extents_, first, {}, [](const Extent& e) { return e.elements.first; });
  if (extent != extents_.begin()) --extent;
  for (; extent != extents_.end() && extent->elements.first < end; ++extent) {
    const std::size_t from = std::max(extent->elements.first, first);
    const std::size_t to = std::min(extent->elements.first + extent->elements.count, end);
    if (from >= to) continue;
    if (!extent->coded) {
      add(codings->exact, first, from, to);
      continue;
    }
    if (codec == nullptr) {
      add(codings->settled, first, from, to);
      continue;
    }
    // A part that begins or ends inside a block carries those elements as they are.
    const std::size_t block = codec->traits().block_elements;
    const std::size_t whole_from = std::min((from + block - 1) / block * block, to);
    const std::size_t whole_to = std::max(to / block * block, whole_from);
    auto& rest = leaves_residuals_ ? codings->settled : codings->exact;
    add(rest, first, from, whole_from);
    add(coding.ranges, first, whole_from, whole_to);
    add(rest, first, whole_to, to);
  }
  if (!coding.ranges.empty()) codings->coded.push_back(std::move(coding));
  if (codings->coded.empty() && codings->settled.empty()) return nullptr;
  leaves_residuals_ |= keeps_residuals(codec) && !codings->coded.empty();
  codings->slice = {job_key_, generation, first};
  codings->residuals = residuals_;
  auto pad = std::ranges::lower_bound(padding_, first, {}, [](const link::Range& r) { return r.first + r.count - 1; });
  for (; pad != padding_.end() && pad->first < end; ++pad) {
    const std::size_t from = std::max(pad->first, first);
    codings->padding.push_back({from - first, std::min(pad->first + pad->count, end) - from});
  }
  return codings;
}

}  // namespace deft::daemon
