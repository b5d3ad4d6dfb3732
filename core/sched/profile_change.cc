#include "core/sched/profile_change.h"

#include <cmath>

namespace deft::sched {

std::string describe_change(const std::string& what, double before, double after) {
  return what + " went from " + std::to_string(std::llround(before)) + " to " + std::to_string(std::llround(after));
}

std::string describe_move(const model::Profile& now, const model::Profile& then, const std::vector<bool>& lost) {
  if (moved(now.compute_us(), then.compute_us()))
    return describe_change("a step's compute time (us)", then.compute_us(), now.compute_us());
  if (std::abs(now.forward_us() - then.forward_us()) > kMoved * then.compute_us())  // its share matters, not itself
    return describe_change("the forward time (us)", then.forward_us(), now.forward_us());
  for (std::size_t l = 0; l < now.links.size(); ++l) {
    if (lost[l]) continue;
    const double before = then.link_model(l).bytes_per_us * 8, after = now.link_model(l).bytes_per_us * 8;
    if (moved(after, before))
      return describe_change("link " + std::to_string(l) + "'s throughput (Mbit/s)", before, after);
  }
  return "";
}

model::Profile without_lost(model::Profile profile, const std::vector<bool>& lost) {
  for (std::size_t l = lost.size(); l-- > 0;)
    if (lost[l]) profile.links.erase(profile.links.begin() + static_cast<std::ptrdiff_t>(l));
  return profile;
}

std::string describe_loss(const std::vector<bool>& lost) {
  std::string links;
  for (std::size_t l = 0; l < lost.size(); ++l)
    if (lost[l]) links += (links.empty() ? "" : ", ") + std::to_string(l);
  return "the loss of link " + links;
}

}  // namespace deft::sched
