// Staging buffers for the collectives, cut from a few larger heaps of shared memory that the daemon makes on demand.
//
//   auto piece = heaps.take(bytes);   ...   heaps.give_back(*piece);
//
// Hundreds of collectives can be under way at a time (the first broadcast of all parameters) at the cost of a few
// descriptors, and the next ones reuse memory that is already there.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "core/client/session.h"

namespace deft::client {

// A part of a heap with one user.
struct Piece {
  std::uint32_t heap = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::byte* data = nullptr;
};

// The free ranges of one heap: first fit, neighbours merge.
class FreeRanges {
 public:
  explicit FreeRanges(std::uint64_t bytes) : total_(bytes), ranges_{{0, bytes}} {}
  // The offset of `bytes` free bytes, which are taken; kNone where no range is that large.
  std::uint64_t take(std::uint64_t bytes);
  void give_back(std::uint64_t offset, std::uint64_t bytes);
  [[nodiscard]] bool all_free() const { return ranges_.size() == 1 && ranges_.begin()->second == total_; }
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};

 private:
  std::uint64_t total_;
  std::map<std::uint64_t, std::uint64_t> ranges_;  // offset -> bytes
};

class Heaps {
 public:
  explicit Heaps(Session& session, std::uint64_t cap_bytes = kCapBytes) : session_(session), cap_bytes_(cap_bytes) {}

  // At least `bytes` (and at least one byte) of shared memory, whose content is undefined.
  Result<Piece> take(std::uint64_t bytes);

  // `bytes` at `offset` of a heap, for a collective that this worker runs itself; kViolation where there are none.
  Result<std::byte*> find(std::uint32_t heap, std::uint64_t offset, std::uint64_t bytes);

  // A heap that is free again goes back to the daemon where more than the cap would be kept.
  void give_back(const Piece& piece);

 private:
  struct Slab {
    shm::Segment memory;
    FreeRanges free;
  };
  static constexpr std::uint64_t kCapBytes = std::uint64_t{256} << 20;
  Result<shm::Segment> make(std::uint32_t number, std::uint64_t bytes);
  Piece cut(std::uint32_t number, Slab& slab, std::uint64_t bytes);

  Session& session_;
  std::uint64_t cap_bytes_;
  std::mutex mutex_;
  std::uint64_t total_bytes_ = 0;
  std::map<std::uint32_t, Slab> slabs_;
};

}  // namespace deft::client
