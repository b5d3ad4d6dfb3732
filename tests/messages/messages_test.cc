// A plan through its protobuf message and back: nothing is lost, and what is wrong is refused by its field's name.
#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <limits>

#include "core/plan/planner.h"
#include "proto/plan_message.h"
#include "tests/plan/random_profile.h"

namespace deft::messages {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

template <typename Message>
Message over_the_wire(const Message& message) {
  Message out;
  RC_ASSERT(out.ParseFromString(message.SerializeAsString()));
  return out;
}

std::vector<std::uint64_t> bucket_bytes(const model::Profile& profile) {
  std::vector<std::uint64_t> out;
  for (auto bucket = profile.buckets.rbegin(); bucket != profile.buckets.rend(); ++bucket) out.push_back(bucket->bytes);
  return out;
}

ScheduledPlan any_dated(const model::Profile& profile) {
  const auto plan = plan::find_plan(profile, {});
  RC_ASSERT(plan.has_value());
  const auto any = [] { return *rc::gen::arbitrary<std::uint64_t>(); };
  return {any(), any(), *plan};
}

RC_GTEST_PROP(PlanMessage, LosesNothing, ()) {
  const auto profile = any_profile({.most_buckets = 12});
  const auto dated = any_dated(profile);
  const auto again = from_message(over_the_wire(to_message(dated)), bucket_bytes(profile));
  if (!again) RC_FAIL(again.error().message());
  RC_ASSERT(*again == dated);
}

// Whatever is changed in a plan, it is refused: as no plan at all or as another than its hash says.
RC_GTEST_PROP(PlanMessage, AChangedPlanIsRefused, ()) {
  const auto profile = any_profile({.most_buckets = 6});
  auto message = to_message(any_dated(profile));
  const auto delta = *rc::gen::inRange(1U, 1000U);
  const auto g = *rc::gen::inRange(0, message.generations_size());
  auto& generation = *message.mutable_generations(g);
  switch (*rc::gen::inRange(0, 5)) {
    case 0: message.set_period_steps(message.period_steps() + delta); break;
    case 1: generation.set_first_step(generation.first_step() + delta); break;
    case 2: generation.set_last_step(generation.last_step() + delta); break;
    case 3: generation.set_apply_step(generation.apply_step() + delta); break;
    default: message.set_hash(message.hash() ^ delta); break;
  }
  RC_ASSERT(!from_message(message, bucket_bytes(profile)).has_value());
}

TEST(PlanMessage, NamesTheFieldAtFault) {
  const std::vector<std::uint64_t> bytes{8, 8};
  const model::UpdateCycles cycles{{2, {{0, 0, 2}, {1, 1, 3}}}, {{1, {2, {{0, 1, 2}}}}}};
  const ScheduledPlan good{3, 100, {cycles, 5, 4, {8, 8}}};
  const auto says = [&](auto change) {
    auto message = to_message(good);
    change(message);
    const auto dated = from_message(message, bytes);
    return dated ? std::string("fine") : dated.error().message();
  };
  EXPECT_EQ(says([](auto&) {}), "fine");
  EXPECT_THAT(says([](auto& m) { m.mutable_own_generations(0)->set_bucket(7); }),
              StartsWith("plan.own_generations: of bucket 7"));
  EXPECT_THAT(says([](auto& m) { m.mutable_generations(1)->set_apply_step(1); }),
              StartsWith("plan.generations[1].apply_step: "));
  EXPECT_THAT(says([](auto& m) { m.set_step_us(-1); }), StartsWith("plan.step_us: -1"));
  EXPECT_THAT(says([](auto& m) { m.set_compute_us(std::numeric_limits<double>::quiet_NaN()); }),
              StartsWith("plan.compute_us: "));
  EXPECT_THAT(says([](auto& m) { m.set_hash(1); }), HasSubstr("plan.hash: the sender says 0000000000000001"));
  EXPECT_THAT(says([](auto& m) { m.Clear(); }), StartsWith("plan.period_steps: 0"));
}

}  // namespace
}  // namespace deft::messages
