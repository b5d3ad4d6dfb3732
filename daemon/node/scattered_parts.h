// The parts of a group whose reduce-scatter was ordered, until their all-gather has finished here.
//
//   parts.scatter(part, generation);           // the leader orders the first half
//   parts.scattered(part, generation);         // it has finished here; false: it was not running
//   parts.is_scattered(part, generation);      // the second half may start
//   parts.gather(part, generation);            // the leader orders the second half
//   parts.gathered(part, generation);          // and that has finished here
//
// The nodes' shares depend on the bytes of a part, so an all-gather covers the bytes of one reduce-scatter. Reactor thread.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include "core/base/status.h"
#include "core/model/buckets.h"

namespace deft::daemon {

class ScatteredParts {
 public:
  // kViolation if this part was ordered already.
  Result<void> scatter(const model::BucketPiece& part, std::uint64_t generation) {
    if (parts_.try_emplace(key_of(part, generation), Part{part.bytes}).second) return {};
    return fail(ErrorKind::kViolation, "the leader ordered the same reduce-scatter twice");
  }
  [[nodiscard]] bool scattered(const model::BucketPiece& part, std::uint64_t generation) {
    const auto it = parts_.find(key_of(part, generation));
    return it != parts_.end() && !std::exchange(it->second.scattered, true);
  }
  [[nodiscard]] bool is_scattered(const model::BucketPiece& part, std::uint64_t generation) const {
    const auto it = parts_.find(key_of(part, generation));
    return it != parts_.end() && it->second.scattered;
  }
  // kViolation if no reduce-scatter has these bytes, or if their all-gather was ordered already.
  Result<void> gather(const model::BucketPiece& part, std::uint64_t generation) {
    const auto it = parts_.find(key_of(part, generation));
    if (it == parts_.end() || it->second.bytes != part.bytes || std::exchange(it->second.gathers, true))
      return fail(ErrorKind::kViolation, "the leader ordered the all-gather of bytes that no reduce-scatter has left");
    return {};
  }
  void gathered(const model::BucketPiece& part, std::uint64_t generation) { parts_.erase(key_of(part, generation)); }

 private:
  struct Part {
    std::uint64_t bytes = 0;
    bool scattered = false;
    bool gathers = false;
  };
  using Key = std::tuple<std::uint64_t, model::BucketIndex, std::uint64_t>;  // generation, bucket, offset
  static Key key_of(const model::BucketPiece& part, std::uint64_t generation) {
    return {generation, part.bucket, part.offset};
  }
  std::map<Key, Part> parts_;
};

}  // namespace deft::daemon
