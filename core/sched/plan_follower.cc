#include "core/sched/plan_follower.h"

#include <algorithm>

namespace deft::sched {

PlanFollower::PlanFollower(model::Plan plan, std::size_t buckets, std::uint64_t first_step,
                           std::uint64_t first_generation, std::uint64_t first_apply)
    : plan_(std::move(plan)),
      first_step_(first_step),
      first_generation_(first_generation),
      first_apply_(first_apply),
      ready_(buckets),
      cursors_(plan_.links.size()) {}

Update PlanFollower::update(std::uint64_t generation) const {
  const std::uint64_t count = plan_.generations.size();
  const auto& planned = plan_.generations[generation % count];
  const std::uint64_t cycle_step = first_step_ + generation / count * plan_.period_steps;
  Update out;
  out.generation = first_generation_ + generation;
  out.first_step = cycle_step + planned.first_step;
  out.last_step = cycle_step + planned.last_step;
  out.apply_step = std::max(first_apply_, cycle_step + planned.apply_step);
  return out;
}

void PlanFollower::reach(std::uint64_t step, std::vector<Update>& updates) {
  while (!generations_ || decided_ < *generations_) {
    Update decided = update(decided_);
    if (decided.first_step > step) return;
    for (decided.bucket = 0; decided.bucket < ready_.size(); ++decided.bucket) updates.push_back(decided);
    ++decided_;
  }
}

// Whether `cursor` has come to the end of an ended plan; at the end of a list it goes on with the next cycle.
bool PlanFollower::finished(Cursor& cursor, std::size_t link) const {
  const auto& list = plan_.links[link];
  if (cursor.next == list.size()) cursor.next = 0, ++cursor.cycle;
  return list.empty() || (generations_ && cursor.cycle * plan_.generations.size() >= *generations_);
}

void PlanFollower::take(std::vector<Launch>& launches) {
  for (std::size_t link = 0; link < cursors_.size(); ++link) {
    Cursor& cursor = cursors_[link];
    while (!finished(cursor, link)) {
      const auto& part = plan_.links[link][cursor.next];
      const Update when = update(cursor.cycle * plan_.generations.size() + part.generation);
      if (ready_[part.bucket] <= when.last_step) break;
      launches.push_back(
          {0, static_cast<model::LinkIndex>(link), part.bucket, when.generation, part.offset, part.bytes});
      ++cursor.next;
    }
  }
}

PlanFollower::End PlanFollower::end() {
  const std::uint64_t count = plan_.generations.size();
  if (!generations_) generations_ = std::max<std::uint64_t>(1, (decided_ + count - 1) / count) * count;
  const Update last = update(*generations_ - 1);
  return {last.last_step + 1, last.generation + 1, last.apply_step};
}

bool PlanFollower::done() const {
  if (!generations_ || decided_ < *generations_) return false;
  for (std::size_t link = 0; link < cursors_.size(); ++link) {
    Cursor cursor = cursors_[link];
    if (!finished(cursor, link)) return false;
  }
  return true;
}

}  // namespace deft::sched
