#include "core/replay/explain.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>

#include "core/model/link_names.h"
#include "core/replay/daemon_cpu.h"
#include "core/replay/links_traffic.h"
#include "core/replay/other_programs.h"
#include "core/replay/replay.h"

namespace deft::replay {
namespace {

// Links of which nobody counts what each node has sent: a slow NIC there would not have been found. `of_pushes`: in their place those
// with servers, of which nobody counts what each node has received.
std::string silent_links(const JobTrace& job, bool of_pushes) {
  std::string silent;
  const auto& names = job.nodes.front().trace.header.links;
  for (std::size_t link = 0; link < names.size(); ++link) {
    const auto number = static_cast<std::uint16_t>(link);
    const auto has_sent = [&](const AlignedNode& node) { return traffic_of(node.trace, number).bytes > 0; };
    const bool counts = !model::is_loopback(names[link]) && std::ranges::any_of(job.nodes, has_sent);
    const bool pushes = knows_pushes(job, number);
    if (of_pushes ? pushes : !counts && !pushes) silent += (silent.empty() ? "" : ", ") + names[link];
  }
  return silent;
}

// Names threads and NICs as far as single ones are known.
std::string whose_communication(const JobTrace& job) {
  if (const auto busy = busy_thread(job)) return ", and " + sentence_of(*busy, job);
  if (const std::string silent = silent_links(job, false); !silent.empty())
    return ". " + silent + " tells nothing of single NICs, so a slow one would not be seen";
  if (const std::string silent = silent_links(job, true); !silent.empty())
    return ". " + silent + " tells only what NICs send, so one that receives slowly would not be seen";
  if (job.node_count() > job.nodes.size())
    return ", alike on the " + std::to_string(job.nodes.size()) + " of " + std::to_string(job.node_count()) +
           " nodes whose traces are here";
  if (job.node_count() == 2)
    return ", alike in both directions. With two nodes, a NIC that is slow in both is not seen";
  return ", on all nodes alike";
}

// What replay cannot tell of this job.
std::string doubt_of(const Explanation& explanation) {
  const double measured_us = explanation.measured_step_us;
  if (explanation.error_us() <= kDoubt * measured_us) return "";
  std::array<char, 160> text{};
  std::snprintf(text.data(), text.size(),
                "Replay errs by %.0f %% with this job: it says %.1f ms a step instead of %.1f ms",
                100 * explanation.error_us() / measured_us, explanation.replayed_step_us / 1000, measured_us / 1000);
  return std::string(text.data()) + ". There is something that replay does not know, so the causes are less sure";
}

// What a job whose parts are all in order could still win. `left_out`: causes that would save less than replay errs by.
Cause none(const TimeShares& shares, const JobTrace& job, std::size_t left_out) {
  if (left_out > 0)
    return {.cause = "none",
            .where = "",
            .what = "nothing is sure: whatever replay suspects would save less than replay errs by with this job"};
  const double step_us = std::max(1.0, shares.step_us());
  if (shares.communication_us <= kLeastGain * step_us)
    return {.cause = "none",
            .where = "",
            .what = "nothing stands out: " + percent(shares.compute_us / step_us) + " of a step is compute"};
  return {.cause = "none",
          .where = "",
          .what = "nothing stands out: " + percent(shares.communication_us / step_us) +
                  " of a step is communication that compute cannot hide" + whose_communication(job)};
}

// Appends the causes, the worst first. Returns how many are not told because replay errs by more than they would save.
std::size_t find_causes(const Evidence& evidence, Explanation& explanation) {
  std::size_t left_out = 0;
  const auto add = [&](std::vector<Cause> causes, double least) {
    for (Cause& cause : causes) {
      if (cause.share < least) continue;
      if (cause.gain_us < cause.error_us)
        ++left_out;
      else
        explanation.causes.push_back(std::move(cause));
    }
  };
  const auto replayed = [&](std::vector<Cause> causes) {
    for (Cause& cause : causes) cause.error_us = explanation.error_us();
    return causes;
  };
  for (auto find : {slow_workers, slow_links, slow_parameter_servers, few_servers})
    add(replayed(find(evidence)), kLeastGain);
  add(unsteady_workers(evidence), kLeastGain);  // they compare means
  add(costly_stages(evidence, explanation.shares), kLeastGain);
  for (auto find : {idle_links, wrong_sizes, large_credit, late_gradients})
    add(replayed(find(evidence)), kLeastReplayedGain);
  std::ranges::stable_sort(explanation.causes, std::greater<>(), &Cause::gain_us);
  return left_out;
}

}  // namespace

Result<Explanation> explain(const JobTrace& job, const MeasuredJob& measured) {
  const auto now = replay(measured, {});
  if (!now) return tl::unexpected(now.error());
  Explanation explanation{.causes = {},
                          .shares = time_shares(job),
                          .measured_step_us = now->measured_step_us_p50,
                          .replayed_step_us = now->step_us_p50};
  explanation.doubt = doubt_of(explanation);
  const std::size_t left_out =
      find_causes({job, measured, now->step_us_p50, launches_of(job.leader()->trace)}, explanation);
  if (explanation.causes.empty()) {
    explanation.causes.push_back(none(explanation.shares, job, left_out));
    explanation.causes.front().error_us = explanation.error_us();
  }
  explanation.notes = uncompared_nodes(job);
  const auto is_told = [&](const std::string& words) {
    return std::ranges::any_of(explanation.causes,
                               [&](const Cause& cause) { return cause.what.find(words) != std::string::npos; });
  };
  if (const auto busy = busy_thread(job); busy && !is_told(sentence_of(*busy, job)))
    explanation.notes.push_back(sentence_of(*busy, job));
  if (const std::string note = note_of_other_programs(job); !note.empty() && !is_told("other programs"))
    explanation.notes.push_back(note);
  return explanation;
}

}  // namespace deft::replay
