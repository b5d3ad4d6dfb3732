// Whether the job has failed, and why: the first error counts.
//
// The ring says that a job failed, and the socket says why. If the text does not come in time, the failure is reported
// without it. failed() may be called from any thread; all else under the lock of the connection.
#pragma once

#include <atomic>
#include <functional>
#include <optional>

#include "core/base/clock.h"
#include "core/base/status.h"

namespace deft::client {

// The ring and the socket tell of the same event at nearly the same time.
inline constexpr TimeUs kTextDueUs = 1'000'000;

class JobFailure {
 public:
  [[nodiscard]] bool failed() const { return failed_.load(std::memory_order_acquire); }
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

  void fail(Error error);
  // The job failed, and the text must have come kTextDueUs after `now_us`.
  void expect_text(TimeUs now_us);
  // Fails without a text that is overdue. True: a text is still awaited.
  bool give_up_on_text(TimeUs now_us);

  // `call` is called once, when the job fails or if it has failed already; nullptr: no more.
  void on_failure(std::function<void(const Error&)> call);

 private:
  std::atomic<bool> failed_{false};
  std::optional<Error> error_;
  TimeUs text_due_us_ = 0;
  std::function<void(const Error&)> call_;
};

}  // namespace deft::client
