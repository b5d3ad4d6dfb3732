#include "daemon/base/failure_detector.h"

#include <utility>

namespace deft::daemon {
namespace {

Error loss(std::string what, const std::string& where) {
  return {ErrorKind::kLost, std::move(what), "look at that node, its daemon's log, and the network between the nodes",
          where};
}

}  // namespace

Error loss_of(const std::string& who, const std::string& how, const std::string& where) {
  return loss(who + " was lost" + (how.empty() ? "" : ": " + how), where);
}

Error loss_by_silence(const std::string& who, TimeUs silent_us) {
  return loss(who + " was lost: no sign of life for " + std::to_string(silent_us / 1000) + " ms", {});
}

bool FailureDetector::suspect(const Error& error, TimeUs now_us, Broken broken) {
  if (suspicion_ && (broken == Broken::kReplacedLink || !suspicion_->of_link())) return false;
  suspicion_ = {error, now_us, broken};
  return true;
}

bool FailureDetector::owes_an_answer(std::size_t peer, TimeUs now_us) const {
  return suspicion_ && now_us - suspicion_->since_us >= limits_.answer_us &&
         peers_[peer].heard_us < suspicion_->since_us;
}

bool FailureDetector::is_missed(std::size_t peer, TimeUs now_us) const {
  if (!suspicion_ || now_us - suspicion_->since_us < limits_.ended_us) return false;
  return suspicion_->broken == Broken::kWorkersLink || owes_an_answer(peer, now_us) ||
         silent_us(peer, now_us) > limits_.silence_us;
}

// What cuts off all peers at once silences them some heartbeats apart, so half of the limit is silence here.
bool FailureDetector::others_are_silent(std::size_t lost, std::optional<std::size_t> self, TimeUs now_us) const {
  bool any = false;
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    if (peer == lost || peer == self || peers_[peer].ended) continue;
    if (silent_us(peer, now_us) <= limits_.silence_us / 2 && !owes_an_answer(peer, now_us)) return false;
    any = true;
  }
  return any;
}

std::optional<FailureDetector::Finding> FailureDetector::check(TimeUs now_us, std::optional<std::size_t> self) const {
  const TimeUs age_us = suspicion_ ? now_us - suspicion_->since_us : 0;
  std::optional<Finding> ended;
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    const TimeUs silent = silent_us(peer, now_us);
    if (peers_[peer].ended) {
      if (is_missed(peer, now_us)) ended = {Cause::kEnded, peer, silent, suspicion_->error, suspicion_->of_link()};
      continue;
    }
    if (peer != self && silent > limits_.silence_us)
      return Finding{Cause::kSilent, peer, silent, {}, false, others_are_silent(peer, self, now_us)};
    if (owes_an_answer(peer, now_us))
      return Finding{Cause::kUnanswered,
                     peer,
                     silent,
                     suspicion_->error,
                     suspicion_->of_link(),
                     others_are_silent(peer, self, now_us)};
  }
  if (ended) return ended;
  if (suspicion_ && age_us >= limits_.give_up_us)
    return Finding{Cause::kSuspicion, 0, 0, suspicion_->error, suspicion_->of_link()};
  return std::nullopt;
}

}  // namespace deft::daemon
