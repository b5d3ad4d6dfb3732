// What the tests of the simulator share: one run of one policy.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "core/papers/policies.h"
#include "core/sim/simulation.h"

namespace deft::sim {

inline model::Profile vgg19(const std::vector<std::string>& links) {
  const auto profile = model::read_profile(DEFT_TEST_DATA "/vgg19_deft_table2.json");
  return model::with_links(profile.value(), links).value();
}

struct Sizes {
  std::uint64_t partition_bytes = 4'000'000;
  std::uint64_t credit_bytes = 16'000'000;
};

inline Result<Outcome> try_run(const model::Profile& profile, std::string_view policy, const Options& options = {},
                               const Sizes& sizes = {}) {
  auto setup = setup_for(profile, policy);
  setup.partition_bytes = sizes.partition_bytes;
  setup.credit_bytes = sizes.credit_bytes;
  const auto scheduler = papers::make_scheduler(setup);
  if (!scheduler) return tl::unexpected(scheduler.error());
  return simulate(**scheduler, profile, options);
}

inline Outcome run(const model::Profile& profile, std::string_view policy, const Options& options = {},
                   const Sizes& sizes = {}) {
  auto outcome = try_run(profile, policy, options, sizes);
  EXPECT_TRUE(outcome.has_value()) << policy << ": " << outcome.error().message();
  return outcome.value_or(Outcome{});
}

// A profile of a few buckets on links that cost nothing but their bytes: {bytes, forward, backward} in forward order.
struct Row {
  std::uint64_t bytes;
  double forward_us;
  double backward_us;
};
inline model::Profile small(const std::vector<Row>& rows, const std::vector<double>& bytes_per_us = {1},
                            double latency_us = 0) {
  model::Profile profile;
  profile.model = "small";
  for (const auto& row : rows)
    profile.buckets.push_back(
        {"b" + std::to_string(profile.buckets.size()), row.bytes, row.forward_us, row.backward_us, {}});
  for (const double rate : bytes_per_us)
    profile.links.push_back({"l" + std::to_string(profile.links.size()), latency_us, {}, rate});
  return profile;
}

}  // namespace deft::sim
