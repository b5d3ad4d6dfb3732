#include "core/model/backward.h"

namespace deft::model {

std::vector<double> ready_times(const Profile& profile) {
  std::vector<double> times;
  double at_us = 0;
  for (std::size_t i = 0; i < profile.buckets.size(); ++i)
    times.push_back(at_us += profile.buckets[produced(profile, i)].backward_us);
  return times;
}

std::size_t fastest_link(const Profile& profile) {
  std::size_t best = 0;
  const auto time_us = [&](std::size_t link) {
    double sum = 0;
    for (std::size_t i = 0; i < profile.buckets.size(); ++i) sum += profile.comm_us(i, link);
    return sum;
  };
  for (std::size_t link = 1; link < profile.links.size(); ++link)
    if (time_us(link) < time_us(best)) best = link;
  return best;
}

}  // namespace deft::model
