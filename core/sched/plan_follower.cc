#include "core/sched/plan_follower.h"

#include <algorithm>
#include <limits>

namespace deft::sched {
namespace {

constexpr std::uint64_t kNoEnd = std::numeric_limits<std::uint64_t>::max();

}  // namespace

std::uint64_t PlanFollower::generations() const {
  const std::uint64_t end = calendar_.end_of_stretch(first_step_);
  if (end == kNoEnd) return kNoEnd;
  return calendar_.of_step(end - 1).generation - calendar_.of_step(first_step_).generation + 1;
}

// Whether `cursor` has come to the end of an ended plan; otherwise it stands on a part that will be sent.
bool PlanFollower::finished(Cursor& cursor, std::size_t link, std::uint64_t generations) const {
  const auto& list = plan_.links[link];
  if (list.empty()) return true;
  while (true) {
    if (cursor.next == list.size()) cursor.next = 0, ++cursor.cycle;
    const std::uint64_t begun = cursor.cycle * plan_.generations.size();
    if (begun >= generations) return true;
    if (begun + list[cursor.next].generation < generations) return false;
    ++cursor.next;  // of a generation that never begins
  }
}

void PlanFollower::take(std::vector<Launch>& launches) {
  const std::uint64_t count = generations();
  const std::uint64_t first = calendar_.of_step(first_step_).generation;
  for (std::size_t link = 0; link < cursors_.size(); ++link) {
    Cursor& cursor = cursors_[link];
    while (!finished(cursor, link, count)) {
      const auto& part = plan_.links[link][cursor.next];
      const model::Dated when = calendar_.at(first + cursor.cycle * plan_.generations.size() + part.generation);
      if (ready_[part.bucket] <= when.last_step) break;
      launches.push_back(
          {0, static_cast<model::LinkIndex>(link), part.bucket, when.generation, part.offset, part.bytes});
      ++cursor.next;
    }
  }
}

bool PlanFollower::done() const {
  const std::uint64_t count = generations();
  if (count == kNoEnd) return false;
  for (std::size_t link = 0; link < cursors_.size(); ++link) {
    Cursor cursor = cursors_[link];
    if (!finished(cursor, link, count)) return false;
  }
  return true;
}

}  // namespace deft::sched
