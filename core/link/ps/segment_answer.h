// How a link takes a server's answer to a push.
//
//   const SegmentAnswer answer{request, segment, node, nodes};
//   if (payload.size() == answer.bytes()) answer.take(payload);    // the result is in the request's data
//
// The keeper of a segment gets what makes the result (wire.h), and runs the owner's stage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/link/ps/segmenter.h"
#include "core/link/work_request.h"

namespace deft::link::ps_backend {

struct SegmentAnswer {
  const WorkRequest& request;
  const PsSegment& segment;
  std::uint32_t node = 0;
  std::uint32_t nodes = 1;

  [[nodiscard]] std::size_t bytes() const;
  // `payload` has bytes() bytes.
  void take(std::span<const std::byte> payload) const;

 private:
  [[nodiscard]] std::size_t values() const;
  [[nodiscard]] std::span<std::byte> data() const { return {request.data + segment.offset, segment.bytes}; }
  void take_codes(std::span<const std::byte> codes) const;
  void take_sum(std::span<const std::byte> sum) const;
};

}  // namespace deft::link::ps_backend
