#include "core/link/ps/priority.h"

#include <algorithm>

namespace deft::link::ps_backend {
namespace {

// How many segments of the oldest operation may always be unanswered: a peer may not start the urgent one before it has finished this.
constexpr std::size_t kOldestAhead = 2;

}  // namespace

std::optional<std::size_t> next_to_push(std::span<const Share> shares) {
  std::size_t unanswered = 0;
  for (const Share& share : shares) unanswered += share.unanswered();
  const auto oldest = static_cast<std::size_t>(std::ranges::find_if_not(shares, &Share::done) - shares.begin());
  std::optional<std::size_t> first;
  for (std::size_t at = oldest; at < shares.size(); ++at) {
    const Share& share = shares[at];
    if (share.pushed == share.segments.size()) continue;
    const bool room = unanswered < kWindow || (at == oldest && share.unanswered() < kOldestAhead);
    if (room && (!first || share.priority < shares[*first].priority)) first = at;
  }
  return first;
}

std::optional<std::size_t> next_to_finish(std::span<const Ending> rounds, std::uint64_t apart) {
  std::optional<std::uint32_t> waiting;  // the most urgent of the older ones that are not done
  for (std::size_t at = 0; at < rounds.size(); ++at) {
    if (at > 0 && apart > kOvertakes) return std::nullopt;
    const Ending& round = rounds[at];
    if (round.done && (!waiting || round.priority < *waiting)) return at;
    if (!round.done) waiting = std::min(round.priority, waiting.value_or(round.priority));
  }
  return std::nullopt;
}

void AnswerQueue::add(const PsHeader& header, zmq::message_t payload) {
  waiting_.emplace(std::pair{header.priority, added_++}, Answer{header, std::move(payload)});
}

std::optional<AnswerQueue::Answer> AnswerQueue::next() {
  if (sent_ - taken_ >= kAnswersAhead) return std::nullopt;
  return next_of_all();
}

std::optional<AnswerQueue::Answer> AnswerQueue::next_of_all() {
  if (waiting_.empty()) return std::nullopt;
  ++sent_;
  return std::move(waiting_.extract(waiting_.begin()).mapped());
}

bool AnswerQueue::taken(std::uint64_t count) {
  if (count < taken_ || count > sent_) return false;
  taken_ = count;
  return true;
}

}  // namespace deft::link::ps_backend
