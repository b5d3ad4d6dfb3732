// Counts durations by size, from 100 us to 10 s.
//
//   DurationHistogram transfers;
//   transfers.add(done.link_us);
//   json["transfers"] = transfers.json();   // {"count": 3, "sum_us": 950, "at_most_us": {"100": 1, "250": 2, ...}}
//
// Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/clock.h"

namespace deft::daemon {

class DurationHistogram {
 public:
  static constexpr std::array<TimeUs, 16> kBoundsUs = {100,       250,       500,       1'000,     2'500,   5'000,
                                                       10'000,    25'000,    50'000,    100'000,   250'000, 500'000,
                                                       1'000'000, 2'500'000, 5'000'000, 10'000'000};

  void add(TimeUs duration_us) {
    const auto bound = std::ranges::lower_bound(kBoundsUs, duration_us);
    if (bound != kBoundsUs.end()) ++counts_[static_cast<std::size_t>(bound - kBoundsUs.begin())];
    ++count_;
    sum_us_ += std::max<TimeUs>(duration_us, 0);
  }

  [[nodiscard]] std::uint64_t count() const { return count_; }

  // "at_most_us" is cumulative: each bound counts all durations up to it.
  [[nodiscard]] nlohmann::json json() const {
    nlohmann::json bounds = nlohmann::json::object();
    std::uint64_t below = 0;
    for (std::size_t i = 0; i < counts_.size(); ++i) bounds[std::to_string(kBoundsUs[i])] = (below += counts_[i]);
    return {{"count", count_}, {"sum_us", sum_us_}, {"at_most_us", std::move(bounds)}};
  }

 private:
  std::array<std::uint64_t, kBoundsUs.size()> counts_{};
  std::uint64_t count_ = 0;  // longer ones included
  TimeUs sum_us_ = 0;
};

}  // namespace deft::daemon
