// Shared memory segments: sealed memfds, allocated up front, without names, so nothing is left behind.
//
//   daemon:  auto segment = Segment::create("deft-arena", bytes);   // then pass segment->descriptor()
//   worker:  auto segment = Segment::map(descriptor, bytes);         // checks seals and size
#pragma once

#include <boost/interprocess/mapped_region.hpp>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/status.h"

namespace deft::shm {

// A file descriptor with one owner.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { reset(); }
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  [[nodiscard]] int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void reset();

 private:
  int fd_ = -1;
};

class Segment {
 public:
  Segment() = default;

  // Makes a memfd of `bytes` (rounded up to pages), allocates all of it (a full memory is an error here, never a SIGBUS
  // later), seals its size and maps it. `label` shows in /proc/PID/maps.
  static Result<Segment> create(const std::string& label, std::uint64_t bytes);

  // Maps a received descriptor. Refuses one that is smaller than `bytes`, or whose size is not sealed.
  static Result<Segment> map(Descriptor descriptor, std::uint64_t bytes);

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
