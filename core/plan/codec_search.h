// Searches codecs for fresh updates in every step, with as few bits given up as suffice.
//
//   CodecSearch search(profile, limits);      // both must outlive it; there is a codec that is allowed
//   auto coded = search.run();                // waits at most the tolerance of `limits`, or has the fewest bits
//   auto waiting = search.give_bits_back();   // waits as long as the fewest bits do, and gives up less
//
// What links carry is a sum over buckets, and each bucket has one codec: a multiple-choice knapsack (core/plan/codec_choice.h).
// The time that it may take is searched for, because urgent buckets leave gaps on the links.
#pragma once

#include <optional>
#include <vector>

#include "core/model/profile.h"
#include "core/plan/codec_choice.h"
#include "core/plan/plan_limits.h"
#include "core/plan/problem.h"
#include "core/plan/timetable.h"

namespace deft::plan {

class CodecSearch {
 public:
  CodecSearch(const model::Profile& profile, const PlanLimits& limits);

  // A timetable that leaves out at most limits.codecs.negligible_error and gives the links room, if there is one. Else, of the
  // timetables that wait at most the tolerance of `limits`, the one whose encodings leave out least; if none waits so little, the
  // timetable of the last codec that is allowed. The plan has its codecs, their error, and the bound of the error.
  std::optional<Timetable> run();
  // Call it if run() gave a timetable that waits longer than its limit. It searches the timetables that wait no longer than that one.
  std::optional<Timetable> give_bits_back();

 private:
  using Codecs = std::vector<model::CodecIndex>;
  struct Candidate {
    Codecs codecs;
    Timetable table;
  };
  using Options = std::vector<std::vector<CodecOption>>;
  [[nodiscard]] Options options() const;
  [[nodiscard]] Options bounding_options() const;
  template <typename TimeOf>
  [[nodiscard]] Options options_by(const TimeOf& time_of) const;
  [[nodiscard]] std::optional<Candidate> attempt(const Codecs& codecs);
  [[nodiscard]] std::optional<Candidate> attempt_in_time(const Codecs& codecs);
  [[nodiscard]] Codecs codecs_within(double budget_us) const;
  [[nodiscard]] Codecs last_codecs() const;
  [[nodiscard]] std::optional<Candidate> with_fewest_bits();
  [[nodiscard]] bool is_enough(const Candidate& candidate) const { return candidate.table.plan.step_us <= enough_us_; }
  void make_room(Candidate& candidate);
  [[nodiscard]] Candidate with_most_bits(Candidate fewest);
  void refine(Candidate& candidate);
  [[nodiscard]] Timetable best();
  [[nodiscard]] Timetable timetable_of(Candidate found) const;
  [[nodiscard]] double error_of(model::BucketIndex bucket, model::CodecIndex codec) const;
  [[nodiscard]] double error_of(const Codecs& codecs) const;  // of all gradients

  const model::Profile& profile_;
  PlanLimits limits_;
  std::size_t buckets_;
  std::size_t last_;  // codec that is allowed
  Problem exact_;
  double enough_us_;
  CodecChoice choice_;
  double bytes_ = 0;  // of all gradients
  double effort_ = 0;
  std::optional<Candidate> fewest_;  // of run()
};

}  // namespace deft::plan
