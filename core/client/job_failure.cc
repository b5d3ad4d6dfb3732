#include "core/client/job_failure.h"

#include <utility>

namespace deft::client {

void JobFailure::fail(Error error) {
  if (error_) return;
  error_ = std::move(error);
  failed_.store(true, std::memory_order_release);
  if (call_) call_(*error_);
}

void JobFailure::expect_text(TimeUs now_us) { text_due_us_ = now_us + kTextDueUs; }

bool JobFailure::give_up_on_text(TimeUs now_us) {
  if (text_due_us_ == 0 || error_) return false;
  if (now_us < text_due_us_) return true;
  fail({ErrorKind::kLost, "the job failed, and the daemon on this node did not say why", "see its log", ""});
  return false;
}

void JobFailure::on_failure(std::function<void(const Error&)> call) {
  call_ = std::move(call);
  if (call_ && error_) call_(*error_);
}

}  // namespace deft::client
