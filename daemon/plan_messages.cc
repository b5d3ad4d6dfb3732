#include "daemon/plan_messages.h"

namespace deft::daemon {

std::vector<shm::Record> plan_records(std::uint32_t group, const deft::Plan& message) {
  shm::Record record;
  record.kind = shm::RecordKind::kPlan;
  record.group = group;
  record.generation = message.activation_step();
  record.operation = message.epoch();
  record.count = static_cast<std::uint32_t>(message.generations_size());
  record.bytes = message.period_steps();
  std::vector<shm::Record> records{record};
  for (const auto& generation : message.generations()) {
    shm::Record next;
    next.kind = shm::RecordKind::kPlanGeneration;
    next.group = group;
    next.generation = generation.first_step();
    next.operation = generation.last_step();
    next.offset = generation.apply_step();
    records.push_back(next);
  }
  return records;
}

}  // namespace deft::daemon
