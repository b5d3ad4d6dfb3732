#include "core/model/fusion.h"

#include <algorithm>

#include "core/model/profile.h"

namespace deft::model {

std::vector<BucketIndex> fused_starts(const Profile& profile, const std::vector<bool>& apart) {
  const std::size_t link = fastest_link(profile);
  const auto ready_us = ready_times(profile);
  std::vector<BucketIndex> starts{0};
  double free_us = 0;  // when the link is done with the transfers before the current one
  double variable_us = 0;
  double fixed_us = 0;
  for (BucketIndex i = 0; i < ready_us.size(); ++i) {
    const std::size_t bucket = produced(profile, i);
    const auto cost = profile.cost(bucket, link);
    if (i > 0) {
      const double start_us = std::max(free_us, ready_us[i - 1]);
      const double end_us = start_us + fixed_us + variable_us;
      const double wait_us = ready_us[i] - start_us;  // what merging would delay the current transfer by
      const bool gains = ready_us[i] < end_us && wait_us < profile.links[link].latency_us;
      const bool may = apart.empty() || !apart[i];
      if (!gains || !may) starts.push_back(i), free_us = end_us, variable_us = fixed_us = 0;
    }
    fixed_us = std::max(fixed_us, cost.fixed_us);
    variable_us += cost.us_per_byte * static_cast<double>(profile.buckets[bucket].bytes);
  }
  return starts;
}

}  // namespace deft::model
