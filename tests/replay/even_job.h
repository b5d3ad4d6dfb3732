// Jobs with buckets of equal size, what the kernel counted of their links, and what explain says of them.
//
//   auto job = traced_simulation(even_profile(12, 400'000, 0.02), "fifo", {.steps = 40, .nodes = {{}, {}, {}}});
//   add_traffic(job, [](std::uint32_t from, std::uint32_t) { return from == 2 ? kRate : 4 * kRate; });
//   explained(job).causes.front()
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "core/replay/explain.h"
#include "tests/replay/traced_simulation.h"

namespace deft::replay {

// Buckets of equal size on one link. Forward takes a third of compute.
inline model::Profile even_profile(std::size_t buckets, std::uint64_t bytes, double us_per_byte,
                                   double latency_us = 150, double compute_us = 60'000) {
  model::Profile profile;
  const double each_us = compute_us / static_cast<double>(buckets);
  for (std::size_t i = 0; i < buckets; ++i)
    profile.buckets.push_back(
        {"b" + std::to_string(buckets - 1 - i), bytes, each_us / 3, each_us * 2 / 3, std::nullopt});
  profile.links.push_back(
      {.name = "gloo:eth0", .latency_us = latency_us, .relative_time = std::nullopt, .bytes_per_us = 1 / us_per_byte});
  return profile;
}

// At which three nodes send their share of an all-reduce of 0.02 us a byte.
inline constexpr double kRate = 100.0 / 3;

// What each node sent to each other one, at so many bytes a microsecond.
using Rate = std::function<double(std::uint32_t from, std::uint32_t to)>;
inline void add_traffic(JobTrace& job, const Rate& rate) {
  for (auto& node : job.nodes) {
    const std::uint32_t from = node.trace.header.node;
    const TimeUs end_us = node.trace.records.back().end_us();
    for (std::uint32_t to = 0; to < job.nodes.size(); ++to)
      if (to != from)
        node.trace.records.emplace_back(
            end_us - 100'000, end_us,
            trace::TrafficTrace{
                .sent_bytes = 10'000'000, .busy_us = static_cast<std::uint64_t>(1e7 / rate(from, to)), .peer = to});
    std::ranges::stable_sort(node.trace.records, {}, &trace::TraceRecord::begin_us);
  }
}

inline Explanation explained(const JobTrace& job) {
  const auto measured = measure(job);
  EXPECT_TRUE(measured) << measured.error().message();
  auto explanation = explain(job, *measured);
  EXPECT_TRUE(explanation) << explanation.error().message();
  return *std::move(explanation);
}

// A step of this profile in truth.
inline double simulated_us(const model::Profile& profile, const std::string& policy = "fifo") {
  auto scheduler = sched::make_scheduler(sim::setup_for(profile, policy));
  return sim::simulate(**scheduler, profile, {.steps = 160, .warmup_steps = 60, .nodes = {{}, {}}})->step_us;
}

}  // namespace deft::replay
