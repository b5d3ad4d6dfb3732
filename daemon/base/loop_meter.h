// Measures an event loop: how long its turns are, and which callback kept it longest.
//
//   meter.turn_began(now_us);              // epoll_wait has returned
//   meter.ran("a timer", now_us);          // after each callback: it ran since the last call
//   meter.turn_ended(now_us);              // before epoll_wait
//
// An event waits for at most one turn, so the turns are the loop's lag. Not thread-safe.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/base/clock.h"
#include "daemon/base/duration_histogram.h"

namespace deft::daemon {

class LoopMeter {
 public:
  static constexpr TimeUs kWindowUs = 60'000'000;  // recent: in the last one or two windows
  static constexpr TimeUs kNotableUs = 1000;       // the longest callback of each name is kept if it took so long

  void turn_began(TimeUs now_us) { turn_began_us_ = mark_us_ = now_us; }
  void ran(std::string_view what, TimeUs now_us);  // `what`: a literal
  void turn_ended(TimeUs now_us) { turns_.add(now_us - turn_began_us_); }

  [[nodiscard]] nlohmann::json json(TimeUs now_us) const;

 private:
  struct Longest {
    std::string_view what = "nothing";
    TimeUs lasted_us = 0;
  };
  void roll(TimeUs now_us);

  DurationHistogram turns_;
  TimeUs turn_began_us_ = 0;
  TimeUs mark_us_ = 0;  // when the last callback ended
  Longest longest_, this_window_, last_window_;
  std::map<std::string_view, TimeUs> longest_of_;  // by name
  TimeUs window_began_us_ = 0;
};

}  // namespace deft::daemon
