// Traced jobs whose settings are searched.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/optimize/search.h"
#include "tests/replay/traced_simulation.h"

namespace deft::optimize {

// `buckets` equal buckets on one link whose transfers cost 400 us each; communication takes longer than backward. Few buckets hold many
// tensors.
inline replay::MeasuredJob job_of_buckets(std::size_t buckets, const std::string& policy) {
  constexpr double kTotalBytes = 8e6;
  model::Profile profile;
  for (std::size_t i = 0; i < buckets; ++i)
    profile.buckets.push_back({"b" + std::to_string(buckets - 1 - i),
                               static_cast<std::uint64_t>(kTotalBytes / static_cast<double>(buckets)) + i % 3 * 500,
                               20'000.0 / static_cast<double>(buckets),
                               40'000.0 / static_cast<double>(buckets),
                               {}});
  profile.links.push_back({.name = "gloo:a", .latency_us = 400, .relative_time = {}, .bytes_per_us = 150});
  auto job = replay::traced_simulation(profile, policy, {.steps = 20, .nodes = {{}, {}}});
  if (buckets < 10) replay::cut_tensors(job, 64);
  auto measured = replay::measure(job);
  EXPECT_TRUE(measured);
  measured->profile.links = profile.links;  // equal parts do not tell latency and throughput apart
  return *std::move(measured);
}

inline double all() { return 1; }

// Halves the bytes, and costs no time.
inline const model::CodecCost kHalf{.name = "half", .wire_share = 0.5};

// A bucket for each tensor, in the order of forward: the gradient of the first comes last. `tells`: the trace has what codecs may encode.
inline replay::MeasuredJob job_of_tensors(const std::vector<std::uint64_t>& bytes, bool tells) {
  model::Profile profile;
  const auto count = static_cast<double>(bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i)
    profile.buckets.push_back(
        {"b" + std::to_string(bytes.size() - 1 - i), bytes[i], 20'000.0 / count, 40'000.0 / count, {}});
  profile.links.push_back({.name = "gloo:a", .latency_us = 400, .relative_time = {}, .bytes_per_us = 150});
  auto job = replay::traced_simulation(profile, "fifo", {.steps = 20, .nodes = {{}, {}}});
  for (auto& node : job.nodes) {
    auto& group = node.trace.groups.front();
    for (auto& tensor : group.tensors)
      if (tells) tensor.elements = {model::DType::kFloat32, tensor.bytes};
    for (auto& bucket : group.buckets)
      if (tells) bucket.elements = {model::DType::kFloat32, bucket.bytes};
  }
  auto measured = replay::measure(job);
  EXPECT_TRUE(measured) << measured.error().message();
  return *std::move(measured);
}

// Eight tensors of 100 KB, whose gradients come first and hide behind backward, and four of 1.8 MB.
inline replay::MeasuredJob small_and_large_tensors(bool tells) {
  std::vector<std::uint64_t> bytes(4, 1'800'192);
  bytes.resize(12, 100'352);
  return job_of_tensors(bytes, tells);
}

// The job with another link beside its own.
inline replay::MeasuredJob with_link(replay::MeasuredJob measured, const std::string& name, double latency_us,
                                     double bytes_per_us) {
  measured.profile.links.push_back(
      {.name = name, .latency_us = latency_us, .relative_time = {}, .bytes_per_us = bytes_per_us});
  measured.links = {};
  for (const auto& link : measured.profile.links) measured.links.push_back(link.name);
  return measured;
}

}  // namespace deft::optimize
