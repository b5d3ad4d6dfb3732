#include "daemon/plan_messages.h"

namespace deft::daemon {

deft::Plan plan_message(const model::Plan& plan, std::uint64_t epoch, std::uint64_t step) {
  deft::Plan message;
  message.set_epoch(epoch);
  message.set_activation_step(step);
  message.set_period_steps(plan.period_steps);
  for (const auto& generation : plan.generations) {
    auto* const out = message.add_generations();
    out->set_first_step(generation.first_step);
    out->set_last_step(generation.last_step);
    out->set_apply_step(generation.apply_step);
  }
  for (const auto& link : plan.links) {
    auto* const list = message.add_links();
    for (const auto& part : link) {
      auto* const out = list->add_parts();
      out->set_bucket(part.bucket);
      out->set_generation(part.generation);
      out->set_offset(part.offset);
      out->set_bytes(part.bytes);
    }
  }
  message.set_hash(plan.hash());
  return message;
}

Result<model::Plan> plan_of(const deft::Plan& message) {
  model::Plan plan;
  plan.period_steps = message.period_steps();
  for (const auto& generation : message.generations())
    plan.generations.push_back({generation.first_step(), generation.last_step(), generation.apply_step()});
  for (const auto& link : message.links()) {
    auto& list = plan.links.emplace_back();
    for (const auto& part : link.parts())
      list.push_back({part.bucket(), part.generation(), part.offset(), part.bytes()});
  }
  if (plan.hash() != message.hash())
    return fail(ErrorKind::kMismatch, "the leader's plan has another hash than this node computes",
                "install the same version of Deft on all nodes");
  return plan;
}

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
