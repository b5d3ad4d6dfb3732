// Feeds the reader of plan messages with whatever libFuzzer makes up. A plan that is accepted must survive being written and read again.
#include <cstdint>
#include <cstdlib>

#include "proto/plan_message.h"

namespace {

using namespace deft;  // NOLINT(google-build-using-namespace): the messages and their conversions

const std::vector<std::uint64_t> kBucketBytes{8, 64};

void require(bool holds) {
  if (!holds) std::abort();
}

// No fuzzer guesses a hash: the right one lets it reach what is behind that check.
std::uint64_t hash_of(const deft::Plan& message) {
  model::Plan plan;
  plan.cycles.usual = {message.period_steps(), {}};
  for (const auto& g : message.generations())
    plan.cycles.usual.generations.push_back({g.first_step(), g.last_step(), g.apply_step()});
  for (const auto& own : message.own_generations()) {
    model::UpdateCycle& cycle = plan.cycles.own[own.bucket()];
    cycle = {message.period_steps(), {}};
    for (const auto& g : own.generations())
      cycle.generations.push_back({g.first_step(), g.last_step(), g.apply_step()});
  }
  return plan.hash();
}

void check_plan(const Result<messages::ScheduledPlan>& dated) {
  if (!dated) return require(!dated.error().what.empty());
  const auto again = messages::from_message(messages::to_message(*dated), kBucketBytes);
  require(again.has_value() && *again == *dated);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  deft::Plan message;
  if (!message.ParseFromArray(data, static_cast<int>(size))) return 0;
  message.set_hash(hash_of(message));
  check_plan(messages::from_message(message, kBucketBytes));
  return 0;
}
