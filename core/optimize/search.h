// Looks for settings with which a traced job would be faster, by replaying it with other ones.
//
//   const auto found = search(*measured, {.policies = exact_policies()}, [&] { return (until_us - clock.now_us()) / budget_us; });
//   if (found->worth_it()) write(found->settings);      // policy, bucketing, sizes, links: options of Deft
//
// Each policy is first replayed with the traced sizes and with a coarse grid of others. From the best of all these the search climbs:
// it changes one size or two at a time, up and down a ladder of powers of two, as long as steps get shorter. Then it climbs again from
// the same places with fewer links, and with each codec that may be chosen. A job on fewer links has fewer to fall back on, and
// codecs round gradients. So each must win kLeastGain beside the best settings without it, also by whole replays. Of a codec that does, it
// leaves as many small tensors exact as make no step longer.
// Passes of a user may propose settings, once the best ones of each kind are known, and it climbs from these, too.
// If the traced policy delays updates, settings count only if it makes as many updates with them. All this is done by replays of few
// steps (dPRO's partial replay), but plans come into force later and need whole ones. At the end whole replays decide among the best.
// The last part of the time is kept for these. No replay goes on when the time is over.
// Replay is deterministic, so the same trace gives the same settings, unless time runs out. What replay gets wrong of the traced job
// itself is the error of the promise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/replay/measured_job.h"
#include "core/replay/memory_peak.h"

namespace deft::optimize {

struct Settings {
  std::string policy;
  std::uint64_t bucket_bytes = 0;  // of equal buckets; 0: the buckets of the trace
  std::uint64_t partition_bytes = 0;
  std::uint64_t credit_bytes = 0;
  std::string compression = {};         // the name of one of SearchLimits::codecs; empty: as traced
  std::uint64_t codec_min_bytes = 0;    // tensors of fewer bytes are not encoded; 0: as traced
  std::vector<std::string> links = {};  // that the job uses; empty: all that it used
  auto operator<=>(const Settings&) const = default;

  // The options that differ from `traced`, with their values.
  [[nodiscard]] std::map<std::string, std::string> options(const Settings& traced) const;
};

inline constexpr double kLeastGain = 0.02;  // of a step: less is not worth another setting
// The gain that replay must promise, as long as nobody has tried the settings. Replay errs more with another policy, bucketing or codec
// than with the traced ones, and promises too much of most of them (docs/benchmarks-tracing.md).
inline constexpr double kLeastPromiseOfSizes = 0.03, kLeastPromise = 0.06, kFurtherError = 0.04;

inline constexpr double kForWholeReplays = 0.3;  // of the time of a search

// What a user's pass wants to be tried.
struct Proposal {
  std::string pass;  // its name
  Settings settings;
};
// The proposals of all passes, knowing the best settings so far and their step by replay. An error ends the search.
using Passes = std::function<Result<std::vector<Proposal>>(const Settings& best, double step_us)>;

// Shortcuts of the search. Each can be switched off, and bench/optimize compares.
struct Speedups {
  bool brief_replays = true;    // of few steps, until the end
  bool used_sizes_only = true;  // sizes that a policy does not look at stay as traced
  // Fewer and larger buckets, whose replays cost least, come first. Thousands of traced buckets are no start.
  bool coarse_first = true;
};

struct SearchLimits {
  std::vector<std::string> policies;  // that may be chosen, beside the traced one
  std::size_t climbed = 6;            // settings of the grid from which it climbs
  bool keeps_buckets = false;         // only what can change in a running job
  std::vector<model::CodecCost> codecs =
      {};                            // that may encode all gradients. One with a wire_share of 1 is none: exact
  replay::MemoryWhatIf memory = {};  // with which the job is to run: memory_fit.h
  Speedups speedups = {};
  std::function<void(const Settings&, double step_us)> tried = {};  // told of each replay
  Passes passes = {};  // asked until they propose nothing that leads to shorter steps; empty: there are none
};

// What has become of the proposals of a pass.
struct PassResult {
  std::size_t proposals = 0;
  double best_us = 0;  // the shortest step of them; 0: the job cannot run with any, or the time was over
};

struct Found {
  Settings traced, settings;
  // Steps, by replay and with SearchLimits::memory. 0: the time was over before the traced job was replayed.
  double traced_us = 0;
  double step_us = 0;
  double error = 0;  // of the replay of the traced job: a share
  std::size_t replays = 0;
  bool ran_out_of_time = false;  // before better settings, or the traced ones, were replayed as a whole
  std::map<std::string, PassResult> passes = {};  // by name
  std::size_t passes_asked = 0;                   // so many times

  // True if the gain is above what replay may err by.
  [[nodiscard]] bool worth_it() const;
  // True if it is above what replay errs by with the traced job. Then a run of the job with these settings can tell.
  [[nodiscard]] bool worth_trying() const;
  // The gain, as a share of the traced step, that worth_it() asks for.
  [[nodiscard]] double least_promise() const;
};

// Why no option could let the job run on fewer of its links. Empty: one could.
std::string why_links_stay(const replay::MeasuredJob& measured);

// All policies whose updates are those of plain data-parallel training, but `auto`, which chooses among them itself.
std::vector<std::string> exact_policies();

// `time_left`: the share of the time that is left, from 1 to 0. kForWholeReplays of it is kept for the end, and the search without codecs
// and that with each of them get equal shares of the rest.
// kInvalid if the traced job cannot be replayed, or cannot change while it runs although limits.keeps_buckets. Also an error of the passes.
Result<Found> search(const replay::MeasuredJob& measured, const SearchLimits& limits,
                     const std::function<double()>& time_left);

// The step time of the job with these settings, of which `codecs` has the codec; 0 if it cannot run with them, or if it was stopped.
double replayed_us(const replay::MeasuredJob& measured, const Settings& settings,
                   const std::vector<model::CodecCost>& codecs = {}, bool briefly = false,
                   const std::function<bool()>& is_stopped = {});

}  // namespace deft::optimize
