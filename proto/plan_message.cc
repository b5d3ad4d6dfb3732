#include "proto/plan_message.h"

#include <cmath>
#include <cstdio>
#include <string>

namespace deft::messages {
namespace {

std::string hex(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

Result<void> check_time(const char* field, double us) {
  if (std::isfinite(us) && us >= 0 && us <= 1e15) return {};
  return fail(ErrorKind::kInvalid, std::string("plan.") + field + ": " + std::to_string(us) + " is no time");
}

Result<void> check(const model::Plan& plan, std::uint64_t hash) {
  if (auto ok = check_time("step_us", plan.step_us); !ok) return ok;
  if (auto ok = check_time("compute_us", plan.compute_us); !ok) return ok;
  if (auto ok = model::check_cycles(plan.cycles, plan.bucket_bytes.size()); !ok) return ok;
  if (plan.hash() == hash) return {};
  return fail(ErrorKind::kMismatch,
              "plan.hash: the sender says " + hex(hash) + ", and here the plan's hash is " + hex(plan.hash()),
              "install the same version of Deft on all nodes");
}

using Generations = google::protobuf::RepeatedPtrField<deft::PlanGeneration>;

void write(const std::vector<model::PlanGeneration>& generations, Generations& message) {
  for (const auto& generation : generations) {
    deft::PlanGeneration& to = *message.Add();
    to.set_first_step(generation.first_step);
    to.set_last_step(generation.last_step);
    to.set_apply_step(generation.apply_step);
  }
}

std::vector<model::PlanGeneration> read(const Generations& message) {
  std::vector<model::PlanGeneration> generations;
  for (const auto& from : message) generations.push_back({from.first_step(), from.last_step(), from.apply_step()});
  return generations;
}

}  // namespace

deft::Plan to_message(const ScheduledPlan& dated) {
  deft::Plan message;
  message.set_epoch(dated.epoch);
  message.set_activation_step(dated.activation_step);
  message.set_period_steps(dated.plan.cycles.period_steps());
  write(dated.plan.cycles.usual.generations, *message.mutable_generations());
  for (const auto& [bucket, cycle] : dated.plan.cycles.own) {
    deft::PlanOwn& own = *message.add_own_generations();
    own.set_bucket(bucket);
    write(cycle.generations, *own.mutable_generations());
  }
  message.set_hash(dated.plan.hash());
  message.set_step_us(dated.plan.step_us);
  message.set_compute_us(dated.plan.compute_us);
  return message;
}

Result<ScheduledPlan> from_message(const deft::Plan& message, std::span<const std::uint64_t> bucket_bytes) {
  ScheduledPlan dated{message.epoch(), message.activation_step(), {}};
  model::Plan& plan = dated.plan;
  plan.cycles.usual = {message.period_steps(), read(message.generations())};
  for (const auto& own : message.own_generations())
    if (!plan.cycles.own.emplace(own.bucket(), model::UpdateCycle{message.period_steps(), read(own.generations())})
             .second)
      return fail(ErrorKind::kInvalid, "plan.own_generations: bucket " + std::to_string(own.bucket()) + " comes twice");
  plan.bucket_bytes.assign(bucket_bytes.begin(), bucket_bytes.end());
  plan.step_us = message.step_us();
  plan.compute_us = message.compute_us();
  if (auto ok = check(plan, message.hash()); !ok) return tl::unexpected(ok.error());
  return dated;
}

}  // namespace deft::messages
