#include "daemon/base/failure_detector.h"

namespace deft::daemon {

bool FailureDetector::suspect(const Error& error, TimeUs now_us, bool of_link) {
  if (suspicion_ && (of_link || !suspicion_->of_link)) return false;
  suspicion_ = {error, now_us, of_link};
  return true;
}

std::optional<FailureDetector::Finding> FailureDetector::check(TimeUs now_us, std::optional<std::size_t> self) const {
  const TimeUs age_us = suspicion_ ? now_us - suspicion_->since_us : 0;
  std::optional<Finding> ended;
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    const TimeUs silent = silent_us(peer, now_us);
    if (peers_[peer].ended) {
      if (suspicion_ && age_us >= limits_.ended_us)
        ended = {Cause::kEnded, peer, silent, suspicion_->error, suspicion_->of_link};
      continue;
    }
    if (peer != self && silent > limits_.silence_us) return Finding{Cause::kSilent, peer, silent, {}, false};
    if (suspicion_ && age_us >= limits_.answer_us && peers_[peer].heard_us < suspicion_->since_us)
      return Finding{Cause::kUnanswered, peer, silent, suspicion_->error, suspicion_->of_link};
  }
  if (ended) return ended;
  if (suspicion_ && age_us >= limits_.give_up_us)
    return Finding{Cause::kSuspicion, 0, 0, suspicion_->error, suspicion_->of_link};
  return std::nullopt;
}

}  // namespace deft::daemon
