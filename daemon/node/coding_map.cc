#include "daemon/node/coding_map.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "core/compress/low_rank_codec.h"
#include "daemon/base/settings.h"

namespace deft::daemon {
namespace {

using link::Range;

// Places [begin, end), as elements of a transfer that begins with `first`.
void add(std::vector<Range>& ranges, std::size_t first, std::size_t begin, std::size_t end) {
  if (begin < end) ranges.push_back({begin - first, end - begin});
}

// What this codec encodes.
Coding& coding_of(Codings& codings, const CodecPointer& codec) {
  const auto known = std::ranges::find(codings.coded, codec, &Coding::codec);
  if (known != codings.coded.end()) return *known;
  codings.coded.push_back({codec, {}});
  return codings.coded.back();
}

bool keeps_residuals(const CodecPointer& codec) { return codec != nullptr && codec->traits().uses_feedback; }
bool is_low_rank(const CodecPointer& codec) {
  return codec != nullptr && codec->traits().law == compress::Law::kLowRank;
}

// Whoever chooses a codec for float32 means it, also if it saves nothing.
bool makes_smaller(const compress::Codec& codec, model::DType dtype) {
  constexpr std::size_t kElements = 1 << 16;
  return !model::is_half(dtype) || codec.encoded_bytes(kElements) < kElements * model::dtype_bytes(dtype);
}

}  // namespace

Result<CodecList> own_codecs(std::span<const model::TensorSpec> specs) {
  std::map<std::string, CodecPointer> known;
  CodecList own;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].codec.empty() || specs[i].codec == "none") continue;
    CodecPointer& codec = known[specs[i].codec];
    if (codec == nullptr) {
      auto made = gradient_codec(specs[i].codec);
      if (!made) return tl::unexpected(made.error().in("the codec of tensor '" + specs[i].name + "'"));
      codec = *std::move(made);
    }
    if (!model::has_own_codec(specs[i])) continue;
    own.resize(specs.size());
    own[i] = codec;
  }
  return own;
}

CodingMap::CodingMap(std::span<const model::TensorSpec> specs, const model::ArenaLayout& layout, GroupCodecs codecs,
                     std::uint64_t min_bytes, std::uint64_t job_key)
    : codecs_(std::move(codecs.of_job)),
      has_own_(!codecs.own.empty()),
      factors_(job_key),
      slots_(layout.slots),
      job_key_(job_key) {
  if (codecs_.size() < 2 && !has_own_) return;
  const std::size_t float32_places = layout.slot_bytes / sizeof(float);
  for (const model::Region& region : layout.regions) {
    if (!model::is_codable(region.dtype)) continue;
    const std::size_t before = model::is_half(region.dtype) ? float32_places : 0;
    areas_.push_back({region, before + region.offset / model::dtype_bytes(region.dtype)});
    add_area(areas_.back(), specs, layout, codecs.own, min_bytes);
  }
  std::ranges::sort(extents_, {}, [](const Extent& e) { return e.elements.first; });
  std::ranges::sort(matrices_, {}, &Matrix::first);
  std::ranges::sort(padding_, {}, &Range::first);
  if (coded_bytes_ == 0 ||
      !(std::ranges::any_of(codecs_, keeps_residuals) || std::ranges::any_of(codecs.own, keeps_residuals)))
    return;
  const bool has_halves = std::ranges::any_of(areas_, [](const Area& a) { return model::is_half(a.region.dtype); });
  residuals_ = std::make_shared<Residuals>(float32_places + (has_halves ? layout.slot_bytes / 2 : 0));
}

// From its last tensor to the first.
void CodingMap::add_area(const Area& area, std::span<const model::TensorSpec> specs, const model::ArenaLayout& layout,
                         const CodecList& own_codecs, std::uint64_t min_bytes) {
  std::size_t end = area.place_of(area.region.offset + area.region.bytes);
  for (std::size_t i = specs.size(); i-- > 0;) {
    if (specs[i].dtype != area.region.dtype) continue;
    const CodecPointer own = has_own_ ? own_codecs[i] : nullptr;
    const bool coded = own != nullptr || (codecs_.size() > 1 && model::is_encodable(specs[i], min_bytes));
    if (coded) coded_bytes_ += specs[i].bytes();
    const std::size_t first = area.place_of(layout.tensors[i].offset);
    const Range elements{first, std::exchange(end, first) - first};
    if (const std::size_t count = specs[i].elements(); coded && count < elements.count)
      padding_.push_back({elements.first + count, elements.count - count});
    if (coded) matrices_.push_back({elements.first, compress::matrix_of(specs[i].shape, 1)});
    add_extent({elements, coded, own});
  }
}

void CodingMap::add_extent(Extent extent) {
  if (!extents_.empty() && extents_.back().is_like(extent) && extents_.back().elements.first == extent.end())
    extents_.back().elements = {extent.elements.first, extents_.back().elements.count + extent.elements.count};
  else
    extents_.push_back(std::move(extent));
}

