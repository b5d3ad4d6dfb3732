// The Preserver: does a plan train as well as one update a step would?
//
// It lets the walk (walk.h) run through a plan's cycle twice, once with the plan's merged updates and once with an update
// each step, and compares the expected losses: their ratio must not be below 1 - epsilon. A plan that fails is made again
// with more capacity (more updates, bought with waiting) or, where staleness alone is at fault, with less staleness.
//
// Staleness. The published model ignores it. Close to the target the loss is a bowl, s - S* = x^2 up to scale, and one
// update pulls x back by the share a = eta * |G|^2 / (2 * (s - S*)). With gradients that are d updates old the walk is a
// delayed linear one, dx = -a x(t - d) dt + noise, whose stationary variance is (1 + sin(a d)) / cos(a d) times that
// without delay, and which diverges from a d = pi / 2 on. That factor multiplies the noise of the plan's updates. The
// direction that diverges first bends more than that mean over all of them says: kSteepest times as much.
//
// Buckets with dates of their own. Each brings a share of the gain, and only what is late is stale. How much of the
// gradient is in a bucket is not measured: its share of the bytes stands in for it. In dense layers, which are late
// first, it was half of that or less.
#pragma once

#include <cstdint>
#include <functional>

#include "core/base/status.h"
#include "core/model/plan.h"
#include "core/preserve/walk.h"

namespace deft::preserve {

struct Judgement {
  double expected_original = 0;  // after one cycle of one update a step
  double expected_plan = 0;      // after one cycle of the plan
  double expected_fresh = 0;     // the same, had the plan no staleness
  double ratio = 1;              // original / plan: below 1, the plan trains worse
  double ratio_fresh = 1;
  double noise = 1;  // factor that staleness puts on the variance of an update; infinite: it diverges
  bool accepted = false;
  bool accepted_fresh = false;
};

// The pull of the steepest direction, as a multiple of the mean one. With it everything one update late is refused where
// that destroyed training (bench/lateness), and the widest matrix merged over two or five steps is not, which works.
inline constexpr double kSteepest = 5;

// Updates that are applied between the computation of a gradient and its own update: a mean over steps and bytes.
double staleness_in_updates(const model::Plan& plan);

// (1 + sin(a d)) / cos(a d); infinite from a d = pi / 2 on.
double staleness_noise(double pull, double delay_updates);

// Whether a plan can be judged by this walk: a loss above its target, and statistics that are finite and not negative.
Result<void> check_walk(const Walk& walk);

// Whose staleness the model judges. Where the loss is watched, what makes a part of the bytes late can be tried: the model
// knows neither the curvature nor which directions are late. With nearly everything late there may be no second try.
enum class Staleness { kOfAllPlans, kOfAlmostAllBytes };
inline constexpr double kAlmostAllBytes = 0.9;

// `walk` as check_walk wants it.
Judgement judge(const model::Plan& plan, const Walk& walk, MergeScale merging = MergeScale::kSum, double epsilon = 0.01,
                Staleness judged = Staleness::kOfAllPlans);

// What the planner is asked for.
struct Request {
  double capacity = 1;  // compute time that communication may count on, as a factor
  std::uint32_t max_staleness_steps = 16;
};
using Planner = std::function<Result<model::Plan>(const Request&)>;

struct Preserved {
  model::Plan plan;
  Judgement judgement;
  Request request;        // what the plan was made for
  unsigned attempts = 1;  // plans that were made
};

inline constexpr unsigned kMostAttempts = 10;  // after the first
inline constexpr double kMoreCapacity = 1.15;  // an attempt

// Plans until a plan is accepted or the attempts run out; then the last plan comes back with its judgement, unaccepted.
Result<Preserved> preserve(const Planner& planner, const Walk& walk, Request request = {},
                           MergeScale merging = MergeScale::kSum, double epsilon = 0.01,
                           Staleness judged = Staleness::kOfAllPlans);

}  // namespace deft::preserve
