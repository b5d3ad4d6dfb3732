// Remembers whether the job has failed, and why. The first error counts.
//
// The ring says that a job has failed, and the socket brings the text of the error. If the text does not come in time, the
// failure is reported without it. failed() may be called from any thread. For all other functions the caller holds the lock of
// the connection.
#pragma once

#include <atomic>
#include <functional>
#include <optional>

#include "core/base/clock.h"
#include "core/base/status.h"

namespace deft::client {

// How long a text may come after its record. Normally both come at nearly the same time.
inline constexpr TimeUs kTextDueUs = 1'000'000;

class JobFailure {
 public:
  [[nodiscard]] bool failed() const { return failed_.load(std::memory_order_acquire); }
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

  void fail(Error error);
  // The job has failed, and the text must come within kTextDueUs after `now_us`.
  void expect_text(TimeUs now_us);
  // If the text is overdue, fails without it. True if a text is still awaited.
  bool give_up_on_text(TimeUs now_us);

  // `call` is called once: when the job fails, or now if it has failed already. nullptr removes the callback.
  void on_failure(std::function<void(const Error&)> call);

 private:
  std::atomic<bool> failed_{false};
  std::optional<Error> error_;
  TimeUs text_due_us_ = 0;
  std::function<void(const Error&)> call_;
};

}  // namespace deft::client
