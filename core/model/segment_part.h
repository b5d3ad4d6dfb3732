// What nodes send each other for a request of a link. Plain data, for links that tell of it and for traces.
#pragma once

#include <cstdint>
#include <string_view>

namespace deft::model {

// Traces have these numbers: another one comes at the end.
enum class SegmentPart : std::uint8_t {
  kSegment = 1,  // of a reduction, to its owner, or to a parameter server
  kResult = 2,   // of a segment, from its owner or a server; what only acknowledges one has an element or none
  kBlock = 3,    // of an all-gather or broadcast, or a piece of one
};
inline constexpr SegmentPart kLastSegmentPart = SegmentPart::kBlock;

// "segment".
constexpr std::string_view name_of(SegmentPart part) {
  switch (part) {
    case SegmentPart::kSegment: return "segment";
    case SegmentPart::kResult: return "result";
    case SegmentPart::kBlock: return "block";
  }
  return "unknown";
}

}  // namespace deft::model
