// Cuts a request into segments and spreads them over the servers by size, in the same way on every node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace deft::link::ps_backend {

struct PsSegment {
  std::size_t offset = 0;  // bytes
  std::size_t bytes = 0;
  std::uint32_t owner = 0;   // the node whose bytes all get, or kNoOwner
  std::uint32_t server = 0;  // by index
};

class Segmenter {
 public:
  explicit Segmenter(std::size_t servers) : load_(servers) {}

  // Appends the segments of `bytes` bytes at `offset`; each but the last is a multiple of 64 bytes. A segment goes to the
  // server that was given the fewest bytes so far: small requests stay whole, and all servers get equal shares in time.
  void cut(std::size_t offset, std::size_t bytes, std::uint32_t owner, std::vector<PsSegment>& segments);

 private:
  std::vector<std::uint64_t> load_;
};

}  // namespace deft::link::ps_backend
