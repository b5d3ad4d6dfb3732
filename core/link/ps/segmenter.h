// Cuts a request into segments and spreads them over the servers by size, in the same way on every node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/link/ps/wire.h"

namespace deft::link::ps_backend {

struct PsSegment {
  std::size_t offset = 0;  // bytes
  std::size_t bytes = 0;
  std::uint32_t owner = 0;   // the node whose bytes all get, or kNoOwner
  std::uint32_t server = 0;  // by index
  std::uint32_t keeper = kNoOwner;
};

// How segments are cut.
struct SegmentRule {
  std::size_t granule = 64;  // bytes: each segment but the last is a multiple
  std::size_t most = kMaxSegmentBytes;
  std::uint32_t keeper = kNoOwner;
};

class Segmenter {
 public:
  explicit Segmenter(std::size_t servers) : load_(servers) {}

  // Appends the segments of `bytes` bytes at `offset`. A segment goes to the server that was given the fewest bytes so far:
  // small requests stay whole, and all servers get equal shares in time.
  void cut(std::size_t offset, std::size_t bytes, std::uint32_t owner, std::vector<PsSegment>& segments,
           const SegmentRule& rule = {});

 private:
  std::vector<std::uint64_t> load_;
};

}  // namespace deft::link::ps_backend
