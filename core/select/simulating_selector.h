// Compares policies by simulating them, for the policy `auto`.
//
//   setup.selector = select::make_selector(select::When::kInBackground);   // training: a thread of its own simulates
//   setup.selector = select::make_selector(select::When::kAtOnce);         // simulations: deterministic
//
// Each candidate runs some steps in virtual time (core/sim) on the measured profile, without jitter. If the question asks for it, the
// search goes on from the best policy with a credit: a coordinate descent over the sizes of parts and credit, which changes one or both
// by a factor of 4, then 2, as long as a step gets 1 % shorter.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/sched/policy_selector.h"

namespace deft::select {

enum class When {
  kAtOnce,        // ask() simulates, and the next take() has the answer
  kInBackground,  // a thread with a low priority simulates. The destructor waits for some thousand events at most
};

// `has_priority_channels`: small launches overtake others on all links, as on gloo's.
std::shared_ptr<sched::PolicySelector> make_selector(When when, bool has_priority_channels = false);

// The forecast of one candidate. kInvalid if it cannot run with the question's setup, kExhausted if it needs too many events, and
// kUnavailable if `is_stopped`, which may be empty, says so.
Result<sched::PolicyForecast> forecast(const sched::PolicyQuestion& question, const sched::PolicyChoice& candidate,
                                       bool has_priority_channels, const std::function<bool()>& is_stopped = {});

}  // namespace deft::select
