// Replay buffers of a link that nobody uses any more. The next launches take them, and do without new memory.
//
//   auto buffer = spare.take(launch.bytes);
//   spare.give(std::move(buffer));              // no other thread holds it
//   spare.trim(bytes_of_launches_that_are_kept);
//
// A small launch gets no large buffer: else each buffer would become as large as the largest launch. Memory follows what the
// launches of late have needed. Not thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <memory>

#include "daemon/channel/transfer.h"

namespace deft::daemon {

class SpareBuffers {
 public:
  static constexpr std::size_t kMost = 64;
  static constexpr std::size_t kAlwaysBytes = std::size_t{16} << 20;  // so much stays, however little is in use

  // For a launch of so many bytes. An encoded launch needs less, and for a collective the bytes are not known: 0.
  std::shared_ptr<ReplayBuffer> take(std::size_t bytes);
  void give(std::shared_ptr<ReplayBuffer> buffer);
  // `used_bytes`: of the buffers in use. Drops what goes beyond that, some calls later.
  void trim(std::size_t used_bytes);

  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  using BySize = std::multimap<std::size_t, std::shared_ptr<ReplayBuffer>>;
  [[nodiscard]] BySize::iterator best_for(std::size_t bytes);
  std::shared_ptr<ReplayBuffer> remove(BySize::iterator buffer);

  BySize by_size_;
  std::size_t bytes_ = 0;
  std::size_t used_of_late_ = 0;
};

}  // namespace deft::daemon
