// Shared memory segments: sealed memfds whose memory is allocated when they are made. They have no names, so nothing is left
// behind when the last process closes them.
//
//   daemon:  auto segment = Segment::create("deft-arena", bytes);   // then pass segment->descriptor()
//   worker:  auto segment = Segment::map(descriptor, bytes);         // checks seals and size
#pragma once

#include <boost/interprocess/mapped_region.hpp>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/descriptor.h"
#include "core/base/status.h"

namespace deft::shm {

// Owns a segment: its descriptor, and its mapping into this process.
class Segment {
 public:
  Segment() = default;

  // Makes a memfd of `bytes` (rounded up to pages), allocates all its memory, seals its size and maps it. kExhausted if there is
  // not enough memory, so that no SIGBUS comes later. `label` shows in /proc/PID/maps.
  static Result<Segment> create(const std::string& label, std::uint64_t bytes);

  // Maps a received descriptor. kViolation if the memory is smaller than `bytes`, or if its size is not sealed.
  static Result<Segment> map(Descriptor descriptor, std::uint64_t bytes);

  // Frees the memory, also under the mappings of others: who reads there finds zeros, and who writes takes memory of its own.
  void discard() const;

  // Puts memory of this process in place of the mapping, with the same content: from now on no other process sees it. Threads of this
  // process may read and write meanwhile; other processes may not. kExhausted if there is not enough memory; then nothing has changed.
  Result<void> become_private() const;

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(region_.get_address()); }
  [[nodiscard]] std::uint64_t bytes() const { return region_.get_size(); }
  [[nodiscard]] int descriptor() const { return descriptor_.get(); }

 private:
  Segment(Descriptor descriptor, boost::interprocess::mapped_region region)
      : descriptor_(std::move(descriptor)), region_(std::move(region)) {}
  Descriptor descriptor_;
  boost::interprocess::mapped_region region_;
};

}  // namespace deft::shm