// Divides the elements of a launch by their codecs.
void CodingMap::divide(const Range& elements, const CodecPointer& codec, bool exact, Codings& codings) {
  const std::size_t first = elements.first, end = elements.first + elements.count;
  auto extent = std::ranges::upper_bound(extents_, first, {}, [](const Extent& e) { return e.elements.first; });
  if (extent != extents_.begin()) --extent;
  for (; extent != extents_.end() && extent->elements.first < end; ++extent) {
    const std::size_t from = std::max(extent->elements.first, first);
    const std::size_t to = std::min(extent->elements.first + extent->elements.count, end);
    if (from >= to) continue;
    const CodecPointer& used = extent->own != nullptr && !exact ? extent->own : codec;
    if (!extent->coded) {
      add(codings.exact, first, from, to);
    } else if (is_low_rank(used)) {
      divide_matrices({from, to - from}, used, codings);
    } else if (used == nullptr || !makes_smaller(*used, codings.dtype)) {
      add(rest_of(codings), first, from, to);
    } else {
      // A part that begins or ends inside a block carries those elements as they are.
      const std::size_t block = used->traits().block_elements;
      const std::size_t whole_from = std::min((from + block - 1) / block * block, to);
      const std::size_t whole_to = std::max(to / block * block, whole_from);
      add(rest_of(codings), first, from, whole_from);
      add(coding_of(codings, used).ranges, first, whole_from, whole_to);
      add(rest_of(codings), first, whole_to, to);
    }
  }
  std::erase_if(codings.coded, [](const Coding& coding) { return coding.ranges.empty(); });
}

// By places. The padding between matrices is zero on all nodes, and is not sent.
void CodingMap::divide_matrices(const Range& elements, const CodecPointer& codec, Codings& codings) {
  const std::size_t end = elements.first + elements.count;
  auto matrix = std::ranges::upper_bound(matrices_, elements.first, {}, [](const Matrix& m) { return m.end(); });
  for (; matrix != matrices_.end() && matrix->first < end; ++matrix) {
    const std::size_t from = std::max(matrix->first, elements.first);
    add_rows(*matrix, {from, std::min(matrix->end(), end) - from}, codec, codings);
  }
}

// Places of elements, all of this matrix.
void CodingMap::add_rows(const Matrix& matrix, const Range& elements, const CodecPointer& codec, Codings& codings) {
  const std::size_t first = codings.slice.first, columns = matrix.shape.columns;
  const std::size_t from = elements.first - matrix.first, to = from + elements.count;
  const std::size_t first_row = (from + columns - 1) / columns, end_row = std::max(first_row, to / columns);
  const compress::MatrixShape shape{end_row - first_row, columns, compress::as_low_rank(*codec).rank()};
  if (!shape.saves(model::dtype_bytes(codings.dtype)))
    return add(rest_of(codings), first, elements.first, elements.first + elements.count);
  const std::size_t whole_from = matrix.first + first_row * columns, whole_to = matrix.first + end_row * columns;
  const std::uint64_t generation = codings.slice.generation;
  Coding& coding = coding_of(codings, codec);
  add(rest_of(codings), first, elements.first, whole_from);
  add(coding.ranges, first, whole_from, whole_to);
  coding.matrices.push_back(factors_.turn_of(whole_from, shape, generation % slots_, generation));
  add(rest_of(codings), first, whole_to, elements.first + elements.count);
}

std::shared_ptr<const Codings> CodingMap::codings_of(std::uint64_t offset, std::uint64_t bytes,
                                                     std::uint64_t generation, model::CodecIndex index) {
  const bool exact = index == model::kWithResiduals;
  const auto& codec = codecs_.at(exact ? 0 : index);
  if (codec == nullptr && !leaves_residuals_ && (exact || !has_own_)) return nullptr;
  const auto area = std::ranges::find_if(areas_, [offset](const Area& a) { return a.region.contains(offset); });
  if (area == areas_.end()) return nullptr;
  const std::size_t first = area->place_of(offset), end = area->place_of(offset + bytes);
  auto codings = std::make_shared<Codings>();
  codings->dtype = area->region.dtype;
  codings->slice = {job_key_, generation, first};
  divide({first, end - first}, codec, exact, *codings);
  if (codings->coded.empty() && codings->settled.empty()) return nullptr;
  leaves_residuals_ |= std::ranges::any_of(codings->coded, [](const Coding& c) { return keeps_residuals(c.codec); });
  codings->residuals = residuals_;
  auto pad = std::ranges::lower_bound(padding_, first, {}, [](const link::Range& r) { return r.first + r.count - 1; });
  for (; pad != padding_.end() && pad->first < end; ++pad) {
    const std::size_t from = std::max(pad->first, first);
    codings->padding.push_back({from - first, std::min(pad->first + pad->count, end) - from});
  }
  return codings;
}

}  // namespace deft::daemon
