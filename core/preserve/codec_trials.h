// Finds out whether a codec made the loss rise, by what the loss does without it.
//
//   CodecTrials trials({"none", "int8", "int4"});
//   trials.begin(2, rise, step);         // the loss rose under int4: gradients have to be exact from now on
//   trials.gradients_are_exact();        // a plan without codecs is in force
//   trials.take(step, loss);             // each sample
//   if (trials.result() != TrialResult::kOpen) trials.end(), trials.most_codec();   // which codecs may be used now
//
// Exact gradients help if they bring the loss half of the way back to its level. Then the codec stays away for a time, and if they
// help a second time, for the rest of the job: a spike of the loss that goes by itself looks the same, but seldom twice. If the
// loss stays where it is or rises on, something else made it rise, and the codec comes back at once. A loss that falls fast enough
// to be half of the way back at the next look is looked at again.
//
// Each further trial lasts twice as long. So a loss that recovers slowly is seen to recover in a later trial, and if a loss
// rises on for reasons of its own, ever fewer rises are the codec's.
//
// A loss that is not finite takes the codec back at once. It proves nothing, because a single batch may be to blame.
//
// Where a loss often recovers by itself, because the training had only begun or its learning rate rose, nothing is proved.
//
// Pure; not thread-safe.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/model/codec_cost.h"

namespace deft::preserve {

// The level of a loss, and the deviation of one sample from it.
struct LossLevel {
  double mean = 0;
  double deviation = 0;
};

// How the loss rose under a codec.
struct Rise {
  LossLevel from;
  double to = 0;                // the mean of the newest samples; infinite: the loss is not finite any more
  bool may_be_natural = false;  // the training had only begun, or its learning rate rose

  // A single batch may make the loss infinite, and a loss scaler skips its step.
  [[nodiscard]] bool speaks_against_the_codec() const { return !may_be_natural && std::isfinite(to); }
};

// "the loss rose from 0.5 to 0.7".
std::string to_text(const Rise& rise);

enum class TrialResult { kOpen, kHelped, kDidNotHelp };  // by exact gradients

class CodecTrials {
 public:
  static constexpr std::uint64_t kFirstLook = 64;  // steps with exact gradients, in the first trial
  static constexpr std::size_t kSamples = 8;       // at the first look, at least
  static constexpr unsigned kLooks = 3;            // each after twice as many steps and samples
  static constexpr std::uint64_t kWaits = 2;       // for so many first looks a codec stays away that may come back

  // `names`: of the job's codecs, for the text.
  explicit CodecTrials(std::vector<std::string> names = {}) : names_(std::move(names)) {}

  // Does nothing while a trial is open. `codec` is not 0.
  void begin(std::size_t codec, const Rise& rise, std::uint64_t step);
  void gradients_are_exact();
  void take(std::uint64_t step, double loss);

  [[nodiscard]] bool is_open() const { return trial_.has_value(); }  // until end()
  [[nodiscard]] TrialResult result() const { return trial_ ? trial_->result : TrialResult::kOpen; }
  // Acts on the result. Gives the level of the loss now.
  LossLevel end();

  [[nodiscard]] std::size_t most_codec() const { return most_; }  // codecs beyond it may not be used
  [[nodiscard]] bool may_return(std::uint64_t step) const { return return_step_ != 0 && step >= return_step_; }
  void let_return();

  // The newest trial; empty: there was none.
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  struct Trial {
    std::size_t codec;
    Rise rise;
    std::vector<double> losses = {};              // since the rise
    std::optional<std::size_t> first_exact = {};  // of them
    std::uint64_t exact_from_step = 0;            // of that sample
    std::uint64_t step = 0;                       // of the newest
    unsigned looks = 0;
    TrialResult result = TrialResult::kOpen;
    LossLevel now = {};  // at the last look

    [[nodiscard]] std::size_t exact_samples() const { return first_exact ? losses.size() - *first_exact : 0; }
    [[nodiscard]] double top() const;
    TrialResult look();
  };
  [[nodiscard]] std::uint64_t first_look_steps() const;
  [[nodiscard]] std::string name(std::size_t codec) const;
  [[nodiscard]] bool proves_it() const;  // that the trial's codec is the cause
  [[nodiscard]] std::string describe_result() const;

  const std::vector<std::string> names_;
  std::optional<Trial> trial_;
  unsigned ended_ = 0;                             // trials that proved nothing against the codec for good
  std::size_t most_ = model::kMaxCodecs;           // now
  std::size_t most_for_good_ = model::kMaxCodecs;  // of the job
  std::uint32_t suspects_ = 0;                     // bit c: codec c has been found to be the cause once
  std::uint64_t return_step_ = 0;                  // from it on most_ may be most_for_good_ again; 0: it is
  std::string text_;
};

}  // namespace deft::preserve
