// Which bytes of a group's arena are encoded for the wire, and by which codec.
//
//   auto map = CodingMap::make(specs, layout, codec, min_bytes, job_key);     // when the group is declared
//   transfer.codings = map.codings_of(offset, bytes, generation);             // null: the part travels as it is
//
// A tensor is encoded if it is float32, has two dimensions or more, and takes `min_bytes` or more. Others travel as they are:
// they save nothing, and biases and scales of norms feel an error most. Large tensors begin and end on whole blocks
// of the arena, and so do parts of a bucket that begins there (model::kPartAlignBytes). So a block holds the same elements
// whatever the plan. All nodes compute the same map.
//
// The map holds the group's residuals. Reactor thread; residuals are used by the channels' threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/model/tensors.h"
#include "daemon/channel/coding.h"

namespace deft::daemon {

class CodingMap {
 public:
  CodingMap() = default;  // nothing is encoded
  CodingMap(std::span<const model::TensorSpec> specs, const model::ArenaLayout& layout,
            std::shared_ptr<const compress::Codec> codec, std::uint64_t min_bytes, std::uint64_t job_key);

  // Bytes [offset, offset + bytes) of a slot, which lie in one region.
  [[nodiscard]] std::shared_ptr<const Codings> codings_of(std::uint64_t offset, std::uint64_t bytes,
                                                          std::uint64_t generation) const;
  // Of a slot, without padding: what is encoded.
  [[nodiscard]] std::uint64_t coded_bytes() const { return coded_bytes_; }

 private:
  struct Extent {
    link::Range elements;  // of a slot, as float32, padding included
    bool coded = false;
  };
  std::vector<Extent> extents_;       // ascending; neighbours differ
  std::vector<link::Range> padding_;  // of a slot, behind the ends of coded tensors, ascending
  std::shared_ptr<const compress::Codec> codec_;
  std::shared_ptr<Residuals> residuals_;
  std::uint64_t job_key_ = 0;
  std::uint64_t coded_bytes_ = 0;
};

}  // namespace deft::daemon
