// Fits the cost of a link to measured transfers: time = latency + bytes / throughput, each with its error.
//
//   auto fit = fit_link(samples);
//   fit->latency_us
#pragma once

#include <cstdint>
#include <span>

#include "core/base/status.h"

namespace deft::model {

// One measured transfer.
struct LinkSample {
  std::uint64_t bytes = 0;
  double us = 0;
};

struct LinkFit {
  double latency_us = 0;
  double latency_error_us = 0;  // one standard error
  double bytes_per_us = 0;
  double bytes_per_us_error = 0;
};

// Fits by least squares of the relative deviation, because disturbances grow with the transfer. kInvalid unless there are at
// least three sizes and the largest takes longer than the smallest. A latency below zero becomes zero.
Result<LinkFit> fit_link(std::span<const LinkSample> samples);

}  // namespace deft::model
