#include "core/sched/queue_scheduler.h"

#include <algorithm>
#include <iterator>

#include "core/sched/parts.h"

namespace deft::sched {
namespace {

// How many parts one call considers: enough to see past a fast link's backlog to what a slow link should take.
constexpr int kLookAhead = 64;

// No part is cut smaller for a slow link's sake: what it costs to start one would show.
constexpr std::uint64_t kLeastPartBytes = 256 << 10;

}  // namespace

QueueScheduler::QueueScheduler(const Setup& setup, const Rules& rules)
    : rules_(rules),
      buckets_(setup.buckets),
      board_(setup.links, {rules.window_bytes, 2 * rules.part_us, 2 * kLeastPartBytes}) {}

void QueueScheduler::bucket_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs) {
  const model::Bucket& b = buckets_.at(bucket);
  const Task task{step, rules_.by_priority ? b.forward_position : 0, arrivals_++, bucket};
  queue_.emplace(task, Progress{0, even_part_bytes(b.bytes, part_limit())});
  updates_.push_back({bucket, step, step, step, step + 1});
}

std::uint64_t QueueScheduler::part_limit() const {
  if (rules_.part_us <= 0) return rules_.part_bytes;
  double fastest = 0;
  for (model::LinkIndex link = 0; link < board_.count(); ++link) fastest = std::max(fastest, board_.bytes_per_us(link));
  const double carried = fastest * rules_.part_us;
  if (carried >= static_cast<double>(rules_.part_bytes)) return rules_.part_bytes;
  return std::min(rules_.part_bytes, std::max(kLeastPartBytes, static_cast<std::uint64_t>(carried)));
}

bool QueueScheduler::any_room(const std::vector<std::uint64_t>& planned_bytes) const {
  for (model::LinkIndex link = 0; link < board_.count(); ++link)
    if (board_.has_room(link, 1, planned_bytes[link])) return true;
  return false;
}

model::LinkIndex QueueScheduler::earliest_finish(const Draft& draft, std::uint64_t bytes) const {
  model::LinkIndex best = 0;
  double best_finish = draft.free_at_us[0] + board_.cost_us(0, bytes);
  for (model::LinkIndex link = 1; link < board_.count(); ++link) {
    const double finish = draft.free_at_us[link] + board_.cost_us(link, bytes);
    if (finish < best_finish) best = link, best_finish = finish;
  }
  return best;
}

void QueueScheduler::append(const Launch& launch, Draft& draft) const {
  draft.planned_bytes[launch.link] += launch.bytes;
  if (rules_.join_parts && !draft.launches.empty()) {
    Launch& last = draft.launches.back();
    if (last.bucket == launch.bucket && last.generation == launch.generation && last.link == launch.link &&
        last.offset + last.bytes == launch.offset) {
      last.bytes += launch.bytes;
      return;
    }
  }
  draft.launches.push_back(launch);
}

bool QueueScheduler::place(const Task& task, Progress& progress, Draft& draft) const {
  const std::uint64_t total = buckets_[task.bucket].bytes;
  // The parts of a bucket are alike, so what goes now is always its next part, whichever of them found the room.
  for (std::uint64_t seen = progress.sent; seen < total && draft.looks > 0; --draft.looks) {
    const std::uint64_t bytes = std::min(progress.part_bytes, total - seen);
    const auto link = earliest_finish(draft, bytes);
    seen += bytes;
    draft.free_at_us[link] += board_.cost_us(link, bytes);
    const std::uint64_t next = std::min(progress.part_bytes, total - progress.sent);
    if (!board_.has_room(link, next, draft.planned_bytes[link])) continue;
    append({0, link, task.bucket, task.generation, progress.sent, next}, draft);
    progress.sent += next;
    if (!any_room(draft.planned_bytes)) draft.looks = 1;  // the loop's own step makes it 0
  }
  return progress.sent == total;
}

std::vector<Launch> QueueScheduler::take_launches(TimeUs now_us) {
  if (queue_.empty()) return {};
  Draft draft{{}, std::vector<std::uint64_t>(board_.count(), 0), {}, kLookAhead};
  if (!any_room(draft.planned_bytes)) return {};
  for (model::LinkIndex link = 0; link < board_.count(); ++link)
    draft.free_at_us.push_back(board_.free_at_us(link, now_us));
  for (auto it = queue_.begin(); it != queue_.end() && draft.looks > 0;)
    it = place(it->first, it->second, draft) ? queue_.erase(it) : std::next(it);
  for (Launch& launch : draft.launches) {
    launch.id = launches_++;
    board_.launch(launch, now_us);
  }
  return std::move(draft.launches);
}

}  // namespace deft::sched
