// From measured transfers to a link's cost: time = latency + bytes / throughput, fitted with the errors of both.
#pragma once

#include <cstdint>
#include <span>

#include "core/base/status.h"

namespace deft::model {

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

// Least squares of the relative deviation, because what disturbs a transfer grows with it. Needs at least three sizes of
// which the largest takes longer than the smallest; a latency below zero is taken for zero.
Result<LinkFit> fit_link(std::span<const LinkSample> samples);

}  // namespace deft::model
