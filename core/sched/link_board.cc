#include "core/sched/link_board.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace deft::sched {

bool is_sane(const model::LinkModel& link) {
  return std::isfinite(link.latency_us) && link.latency_us >= 0 && std::isfinite(link.bytes_per_us) &&
         link.bytes_per_us > 0;
}

LinkBoard::LinkBoard(const std::vector<model::LinkModel>& links, SizeLimit window) : window_(window) {
  links_.resize(links.size());
  for (std::size_t i = 0; i < links.size(); ++i) links_[i].model = links[i];
}

double LinkBoard::free_at_us(model::LinkIndex link, TimeUs now_us) const {
  const State& state = links_[link];
  if (state.lost) return std::numeric_limits<double>::infinity();
  const auto now = static_cast<double>(now_us);
  if (state.queue.empty()) return now;
  const double head = state.queue.front().cost_us;
  return std::max(now, static_cast<double>(state.head_began_us) + head) + (state.queued_us - head);
}

void LinkBoard::list_free_at_us(TimeUs now_us, std::vector<double>& out) const {
  out.clear();
  for (model::LinkIndex link = 0; link < count(); ++link) out.push_back(free_at_us(link, now_us));
}

model::LinkIndex LinkBoard::give_to_earliest(std::uint64_t bytes, std::vector<double>& free_at_us) const {
  model::LinkIndex best = 0;
  double best_us = free_at_us[0] + cost_us(0, bytes);
  for (model::LinkIndex link = 1; link < count(); ++link) {
    const double us = free_at_us[link] + cost_us(link, bytes);
    if (us < best_us) best = link, best_us = us;
  }
  free_at_us[best] = best_us;
  return best;
}

std::uint64_t LinkBoard::room_bytes(model::LinkIndex link, std::uint64_t planned_bytes) const {
  if (links_[link].lost) return 0;
  const std::uint64_t before = links_[link].bytes + planned_bytes;
  if (before == 0) return kNoLimit;
  const std::uint64_t window = window_.on_link(bytes_per_us(link));
  return before < window ? window - before : 0;
}

void LinkBoard::launch(const Launch& launch, TimeUs now_us) {
  State& state = links_[launch.link];
  const std::uint64_t bytes = link_bytes(launch);
  const double cost = cost_us(launch.link, bytes);
  if (state.queue.empty()) state.head_began_us = now_us, state.queued_us = 0;
  state.queue.push_back({launch.id, bytes, cost});
  state.queued_us += cost;
  state.bytes += bytes;
}

void LinkBoard::finish(const Launch& launch, TimeUs now_us) {
  State& state = links_.at(launch.link);
  const auto it =
      std::find_if(state.queue.begin(), state.queue.end(), [&](const InFlight& f) { return f.id == launch.id; });
  if (it == state.queue.end()) throw std::logic_error("part_finished: this launch is not on its way");
  state.queued_us -= it->cost_us;
  state.bytes -= it->bytes;
  if (it != state.queue.begin()) {
    state.queue.erase(it);
    return;
  }
  state.head_began_us = now_us;
  state.queue.pop_front();
}

void LinkBoard::measured(model::LinkIndex link, const model::LinkModel& model) {
  if (!is_sane(model)) return;  // an estimate that makes no sense is no news
  links_.at(link).model = model;
}

}  // namespace deft::sched
