// Replays of a traced job with other settings, as search() makes them (search.h): each setting once, and while there is time.
//
//   Replays replays(measured, limits, updates_per_step, time_left);
//   replays.us(settings)                      // a step; 0: the job cannot run so, or the time is over
//   replays.best_as_a_whole(candidate)        // at the end: few steps flatter some settings
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/optimize/search.h"
#include "core/replay/replay.h"

namespace deft::optimize {

// The names of its links that carried something.
std::vector<std::string> links_of(const replay::MeasuredJob& measured);

// kInvalid if the job cannot run with the settings, kUnavailable if `is_stopped` has said yes.
Result<replay::Prediction> predicted(const replay::MeasuredJob& measured, const Settings& settings,
                                     const SearchLimits& limits, bool briefly,
                                     const std::function<bool()>& is_stopped = {});

// Plans need many steps to come into force.
bool delays_updates(const std::string& policy);

struct Candidate {
  Settings settings;
  double us = 0;
};

class Replays {
 public:
  // `updates`: of the traced job, a step. Settings with which plans make fewer are none.
  Replays(const replay::MeasuredJob& measured, const SearchLimits& limits, double updates,
          const std::function<double()>& time_left)
      : measured_(measured), limits_(limits), updates_(updates), time_left_(time_left) {}

  // Settings that were replayed as a whole already.
  void know(const Settings& settings, double us) { known_[settings] = {us, true}; }
  // From now on so much of the time must be left.
  void leave(double share) { kept_ = share; }
  [[nodiscard]] bool have_time() const { return time_left_() > kept_; }

  double us(const Settings& settings);
  // The best of the best ones of the kind of `first` (its codec, what that encodes, its links), by whole replays. Its `us` is 0 if the
  // time was over before one of them was replayed.
  Candidate best_as_a_whole(const Candidate& first);
  [[nodiscard]] std::size_t count() const { return count_; }

 private:
  struct Known {
    double us = 0;
    bool is_whole = false;  // by a whole replay
  };

  // Empty: the time was over before it ended.
  std::optional<double> replayed(const Settings& settings, bool briefly);

  const replay::MeasuredJob& measured_;
  const SearchLimits& limits_;
  const double updates_;
  const std::function<double()>& time_left_;
  double kept_ = 0;
  std::map<Settings, Known> known_;
  std::size_t count_ = 0;
};

}  // namespace deft::optimize
