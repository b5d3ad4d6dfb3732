// Random profiles for property tests: coverage 0.3 to 8, 1 to 4 links, heavy-tailed sizes and times. They shrink towards
// few buckets and links. Hard ones have one bucket and up, a latency of up to 5 ms for each link, links of 1 to 50, and a
// forward of a tenth to nine tenths of compute.
#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "core/model/profile.h"

namespace deft {

// A number between `low` and `high`, evenly on the logarithmic scale; shrinks towards `low`.
inline rc::Gen<double> log_between(double low, double high) {
  return rc::gen::map(rc::gen::resize(100, rc::gen::inRange(0, 10'001)),
                      [=](int x) { return low * std::pow(high / low, x / 10'000.0); });
}

struct ProfileShape {
  std::size_t most_buckets = 60;
  std::size_t most_links = 4;
  double least_coverage = 0.3;
  double most_coverage = 8;
  bool hard = false;
  double most_bytes = 1e18;  // of all buckets; up to it, links send 1 GB/s
};

inline model::Profile any_profile(const ProfileShape& shape) {
  const auto span = *rc::gen::inRange<std::size_t>(shape.hard ? 1 : 3, shape.most_buckets + 1);
  const auto entries = *rc::gen::container<std::vector<std::tuple<double, double, double>>>(
      span, rc::gen::tuple(log_between(1, 300), log_between(1, 300), log_between(1, 1000)));
  const auto relative = *rc::gen::container<std::vector<double>>(
      *rc::gen::inRange<std::size_t>(1, shape.most_links + 1), log_between(1, shape.hard ? 50 : 4));
  const double compute_us = *log_between(2e4, 2e6);
  const double coverage = *log_between(shape.least_coverage, shape.most_coverage);
  const double forward_share = shape.hard ? *log_between(0.1, 0.9) : 1.0 / 3;
  const double latency_us = *log_between(1, 100);
  const bool measured = *rc::gen::arbitrary<bool>();  // times by bucket, or only the links' own models
  double forward = 0;
  double backward = 0;
  double size = 0;
  double speed = 0;
  for (const auto& [f, b, s] : entries) forward += f, backward += b, size += s;
  for (std::size_t l = 0; l < relative.size(); ++l) speed += l == 0 ? 1 : 1 / relative[l];
  const double bytes_per_us = std::min(1000.0, shape.most_bytes / (compute_us * coverage * speed));
  model::Profile profile;
  for (const auto& [f, b, s] : entries) {
    const double us = s / size * compute_us * coverage * speed;
    profile.buckets.push_back({"b" + std::to_string(profile.buckets.size()),
                               std::max<std::uint64_t>(4, static_cast<std::uint64_t>(us * bytes_per_us / 4) * 4),
                               f / forward * compute_us * forward_share,
                               b / backward * compute_us * (1 - forward_share),
                               {}});
    if (measured) profile.buckets.back().comm_us = us;
  }
  for (std::size_t l = 0; l < relative.size(); ++l) {
    const double slower = l == 0 ? 1 : relative[l];
    profile.links.push_back({"link" + std::to_string(l), shape.hard ? *log_between(1, 5000) : latency_us, {}, {}});
    if (measured)
      profile.links.back().relative_time = slower;
    else
      profile.links.back().bytes_per_us = bytes_per_us / slower;
  }
  return profile;
}

}  // namespace deft
