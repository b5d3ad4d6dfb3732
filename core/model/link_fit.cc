#include "core/model/link_fit.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace deft::model {
namespace {

// Sums of the weighted straight line us = a + b * bytes; a weight is 1 / us^2.
struct Sums {
  double w = 0, x = 0, xx = 0, y = 0, xy = 0;
};

Sums sums_of(std::span<const LinkSample> samples) {
  Sums s;
  for (const LinkSample& sample : samples) {
    const double w = 1 / (sample.us * sample.us), x = static_cast<double>(sample.bytes);
    s.w += w;
    s.x += w * x;
    s.xx += w * x * x;
    s.y += w * sample.us;
    s.xy += w * x * sample.us;
  }
  return s;
}

Result<void> check(std::span<const LinkSample> samples) {
  std::set<std::uint64_t> sizes;
  for (const LinkSample& sample : samples) {
    if (!std::isfinite(sample.us) || sample.us <= 0) {
      return fail(ErrorKind::kInvalid, "a transfer of " + std::to_string(sample.us) + " us cannot be");
    }
    sizes.insert(sample.bytes);
  }
  if (sizes.size() >= 3) return {};
  return fail(ErrorKind::kInvalid,
              std::to_string(sizes.size()) + " sizes are too few for a latency, a throughput and their errors");
}

}  // namespace

Result<LinkFit> fit_link(std::span<const LinkSample> samples) {
  if (auto ok = check(samples); !ok) return tl::unexpected(ok.error());
  const Sums s = sums_of(samples);
  const double determinant = s.w * s.xx - s.x * s.x;
  double a = (s.xx * s.y - s.x * s.xy) / determinant;
  double b = (s.w * s.xy - s.x * s.y) / determinant;
  if (a < 0) {
    a = 0;
    b = s.xy / s.xx;
  }
  if (!(b > 0)) return fail(ErrorKind::kInvalid, "larger transfers take no longer than small ones: too much noise");
  double deviation = 0;
  for (const LinkSample& sample : samples) {
    const double relative = (a + b * static_cast<double>(sample.bytes)) / sample.us - 1;
    deviation += relative * relative;
  }
  const double variance = deviation / static_cast<double>(samples.size() - 2);
  LinkFit fit;
  fit.latency_us = a;
  fit.latency_error_us = std::sqrt(variance * s.xx / determinant);
  fit.bytes_per_us = 1 / b;
  fit.bytes_per_us_error = std::sqrt(variance * s.w / determinant) / (b * b);
  return fit;
}

}  // namespace deft::model
