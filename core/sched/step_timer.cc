#include "core/sched/step_timer.h"

#include <algorithm>

namespace deft::sched {

double lower_third(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto third = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 3);
  std::nth_element(values.begin(), third, values.end());
  return *third;
}

bool StepTimer::stage_began(Stage stage, std::uint64_t step, TimeUs now_us, TimeUs waited_us) {
  if (stage == Stage::kBackward) {
    if (step == step_) waited_us_ = waited_us;
    return false;
  }
  const bool ends = began_us_ && step == step_ + 1;
  if (ends) {
    const double us = std::max(0.0, static_cast<double>(now_us - *began_us_ - waited_us_ - waited_us));
    steps_us_.add(us);
  }
  step_ = step;
  began_us_ = now_us;
  waited_us_ = 0;
  return ends;
}

double StepTimer::newest_us() const { return ended() == 0 ? 0 : steps_us_.newest(); }

double StepTimer::usual_us() const { return lower_third({steps_us_.begin(), steps_us_.end()}); }

}  // namespace deft::sched
