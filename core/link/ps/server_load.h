// How long a parameter server owes results to this node, and for how many bytes it has given them.
//
//   load.pushed(now_us);              // each push
//   load.answered(bytes, now_us);     // each result, of so many bytes of gradients
//   load.owed_us(now_us)              // altogether
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/clock.h"

namespace deft::link::ps_backend {

class ServerLoad {
 public:
  void pushed(TimeUs now_us) {
    if (unanswered_++ == 0) since_us_ = now_us;
  }
  void answered(std::size_t bytes, TimeUs now_us) {
    bytes_ += bytes;
    if (--unanswered_ == 0) owed_us_ += now_us - since_us_;
  }

  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] TimeUs owed_us(TimeUs now_us) const { return owed_us_ + (unanswered_ > 0 ? now_us - since_us_ : 0); }

 private:
  std::uint64_t bytes_ = 0;
  std::size_t unanswered_ = 0;
  TimeUs since_us_ = 0;  // when the first of the unanswered pushes was made
  TimeUs owed_us_ = 0;   // in periods that have ended
};

}  // namespace deft::link::ps_backend
