// Searches codecs for the updates of a plan, with as few bits given up as suffice.
//
//   CodecSearch search(profile, limits);         // fresh updates in every step. There is a codec that is allowed
//   auto coded = search.run();                   // waits at most the tolerance of `limits`, or has the fewest bits
//   auto waiting = search.give_bits_back();      // waits as long as the fewest bits do, and gives up less
//
//   CodecSearch search(profile, limits, late);   // a late plan that has the fewest bits
//   auto full = search.give_late_bits_back(us);  // what its links have room for, in a step of `us` at most
//
// What links carry is a sum over buckets, and each bucket has one codec: a multiple-choice knapsack (core/plan/codec_choice.h).
// The time that it may take is searched for, because urgent buckets leave gaps on the links. Profile and limits outlive a search.
#pragma once

#include <optional>
#include <vector>

#include "core/model/profile.h"
#include "core/plan/codec_choice.h"
#include "core/plan/codec_prices.h"
#include "core/plan/plan_limits.h"
#include "core/plan/problem.h"
#include "core/plan/timetable.h"

namespace deft::plan {

class CodecSearch {
 public:
  CodecSearch(const model::Profile& profile, const PlanLimits& limits);
  CodecSearch(const model::Profile& profile, const PlanLimits& limits, Timetable late);

  // A timetable that leaves out at most limits.codecs.negligible_error and gives the links room, if there is one. Else, of the
  // timetables that wait at most the tolerance of `limits`, the one whose encodings leave out least; if none waits so little, the
  // timetable of the last codec that is allowed. The plan has its codecs, their error, and the bound of the error.
  std::optional<Timetable> run();
  // Call it if run() gave a timetable that waits longer than its limit. It searches the timetables that wait no longer than that one.
  std::optional<Timetable> give_bits_back();
  // No update comes later than in the plan that the search was made with. That plan if its error is negligible, because room on the
  // links is worth more. Its bound counts on the updates that it makes.
  Timetable give_late_bits_back(double most_us);

 private:
  using Codecs = CodecPrices::Codecs;
  struct Candidate {
    Codecs codecs;
    Timetable table;
  };
  [[nodiscard]] std::optional<Candidate> attempt(const Codecs& codecs);
  [[nodiscard]] std::optional<Candidate> attempt_late(const Codecs& codecs);
  [[nodiscard]] std::optional<Candidate> attempt_in_time(const Codecs& codecs);
  [[nodiscard]] Codecs codecs_within(double budget_us) const;
  [[nodiscard]] std::optional<Candidate> with_fewest_bits();
  [[nodiscard]] bool is_enough(const Candidate& candidate) const { return candidate.table.plan.step_us <= enough_us_; }
  void make_room(Candidate& candidate);
  [[nodiscard]] Candidate with_most_bits(Candidate fewest);
  void refine(Candidate& candidate);
  [[nodiscard]] Timetable best();
  [[nodiscard]] Timetable timetable_of(Candidate found) const;

  const model::Profile& profile_;
  PlanLimits limits_;
  const CodecPrices prices_;
  double enough_us_;
  const CodecChoice choice_;
  double effort_ = 0;
  std::optional<Candidate> fewest_;  // of run(), or the late plan
  const bool is_late_ = false;
};

}  // namespace deft::plan
