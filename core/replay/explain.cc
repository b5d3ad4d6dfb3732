#include "core/replay/explain.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <utility>

#include "core/replay/replay.h"

namespace deft::replay {
namespace {

// What a job whose parts are all in order could still win.
Cause none(const TimeShares& shares) {
  const double step_us = std::max(1.0, shares.step_us());
  char text[160];
  if (shares.communication_us > kLeastGain * step_us)
    std::snprintf(text, sizeof text,
                  "nothing stands out: %.0f %% of a step is communication that compute cannot hide, on all nodes alike",
                  100 * shares.communication_us / step_us);
  else
    std::snprintf(text, sizeof text, "nothing stands out: %.0f %% of a step is compute",
                  100 * shares.compute_us / step_us);
  return {.cause = "none", .where = "", .what = text};
}

}  // namespace

Result<Explanation> explain(const JobTrace& job, const MeasuredJob& measured) {
  const auto now = replay(measured, {});
  if (!now) return tl::unexpected(now.error());
  Explanation explanation{.causes = {},
                          .shares = time_shares(job),
                          .measured_step_us = now->measured_step_us_p50,
                          .replayed_step_us = now->step_us_p50};
  const Evidence evidence{job, measured, now->step_us_p50};
  const auto add = [&](std::vector<Cause> causes, double least) {
    std::ranges::copy_if(causes, std::back_inserter(explanation.causes),
                         [&](const Cause& cause) { return cause.share >= least; });
  };
  for (auto find : {slow_workers, unsteady_workers, slow_links, slow_parameter_servers, few_servers})
    add(find(evidence), kLeastGain);
  add(costly_stages(evidence, explanation.shares), kLeastGain);
  for (auto find : {wrong_sizes, large_credit, late_gradients}) add(find(evidence), kLeastReplayedGain);
  std::ranges::stable_sort(explanation.causes, std::greater<>(), &Cause::gain_us);
  if (explanation.causes.empty()) explanation.causes.push_back(none(explanation.shares));
  return explanation;
}

}  // namespace deft::replay
