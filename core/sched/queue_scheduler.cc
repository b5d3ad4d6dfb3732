#include "core/sched/queue_scheduler.h"

#include <algorithm>
#include <utility>

#include "core/model/buckets.h"

namespace deft::sched {
namespace {

// How many parts one call considers: enough to see past a fast link's backlog to the parts that a slow link should take.
constexpr int kLookAhead = 64;
// Nothing overtakes the parts of a policy that sends in the order of readiness. So they last long beside the latency that each one costs.
constexpr double kLatenciesAPart = 8;

}  // namespace

QueueScheduler::QueueScheduler(const Setup& setup, const Rules& rules)
    : SynchronousScheduler(setup, rules.window), parts_(queue_, board_, rules) {}

// On one link a bucket is one launch, as cutting it would only cost. On several it is cut so that they share it; on slow
// ones finer, as one of them idles at the end for up to the time of a part.
QueueScheduler::Rules QueueScheduler::in_order(const Setup& setup, std::uint64_t largest_bytes) {
  SizeLimit part = setup.links.size() == 1 ? SizeLimit{kNoLimit} : short_parts(setup.partition_bytes);
  part.latencies = kLatenciesAPart;
  // Two launches wait behind the running one, so that the link always has its next launch while the order after it travels.
  return {part, {std::max(3 * std::min(largest_bytes, part.bytes), setup.credit_bytes)}, false, true};
}

void QueueScheduler::bucket_ready(model::BucketIndex index, std::uint64_t step, TimeUs) {
  const model::Bucket& b = bucket(index);
  enqueue(index, step, parts_.by_priority() ? b.forward_position : 0, part_limit());
}

std::vector<Launch> QueueScheduler::take_launches(TimeUs now_us) {
  auto launches = parts_.take(now_us);
  for (Launch& launch : launches) send(launch, now_us);
  return launches;
}

PartPlacer::PartPlacer(std::deque<ReadyTask>& queue, LinkBoard& board, const Rules& rules)
    : queue_(queue), board_(board), rules_(rules) {}

void PartPlacer::change_rules(const Rules& rules) {
  rules_ = rules;
  apply_window();
}

std::uint64_t PartPlacer::part_limit() const {
  double fastest = 0, latency_us = 0;
  for (model::LinkIndex link = 0; link < board_.count(); ++link)
    if (const auto& model = board_.link_model(link); !board_.is_lost(link) && model.bytes_per_us > fastest)
      fastest = model.bytes_per_us, latency_us = model.latency_us;
  return rules_.part.on_link(fastest, latency_us);
}

std::uint64_t PartPlacer::most_room() const {
  const model::LinkIndex links = board_.count();
  std::uint64_t most = 0;
  for (model::LinkIndex link = 0; link < links; ++link)
    most = std::max(most, board_.room_bytes(link, draft_.planned_bytes[link]));
  return most;
}

// Cheap beside looking at the parts one by one: most calls come when the windows are all but full.
bool PartPlacer::any_fits(std::size_t position) const {
  const std::uint64_t room = most_room();
  if (room == 0) return false;
  const std::size_t end = std::min(queue_.size(), position + static_cast<std::size_t>(draft_.looks));
  return std::any_of(queue_.begin() + static_cast<std::ptrdiff_t>(position),
                     queue_.begin() + static_cast<std::ptrdiff_t>(end),
                     [&](const ReadyTask& task) { return task.rest() > 0 && task.part_at(task.sent) <= room; });
}

void PartPlacer::append(const Launch& launch) {
  draft_.planned_bytes[launch.link] += launch.bytes;
  if (rules_.join_parts && !draft_.launches.empty()) {
    Launch& last = draft_.launches.back();
    if (last.bucket == launch.bucket && last.generation == launch.generation && last.link == launch.link &&
        last.offset + last.bytes == launch.offset) {
      last.bytes += launch.bytes;
      return;
    }
  }
  draft_.launches.push_back(launch);
}

bool PartPlacer::place(std::size_t position) {
  ReadyTask& task = queue_[position];
  // The parts of a bucket are alike, so its next part goes now, whichever of its parts found the room.
  for (std::uint64_t seen = task.sent; seen < task.bytes && draft_.looks > 0; --draft_.looks) {
    const std::uint64_t bytes = task.part_at(seen);
    const auto link = board_.give_to_earliest(bytes, draft_.free_at_us);
    seen += bytes;
    const std::uint64_t next = task.part_at(task.sent);
    if (next > board_.room_bytes(link, draft_.planned_bytes[link])) continue;
    append({0, link, task.bucket, task.generation, task.sent, next});
    task.sent += next;
    if (!any_fits(position)) draft_.looks = 1;  // the loop's own step makes it 0
  }
  return task.rest() == 0;
}

std::vector<Launch> PartPlacer::take(TimeUs now_us) {
  draft_.looks = kLookAhead;
  draft_.planned_bytes.assign(board_.count(), 0);
  if (!any_fits(0)) return {};
  board_.list_free_at_us(now_us, draft_.free_at_us);
  for (std::size_t position = 0; position < queue_.size() && draft_.looks > 0;) {
    if (place(position))
      queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(position));
    else
      ++position;
  }
  return std::exchange(draft_.launches, {});
}

}  // namespace deft::sched
