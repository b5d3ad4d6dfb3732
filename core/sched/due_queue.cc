#include "core/sched/due_queue.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/model/buckets.h"
#include "core/model/part_time.h"

namespace deft::sched {
namespace {

constexpr std::uint64_t kSmallWindowBytes = 4 * model::kSmallBytes;  // on their way at once on a link
// Parts that one call considers: past a fast link's backlog to the parts that a slow link should take.
constexpr int kLookAhead = 64;

}  // namespace

DueQueue::DueQueue(const Setup& setup, const LaunchCodecs& codecs)
    : buckets_(setup.buckets), codecs_(codecs), board_(setup.links, {kNoLimit}), small_bytes_(setup.links.size()) {}

void DueQueue::add(const Task& task) {
  const Waiting waiting{task, buckets_.at(task.bucket).bytes};
  auto& queue = codecs_.is_small(task.bucket, task.codec, waiting.bytes) ? small_ : waiting_;
  queue.insert(std::upper_bound(queue.begin(), queue.end(), waiting), waiting);
}

void DueQueue::update_due_steps(const std::vector<model::UpdateSchedule>& schedules) {
  for (auto* const queue : {&waiting_, &small_}) {
    for (Waiting& waiting : *queue)
      waiting.task.due_step = schedules[waiting.task.bucket].at(waiting.task.generation).apply_step;
    std::stable_sort(queue->begin(), queue->end());
  }
}

std::uint64_t DueQueue::part_bytes(model::LinkIndex link) const {
  return static_cast<std::uint64_t>(model::part_us(board_.link_model(link), compute_us_) * board_.bytes_per_us(link));
}

// How much of `rest` goes to `link` at once; leaves no sliver.
std::uint64_t DueQueue::piece(model::LinkIndex link, std::uint64_t rest, const Task& task) const {
  const model::Bucket& bucket = buckets_[task.bucket];
  if (bucket.uncut) return rest;
  const std::uint64_t on_wire = std::min(part_bytes(link), bytes_until_urgent(link));
  const double most = static_cast<double>(on_wire) / codecs_.wire_share(task.bucket, task.codec, link);
  if (most >= static_cast<double>(rest)) return rest;
  auto part = std::max(static_cast<std::uint64_t>(most), model::kPartAlignBytes);
  // Nothing waits that could fill what one link idles while the others send the last part.
  if (waiting_.size() == 1) part = std::min(part, share_of_last(link, rest, task));
  return rest <= part + part / 4 ? rest : model::aligned_part(bucket.offset + bucket.bytes - rest, rest, part);
}

// What `link` carries of the last bytes that wait if all links end together; not less than a part may be.
std::uint64_t DueQueue::share_of_last(model::LinkIndex link, std::uint64_t rest, const Task& task) const {
  const auto begin_us = [this](model::LinkIndex l) { return free_at_us_[l] + board_.cost_us(l, 0); };
  const auto rate = [&](model::LinkIndex l) {
    return board_.bytes_per_us(l) / codecs_.wire_share(task.bucket, task.codec, l);
  };
  // Each round leaves out the links that are busy beyond the end. Lost ones always are.
  double before_us = 0, end_us = std::numeric_limits<double>::infinity();
  do {
    double sum = static_cast<double>(rest), rates = 0;
    for (model::LinkIndex l = 0; l < board_.count(); ++l)
      if (begin_us(l) < end_us) sum += begin_us(l) * rate(l), rates += rate(l);
    before_us = std::exchange(end_us, sum / rates);
  } while (end_us < before_us);
  const double share = std::max(0.0, end_us - begin_us(link)) * rate(link);
  const double least = static_cast<double>(least_bytes(link)) / codecs_.wire_share(task.bucket, task.codec, link);
  return static_cast<std::uint64_t>(std::max(share, least));
}

// The smallest part that may be sent.
std::uint64_t DueQueue::least_bytes(model::LinkIndex link) const {
  return static_cast<std::uint64_t>(model::least_part_us(board_.link_model(link), compute_us_) *
                                    board_.bytes_per_us(link));
}

// What keeps `link` a latency longer than until the urgent is expected, so that its order travels meanwhile.
std::uint64_t DueQueue::bytes_until_urgent(model::LinkIndex link) const {
  if (!urgent_us_) return kNoLimit;
  const double us = std::max(0.0, *urgent_us_ - free_at_us_[link]);
  return std::max(least_bytes(link), static_cast<std::uint64_t>(us * board_.bytes_per_us(link)));
}

// One part runs, and the next waits behind it, so that the link need not wait for an order that is still travelling. Send
// nothing more if the running part occupies the link until the urgent bucket is expected. If that bucket is overdue, keep
// two of the smallest parts in flight.
bool DueQueue::has_room(model::LinkIndex link, TimeUs now_us) const {
  if (board_.is_lost(link)) return false;
  const std::uint64_t on_way = board_.on_way_bytes(link) - small_bytes_[link];
  if (!urgent_us_ || on_way == 0) return on_way <= part_bytes(link);
  if (*urgent_us_ <= static_cast<double>(now_us)) return on_way <= least_bytes(link);
  return board_.free_at_us(link, now_us) < *urgent_us_ && on_way <= part_bytes(link);
}

bool DueQueue::any_room(TimeUs now_us) const {
  for (model::LinkIndex link = 0; link < board_.count(); ++link)
    if (has_room(link, now_us)) return true;
  return false;
}

model::LinkIndex DueQueue::best_link(std::uint64_t rest, const Task& task) const {
  const auto cost_us = [&](model::LinkIndex link, std::uint64_t bytes) {
    return board_.cost_us(link, codecs_.wire_bytes(task.bucket, task.codec, link, bytes));
  };
  const auto first = std::min_element(free_at_us_.begin(), free_at_us_.end());
  auto best = static_cast<model::LinkIndex>(first - free_at_us_.begin());
  double best_us = *first + cost_us(best, piece(best, rest, task));
  for (model::LinkIndex link = 0; link < board_.count(); ++link) {
    const double us = free_at_us_[link] + cost_us(link, rest);
    if (us < best_us) best = link, best_us = us;
  }
  return best;
}

// Decides for each part that is left on which link it goes, and launches those for which that link has room now.
void DueQueue::place(Waiting& waiting, int& looks, TimeUs now_us, std::vector<Launch>& launches) {
  for (std::uint64_t seen = waiting.sent; seen < waiting.bytes && looks > 0; --looks) {
    const model::LinkIndex link = best_link(waiting.bytes - seen, waiting.task);
    const std::uint64_t bytes = piece(link, waiting.bytes - seen, waiting.task);
    const auto& task = waiting.task;
    free_at_us_[link] += board_.cost_us(link, codecs_.wire_bytes(task.bucket, task.codec, link, bytes));
    seen += bytes;
    if (!has_room(link, now_us)) continue;
    // Whichever part has found the room.
    const std::uint64_t begin = buckets_[task.bucket].offset + waiting.sent;
    const std::uint64_t next = model::aligned_part(begin, waiting.bytes - waiting.sent, bytes);
    launch(waiting, link, next, now_us, launches);
    if (!any_room(now_us)) looks = 1;  // the loop's own step makes it 0
  }
}

void DueQueue::launch(Waiting& waiting, model::LinkIndex link, std::uint64_t bytes, TimeUs now_us,
                      std::vector<Launch>& launches) {
  launches.push_back({launches_++, link, waiting.task.bucket, waiting.task.generation, waiting.sent, bytes});
  launches.back().codec = waiting.task.codec;
  board_.launch(codecs_.on_wire(launches.back()), now_us);
  waiting.sent += bytes;
  if (is_small(launches.back())) small_bytes_[link] += codecs_.on_wire(launches.back()).bytes;
}

bool DueQueue::is_small(const Launch& launch) const {
  return codecs_.is_small(launch.bucket, launch.codec, buckets_[launch.bucket].bytes);
}

void DueQueue::finish(const Launch& launch, TimeUs now_us) {
  board_.finish(codecs_.on_wire(launch), now_us);
  if (is_small(launch)) small_bytes_[launch.link] -= codecs_.on_wire(launch).bytes;
}

// Small parts go to the link on which they would end first if all larger ones stood still.
void DueQueue::take_small(TimeUs now_us, std::vector<Launch>& launches) {
  const auto through_us = [&](model::LinkIndex link, const Waiting& waiting) {
    if (board_.is_lost(link)) return std::numeric_limits<double>::infinity();
    const auto bytes = codecs_.wire_bytes(waiting.task.bucket, waiting.task.codec, link, waiting.bytes);
    return board_.cost_us(link, small_bytes_[link] + bytes);
  };
  for (; !small_.empty(); small_.pop_front()) {
    Waiting& first = small_.front();
    model::LinkIndex best = 0;
    for (model::LinkIndex link = 1; link < board_.count(); ++link)
      if (through_us(link, first) < through_us(best, first)) best = link;
    if (board_.is_lost(best) || small_bytes_[best] >= kSmallWindowBytes) return;
    launch(first, best, first.bytes, now_us, launches);
  }
}

void DueQueue::take(TimeUs now_us, std::vector<Launch>& launches) {
  take_small(now_us, launches);
  if (waiting_.empty() || !any_room(now_us)) return;
  board_.list_free_at_us(now_us, free_at_us_);
  int looks = kLookAhead;
  for (auto waiting = waiting_.begin(); waiting != waiting_.end() && looks > 0;) {
    place(*waiting, looks, now_us, launches);
    waiting = waiting->sent == waiting->bytes ? waiting_.erase(waiting) : std::next(waiting);
  }
}

}  // namespace deft::sched
