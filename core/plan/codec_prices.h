// What the codecs of a profile's buckets take of the links' time in a step, and what they leave out.
//
//   CodecPrices prices(profile, limits);                  // fresh updates in every step
//   CodecPrices prices(profile, limits, rates);           // bucket b is sent rates[b] times a step
//   const CodecChoice choice(prices.options());
//   prices.error_of(codecs); prices.error_bound(step_us); // of all gradients, in one encoding
#pragma once

#include <cstddef>
#include <vector>

#include "core/model/profile.h"
#include "core/plan/codec_choice.h"
#include "core/plan/plan_limits.h"

namespace deft::plan {

class CodecPrices {
 public:
  using Codecs = std::vector<model::CodecIndex>;          // [bucket]
  using Options = std::vector<std::vector<CodecOption>>;  // [bucket][codec]

  // `profile` outlives this object. There is a codec that is allowed.
  CodecPrices(const model::Profile& profile, const PlanLimits& limits, std::vector<double> rates = {});

  // The time of a bucket if all links share it.
  [[nodiscard]] Options options() const;
  // No choice of codecs that the links can carry in `step_us` leaves out less, whatever the schedule.
  [[nodiscard]] double error_bound(double step_us) const;
  [[nodiscard]] double error_of(const Codecs& codecs) const;
  // The part of one bucket in the sum of the errors, weighted by its bytes.
  [[nodiscard]] double error_of(model::BucketIndex bucket, model::CodecIndex codec) const;
  // The last codec that is allowed, wherever one may encode anything.
  [[nodiscard]] Codecs last_codecs() const;

 private:
  template <typename TimeOf>
  [[nodiscard]] Options options_by(const TimeOf& time_of) const;
  [[nodiscard]] const model::ProfileBucket& bucket_of(model::BucketIndex bucket) const {
    return profile_.buckets[profile_.buckets.size() - 1 - bucket];
  }

  const model::Profile& profile_;
  const std::size_t last_;  // codec that is allowed
  const double jitter_margin_;
  const std::vector<double> rates_;  // empty: 1 of all
  double bytes_ = 0;                 // of all gradients
};

}  // namespace deft::plan
