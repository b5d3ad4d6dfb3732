#include "daemon/node/plan_records.h"

namespace deft::daemon {
namespace {

using Dates = std::vector<model::PlanGeneration>;

// The dates of a tensor, which all of its buckets must have; null if they differ.
const Dates* dates_of(std::uint32_t tensor, const model::Plan& plan, const Gradients& gradients) {
  const Dates* dates = nullptr;
  for (const auto bucket : gradients.map().buckets_of(tensor)) {
    const Dates& here = plan.cycles.of(bucket).generations;
    if (dates != nullptr && *dates != here) return nullptr;
    dates = &here;
  }
  return dates;
}

void add_records(const shm::PlanRecord& head, const Dates& dates, std::vector<shm::Record>& records) {
  records.emplace_back(head);
  for (const auto& generation : dates)
    records.emplace_back(shm::PlanGenerationRecord{.group = head.group,
                                                   .first_step = generation.first_step,
                                                   .last_step = generation.last_step,
                                                   .apply_step = generation.apply_step});
}

}  // namespace

Result<std::vector<shm::Record>> plan_records(const wire::PlanOrder& order, const Gradients& gradients) {
  shm::PlanRecord head;
  head.group = order.group;
  head.epoch = order.epoch;
  head.activation_step = order.activation_step;
  head.cycle_steps = order.plan.cycles.period_steps();
  std::vector<shm::Record> records;
  const Dates* open = nullptr;  // of the tensors that `head` counts
  for (std::uint32_t tensor = 0; tensor < gradients.specs().size(); ++tensor) {
    const Dates* const dates = dates_of(tensor, order.plan, gradients);
    if (dates == nullptr)
      return fail(ErrorKind::kViolation,
                  "the leader's plan updates parts of '" + gradients.specs()[tensor].name + "' at different times");
    if (open != nullptr && *open != *dates) {
      add_records(head, *open, records);
      head.first_tensor = tensor;
      head.tensors = 0;
    }
    open = dates;
    head.generations = static_cast<std::uint32_t>(dates->size());
    ++head.tensors;
  }
  if (open != nullptr) add_records(head, *open, records);
  if (records.size() > kMostPlanRecords)
    return fail(ErrorKind::kInvalid,
                "the plan is " + std::to_string(records.size()) + " records long, and " +
                    std::to_string(kMostPlanRecords) + " is the most",
                "give DEFT_PLAN shorter cycles, or the same cycle to tensors that follow each other");
  return records;
}

}  // namespace deft::daemon
