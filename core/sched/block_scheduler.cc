#include "core/sched/block_scheduler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/model/buckets.h"

namespace deft::sched {
namespace {

// A link with a small share of a bucket takes a whole block nevertheless, unless another link would end it so many times sooner.
constexpr double kLate = 2;

std::uint64_t round_up(std::uint64_t bytes) { return model::round_up(bytes, model::kPartAlignBytes); }

}  // namespace

BlockScheduler::BlockScheduler(const Setup& setup, Rules rules)
    : SynchronousScheduler(setup, {.bytes = kNoLimit}), rules_(std::move(rules)), forecast_(setup.buckets.size()) {
  rules_.unit_bytes = round_up(std::max<std::uint64_t>(1, rules_.unit_bytes));
}

void BlockScheduler::bucket_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us) {
  forecast_.ready(bucket, step, now_us);
  enqueue(bucket, step, rules_.ranks.at(bucket));
}

std::uint64_t BlockScheduler::fair_share(model::LinkIndex link, std::uint64_t bytes,
                                         std::vector<double>& free_at_us) const {
  if (board_.count() == 1) return bytes;
  // The common end: with the links that take part it is (bytes + sum of begin * rate) / sum of rate. Links join in the
  // order in which they could begin, as long as they begin before the end.
  std::vector<std::pair<double, model::LinkIndex>> begins;
  for (model::LinkIndex i = 0; i < board_.count(); ++i) begins.emplace_back(free_at_us[i] + board_.cost_us(i, 0), i);
  std::sort(begins.begin(), begins.end());
  const auto rate = [&](model::LinkIndex i) { return board_.bytes_per_us(i); };
  double sum = static_cast<double>(bytes);
  double rates = 0;
  double end_us = std::numeric_limits<double>::infinity();
  for (const auto& [begin_us, i] : begins) {
    if (begin_us >= end_us) break;
    sum += begin_us * rate(i);
    rates += rate(i);
    end_us = sum / rates;
  }
  const double own_us = end_us - free_at_us[link] - board_.cost_us(link, 0);
  for (auto& free_us : free_at_us) free_us = std::max(free_us, end_us);  // for the tasks behind
  const double own = std::ceil(std::max(0.0, own_us) * rate(link));
  // The first to begin always has a share, though rounding may leave nothing of it.
  const double least = begins.front().second == link ? 1 : 0;
  return std::min(bytes, static_cast<std::uint64_t>(std::max(own, least)));
}

std::uint64_t BlockScheduler::undivided(model::LinkIndex link, std::uint64_t bytes,
                                        std::vector<double>& free_at_us) const {
  return board_.give_to_earliest(bytes, free_at_us) == link ? bytes : 0;
}

// The link that ends the smallest block first takes one now or when it becomes idle, so no task waits for ever.
std::uint64_t BlockScheduler::share_of(const ReadyTask& task, model::LinkIndex link,
                                       std::vector<double>& free_at_us) const {
  if (task.uncut) return undivided(link, task.rest(), free_at_us);
  const std::uint64_t least = std::min(task.rest(), rules_.unit_bytes);
  const double own_us = board_.cost_us(link, least);
  double first_us = own_us;  // of all links, from when this one is free
  for (model::LinkIndex i = 0; i < board_.count(); ++i)
    first_us = std::min(first_us, free_at_us[i] + board_.cost_us(i, least) - free_at_us[link]);
  auto shared_us = free_at_us;
  const std::uint64_t share = fair_share(link, task.rest(), shared_us);
  if (share < least && own_us > kLate * first_us) return undivided(link, least, free_at_us);
  free_at_us = std::move(shared_us);
  return share == 0 && own_us > first_us ? 0 : std::max(std::min(task.rest(), round_up(share)), least);
}

std::uint64_t BlockScheduler::fitting(const ReadyTask& task, model::LinkIndex link, TimeUs now_us) const {
  const auto next_us =
      forecast_.next_us(rules_.ranks, rules_.any_bucket_ends_gap ? kNoLimit : std::uint64_t{task.priority});
  if (!next_us) return kNoLimit;
  const double room_us = *next_us - static_cast<double>(now_us) - board_.cost_us(link, 0);
  if (room_us <= 0) return rules_.unit_bytes;
  const double bytes = std::min(1e15, room_us * board_.bytes_per_us(link));
  if (rules_.whole_units) {
    const double units = std::ceil(bytes / static_cast<double>(rules_.unit_bytes));
    return static_cast<std::uint64_t>(std::max(1.0, units)) * rules_.unit_bytes;
  }
  const auto whole = static_cast<std::uint64_t>(bytes) / model::kPartAlignBytes * model::kPartAlignBytes;
  return std::max(whole, rules_.unit_bytes);
}

bool BlockScheduler::launch_on(model::LinkIndex link, TimeUs now_us, std::vector<Launch>& launches) {
  std::vector<double> free_at_us;
  board_.list_free_at_us(now_us, free_at_us);
  for (auto it = queue_.begin(); it != queue_.end(); ++it) {
    ReadyTask& task = *it;
    const std::uint64_t share = share_of(task, link, free_at_us);
    if (share == 0) continue;
    const std::uint64_t room = task.uncut ? kNoLimit : fitting(task, link, now_us);
    const std::uint64_t bytes = model::aligned_part(task.skew + task.sent, task.rest(), std::min(share, room));
    Launch launch{0, link, task.bucket, task.generation, task.sent, bytes};
    send(launch, now_us);
    launches.push_back(launch);
    task.sent += bytes;
    if (task.rest() == 0) queue_.erase(it);
    return true;
  }
  return false;
}

std::vector<Launch> BlockScheduler::take_launches(TimeUs now_us) {
  std::vector<Launch> launches;
  for (model::LinkIndex link = 0; link < board_.count() && !queue_.empty(); ++link)
    if (board_.is_idle(link)) launch_on(link, now_us, launches);
  return launches;
}

}  // namespace deft::sched
