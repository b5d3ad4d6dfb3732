#include "daemon/base/loop_meter.h"

#include <algorithm>
#include <string>

namespace deft::daemon {

void LoopMeter::ran(std::string_view what, TimeUs now_us) {
  const TimeUs lasted_us = now_us - mark_us_;
  mark_us_ = now_us;
  if (now_us - window_began_us_ >= kWindowUs) roll(now_us);
  if (lasted_us > this_window_.lasted_us) this_window_ = {what, lasted_us};
  if (lasted_us > longest_.lasted_us) longest_ = {what, lasted_us};
  if (lasted_us < kNotableUs) return;
  TimeUs& longest_of_name = longest_of_[what];
  longest_of_name = std::max(longest_of_name, lasted_us);
}

void LoopMeter::roll(TimeUs now_us) {
  last_window_ = now_us - window_began_us_ < 2 * kWindowUs ? this_window_ : Longest{};
  this_window_ = {};
  window_began_us_ = now_us;
}

nlohmann::json LoopMeter::json(TimeUs now_us) const {
  Longest recent = this_window_.lasted_us > last_window_.lasted_us ? this_window_ : last_window_;
  const TimeUs age_us = now_us - window_began_us_;
  if (age_us >= 2 * kWindowUs) {
    recent = {};
  } else if (age_us >= kWindowUs) {
    recent = this_window_;
  }
  nlohmann::json longest_of = nlohmann::json::object();
  for (const auto& [what, lasted_us] : longest_of_) longest_of[std::string(what)] = lasted_us;
  return {{"turns", turns_.json()},
          {"longest_by_name", std::move(longest_of)},
          {"longest_callback", {{"what", longest_.what}, {"us", longest_.lasted_us}}},
          {"longest_callback_of_late", {{"what", recent.what}, {"us", recent.lasted_us}}}};
}

}  // namespace deft::daemon
