// The Preserver judges whether a plan trains as well as one update a step.
//
//   auto preserved = preserve(planner, walk);   // plans until a plan is accepted
//   preserved->judgement.accepted
//
// It lets the walk (walk.h) run through a plan's cycle twice, once with the plan's merged updates and once with one update a
// step, and compares the expected losses. Their ratio must not be below 1 - epsilon. If a plan fails, another plan is made
// with more capacity: compute waits, and so more updates are made. If staleness alone is at fault, the next plan has less
// staleness.
//
// Staleness. The published model ignores it. Close to the target the loss is a bowl, s - S* = x^2 up to scale, and one
// update pulls x back by the share a = eta * |G|^2 / (2 * (s - S*)). With gradients that are d updates old the walk is a
// delayed linear one, dx = -a x(t - d) dt + noise. Its stationary variance is (1 + sin(a d)) / cos(a d) times that of a walk
// without delay, and it diverges from a d = pi / 2 on. That factor multiplies the noise of the plan's updates. The steepest
// direction diverges first; its curvature is assumed to be kSteepest times the mean.
//
// Buckets with different dates. Each bucket brings a share of the gain, and only stale buckets are delayed. Nobody measures
// how much of the gradient is in a bucket, so its share of the bytes is used instead. In dense layers, which become stale
// first, the measured share was half of that or less.
//
// All functions are pure and may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>

#include "core/base/status.h"
#include "core/model/plan.h"
#include "core/preserve/walk.h"

namespace deft::preserve {

// The expected losses with a plan and without, and the decision.
struct Judgement {
  double expected_original = 0;  // after one cycle with one update a step
  double expected_plan = 0;      // after one cycle of the plan
  double expected_fresh = 0;     // after one cycle of the plan without its staleness
  double ratio = 1;              // original / plan; below 1 the plan trains worse
  double ratio_fresh = 1;        // original / fresh
  double noise = 1;              // the factor of staleness on the variance of an update; infinite: training diverges
  bool accepted = false;
  bool accepted_fresh = false;
};

// The pull of the steepest direction, as a multiple of the mean pull. It is chosen by experiment (bench/lateness): the model
// then refuses plans in which everything is one update stale, which destroyed training there, and accepts plans that merge
// only the widest matrix over two or five steps, which trained well.
inline constexpr double kSteepest = 5;

// How many updates are applied between the computation of a gradient and its own update: the mean over steps and bytes.
double staleness_in_updates(const model::Plan& plan);

// (1 + sin(a d)) / cos(a d) for a = `pull` and d = `delay_updates`; infinite from a d = pi / 2 on.
double staleness_noise(double pull, double delay_updates);

// kInvalid unless plans can be judged by `walk`: its loss is above its target, and its statistics are finite and not negative.
Result<void> check_walk(const Walk& walk);

// The plans whose staleness the model judges. The model knows neither the curvature nor which directions are stale. So if the
// loss is watched, a plan in which a part of the bytes is stale may simply be tried. If nearly all bytes are stale, there may
// be no second try.
enum class Staleness { kOfAllPlans, kOfAlmostAllBytes };
inline constexpr double kAlmostAllBytes = 0.9;

// Judges `plan`. `walk` has passed check_walk.
Judgement judge(const model::Plan& plan, const Walk& walk, MergeScale merging = MergeScale::kSum, double epsilon = 0.01,
                Staleness judged = Staleness::kOfAllPlans);

// The limits that the planner is asked to keep.
struct PlanRequest {
  double capacity = 1;  // the time for communication, as a multiple of compute
  std::uint32_t max_staleness_steps = 16;
};
using Planner = std::function<Result<model::Plan>(const PlanRequest&)>;

// The plan that was accepted, or the last one that was tried.
struct Preserved {
  model::Plan plan;
  Judgement judgement;
  PlanRequest request;    // the limits that the plan was made for
  unsigned attempts = 1;  // how many plans were made
};

inline constexpr unsigned kMostAttempts = 10;  // attempts after the first one
inline constexpr double kMoreCapacity = 1.15;  // the factor from one attempt to the next

// Calls `planner` until a plan is accepted. If the attempts run out, the last plan is returned with a judgement that is not
// accepted. An error of `planner` or check_walk is returned.
Result<Preserved> preserve(const Planner& planner, const Walk& walk, PlanRequest request = {},
                           MergeScale merging = MergeScale::kSum, double epsilon = 0.01,
                           Staleness judged = Staleness::kOfAllPlans);

}  // namespace deft::preserve
