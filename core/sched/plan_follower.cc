#include "core/sched/plan_follower.h"

#include <algorithm>
#include <limits>

namespace deft::sched {
namespace {

constexpr std::uint64_t kNoEnd = std::numeric_limits<std::uint64_t>::max();

}  // namespace

std::uint64_t PlanFollower::cycles() const {
  const std::uint64_t end = calendars_.front().end_of_stretch(first_step_);
  return end == kNoEnd ? kNoEnd : (end - first_step_ + plan_.period_steps - 1) / plan_.period_steps;
}

std::uint64_t PlanFollower::first_generation(model::BucketIndex bucket) const {
  return calendars_[bucket].of_step(first_step_).generation;
}

std::uint64_t PlanFollower::generation_of(const Cursor& cursor, const model::PlanPart& part) const {
  return first_generation(part.bucket) + (cursor.cycle - part.cycles_back) * plan_.generations_of(part.bucket).size() +
         part.generation;
}

// Whether the plan lasts until this generation of the bucket begins.
bool PlanFollower::begins(model::BucketIndex bucket, std::uint64_t generation) const {
  const std::uint64_t end = calendars_[bucket].end_of_stretch(first_step_);
  return end == kNoEnd || generation <= calendars_[bucket].of_step(end - 1).generation;
}

// Whether `cursor` has come to the end of an ended plan; otherwise it stands on a part that will be sent.
bool PlanFollower::finished(Cursor& cursor, std::size_t link) const {
  const auto& list = plan_.links[link];
  if (list.empty()) return true;
  const std::uint64_t begun = cycles();
  const std::uint64_t last =
      begun == kNoEnd ? kNoEnd : begun + most_back_[link];  // parts of the last cycle may go later
  while (true) {
    if (cursor.next == list.size()) cursor.next = 0, ++cursor.cycle;
    if (cursor.cycle >= last) return true;
    const auto& part = list[cursor.next];
    if (cursor.cycle >= part.cycles_back && begins(part.bucket, generation_of(cursor, part))) return false;
    ++cursor.next;  // of a generation that has never begun, or never will
  }
}

void PlanFollower::take(std::vector<Launch>& launches) {
  for (std::size_t link = 0; link < cursors_.size(); ++link) {
    Cursor& cursor = cursors_[link];
    while (!finished(cursor, link)) {
      const auto& part = plan_.links[link][cursor.next];
      const model::Dated when = calendars_[part.bucket].at(generation_of(cursor, part));
      if (ready_[part.bucket] <= when.last_step) break;
      launches.push_back(
          {0, static_cast<model::LinkIndex>(link), part.bucket, when.generation, part.offset, part.bytes});
      ++cursor.next;
    }
  }
}

bool PlanFollower::done() const {
  if (cycles() == kNoEnd) return false;
  for (std::size_t link = 0; link < cursors_.size(); ++link) {
    Cursor cursor = cursors_[link];
    if (!finished(cursor, link)) return false;
  }
  return true;
}

}  // namespace deft::sched
