// Why a link has failed for good. The first cause counts. Link has one for all backends.
//
//   if (auto ok = failure_.check(); !ok) return ok;          // before a request
//   return tl::unexpected(failure_.keep(error));             // when a request fails, and in abort()
//
// Any thread.
#pragma once

#include <mutex>
#include <optional>
#include <utility>

#include "core/base/status.h"

namespace deft::link {

class Failure {
 public:
  // The cause, if there is one.
  [[nodiscard]] Result<void> check() const {
    const std::lock_guard lock(mutex_);
    if (cause_) return tl::unexpected(*cause_);
    return {};
  }
  // Keeps `cause` unless there is a cause already; gives the cause that counts.
  Error keep(Error cause) {
    const std::lock_guard lock(mutex_);
    if (!cause_) cause_ = std::move(cause);
    return *cause_;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<Error> cause_;
};

}  // namespace deft::link
