// Gives pieces of shared memory to collectives. They are cut from a few staging buffers that the daemon makes on demand.
//
//   auto piece = buffers.take(bytes);   ...   buffers.give_back(*piece);
//
// So hundreds of collectives (the first broadcast of all parameters) need only a few descriptors, and later collectives reuse
// the same memory. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "core/client/session.h"

namespace deft::client {

// A piece of a staging buffer for one collective.
struct Piece {
  std::uint32_t buffer = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::byte* data = nullptr;
};

// The free ranges of one staging buffer. The first range that is large enough is taken; free neighbours are merged.
class FreeRanges {
 public:
  explicit FreeRanges(std::uint64_t bytes) : total_(bytes), ranges_{{0, bytes}} {}
  // Takes `bytes` free bytes and gives their offset; kNone if no range is that large.
  std::uint64_t take(std::uint64_t bytes);
  void give_back(std::uint64_t offset, std::uint64_t bytes);
  [[nodiscard]] bool all_free() const { return ranges_.size() == 1 && ranges_.begin()->second == total_; }
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};

 private:
  std::uint64_t total_;
  std::map<std::uint64_t, std::uint64_t> ranges_;  // offset -> bytes
};

class StagingBuffers {
 public:
  explicit StagingBuffers(Session& session, std::uint64_t cap_bytes = kCapBytes)
      : session_(session), cap_bytes_(cap_bytes) {}

  // A piece of at least `bytes` bytes, and at least one byte. Its content is undefined. kExhausted if the daemon has no memory.
  Result<Piece> take(std::uint64_t bytes);

  // Bytes [offset, offset + bytes) of a buffer, for a collective that this worker runs itself. kViolation if they lie
  // outside of it.
  Result<std::byte*> find(std::uint32_t number, std::uint64_t offset, std::uint64_t bytes);

  // Takes a piece back. If its buffer is then free, and the worker would keep more than the cap, the daemon gets the buffer back.
  void give_back(const Piece& piece);

 private:
  struct Buffer {
    shm::Segment memory;
    FreeRanges free;
  };
  static constexpr std::uint64_t kCapBytes = std::uint64_t{256} << 20;
  Result<shm::Segment> make(std::uint32_t number, std::uint64_t bytes);
  Piece cut(std::uint32_t number, Buffer& buffer, std::uint64_t bytes);

  Session& session_;
  std::uint64_t cap_bytes_;
  std::mutex mutex_;
  std::uint64_t total_bytes_ = 0;
  std::map<std::uint32_t, Buffer> buffers_;
};

}  // namespace deft::client
