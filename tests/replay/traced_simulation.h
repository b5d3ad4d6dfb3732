// Traces made by the simulator: a job whose truth is known.
//
//   const JobTrace job = traced_simulation(profile, "fifo", {.steps = 30, .nodes = {{}, {1.3, 0}}});
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/replay/job_trace.h"
#include "core/sched/scheduler.h"
#include "core/sim/simulation.h"

namespace deft::replay {

// A dozen buckets whose communication takes about as long as compute, on two links.
inline model::Profile busy_profile(double us_per_byte = 0.01) {
  model::Profile profile;
  for (int i = 0; i < 12; ++i)
    profile.buckets.push_back(
        {"b" + std::to_string(11 - i), 400'000U + 50'000U * static_cast<unsigned>(i % 5), 1500, 3000, std::nullopt});
  for (const double relative : {1.0, 1.5})
    profile.links.push_back({.name = "gloo:eth" + std::to_string(profile.links.size()),
                             .latency_us = 150,
                             .relative_time = std::nullopt,
                             .bytes_per_us = 1 / (us_per_byte * 2 * relative)});
  return profile;
}

namespace simulated {

inline TimeUs us(double at) { return static_cast<TimeUs>(at + 1'000'000.5); }

inline trace::TraceGroup group_of(const model::Profile& profile) {
  const auto count = static_cast<std::uint32_t>(profile.buckets.size());
  trace::TraceGroup group{.group = 0, .name = "model"};
  for (std::uint32_t b = 0; b < count; ++b) {
    const auto& bucket = profile.buckets[count - 1 - b];
    group.tensors.push_back({bucket.name, bucket.bytes, count - 1 - b});
    group.buckets.push_back({bucket.bytes, count - 1 - b, {b}});
  }
  return group;
}

// All nodes of the job, without records.
inline JobTrace empty_job(const model::Profile& profile, std::size_t nodes,
                          const std::map<std::string, std::string>& options) {
  JobTrace job;
  for (std::uint32_t n = 0; n < nodes; ++n) {
    AlignedNode node;
    node.trace.header = {.job = "simulated",
                         .incarnation = 1,
                         .node = n,
                         .nodes = static_cast<std::uint32_t>(nodes),
                         .host = "h",
                         .ranks = {n},
                         .options = options};
    for (const auto& link : profile.links) node.trace.header.links.push_back(link.name);
    node.trace.groups = {group_of(profile)};
    node.trace.complete = true;
    job.nodes.push_back(std::move(node));
  }
  return job;
}

// A stage of the leader: when it began, and how much of it was compute.
struct Stage {
  model::Stage stage;
  std::uint64_t step;
  double begin_us, compute_us;
  std::vector<std::pair<std::uint32_t, double>> ready_us;  // backward: bucket of the profile, and when it ended
};

inline std::vector<Stage> stages_of(const model::Timeline& timeline) {
  std::vector<Stage> stages;
  for (const auto& span : timeline.compute) {
    if (stages.empty() || stages.back().stage != span.stage || stages.back().step != span.step)
      stages.push_back({span.stage, span.step, span.start_us, 0, {}});
    stages.back().compute_us += span.end_us - span.start_us;
    if (span.stage == model::Stage::kBackward) stages.back().ready_us.emplace_back(span.bucket, span.end_us);
  }
  return stages;
}

// Records the stages of a node that is so many times slower than the leader: it begins backward later, and waits for less behind it.
inline void record_stages(const std::vector<Stage>& stages, double slower, bool overlaps_forward,
                          trace::NodeTrace& node) {
  const auto buckets = static_cast<std::uint32_t>(node.groups.front().buckets.size());
  double began_us = 0, waited_us = 0;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const Stage& stage = stages[i];
    const bool forward = stage.stage == model::Stage::kForward;
    const double late_us = forward || i == 0 ? 0 : stages[i - 1].compute_us * (slower - 1);
    // Forward begins at once if it waits for its updates itself, and else behind all of them.
    const double computed_us = i > 0 ? began_us + stages[i - 1].compute_us * slower : 0;
    const bool at_once = forward && overlaps_forward && i > 0;
    const double begins_us = at_once ? std::min(computed_us, stage.begin_us) : stage.begin_us + late_us;
    if (i > 0) waited_us = std::max(0.0, begins_us - computed_us);
    began_us = begins_us;
    node.records.emplace_back(us(began_us), us(began_us),
                              trace::StageTrace{.worker = 0,
                                                .stage = forward ? 1U : 2U,
                                                .step = stage.step,
                                                .waited_us = static_cast<std::uint64_t>(waited_us)});
    for (const auto& [bucket, at_us] : stage.ready_us) {
      const double ready_us = began_us + (at_us - stage.begin_us) * slower;
      node.records.emplace_back(us(ready_us), us(ready_us),
                                trace::GradientTrace{.worker = 0,
                                                     .group = 0,
                                                     .first_tensor = buckets - 1 - bucket,
                                                     .tensors = 1,
                                                     .generation = stage.step,
                                                     .last_step = stage.step});
    }
  }
}

// Records all launches on one node.
inline void record_launches(const model::Timeline& timeline, trace::NodeTrace& node) {
  const auto buckets = static_cast<std::uint32_t>(node.groups.front().buckets.size());
  std::uint64_t number = 0;
  for (const auto& send : timeline.sends) {
    trace::OrderTrace order{.number = number,
                            .generation = send.generation,
                            .offset = send.offset,
                            .half = static_cast<std::uint8_t>(send.half),
                            .bucket = buckets - 1 - send.bucket,
                            .group = 0,
                            .link = static_cast<std::uint16_t>(send.link)};
    order.set_bytes(send.bytes);
    node.records.emplace_back(us(send.start_us), us(send.start_us), order);
    node.records.emplace_back(
        us(send.start_us), us(send.end_us),
        trace::TransferTrace{.number = number,
                             .bytes = send.bytes,
                             .wire_bytes = send.half == model::AllReduceHalf::kBoth ? send.bytes : send.bytes / 2,
                             .stage = static_cast<std::uint16_t>(trace::TransferStage::kLink),
                             .link = static_cast<std::uint16_t>(send.link)});
    ++number;
  }
}

}  // namespace simulated

// The records of all nodes of a simulated job. Nodes behind the leader are slower by their slowdown. Times are whole microseconds.
// `credit_bytes`: 0 is the usual one.
inline JobTrace traced_simulation(const model::Profile& profile, const std::string& policy, sim::Options options,
                                  std::uint64_t credit_bytes = 0) {
  options.record = true;
  options.warmup_steps = 0;
  auto setup = sim::setup_for(profile, policy);
  std::map<std::string, std::string> traced_options = {{"policy", policy}};
  if (credit_bytes > 0) {
    setup.credit_bytes = credit_bytes;
    traced_options["credit_bytes"] = std::to_string(credit_bytes);
  }
  auto scheduler = sched::make_scheduler(setup);
  EXPECT_TRUE(scheduler);
  const auto outcome = sim::simulate(**scheduler, profile, options);
  EXPECT_TRUE(outcome);
  JobTrace job = simulated::empty_job(profile, options.nodes.size(), traced_options);
  const auto stages = simulated::stages_of(outcome->timeline);
  for (std::size_t n = 0; n < options.nodes.size(); ++n) {
    trace::NodeTrace& node = job.nodes[n].trace;
    simulated::record_stages(stages, options.nodes[n].slowdown / options.nodes.front().slowdown,
                             options.overlaps_forward, node);
    simulated::record_launches(outcome->timeline, node);
    std::ranges::stable_sort(node.records, {}, &trace::TraceRecord::begin_us);
  }
  return job;
}

// Each tensor of the job is a bucket of so many smaller ones, which backward makes one after the other.
inline void cut_tensors(JobTrace& job, std::uint32_t pieces) {
  for (auto& node : job.nodes) {
    auto& group = node.trace.groups.front();
    const auto whole = std::exchange(group.tensors, {});
    for (std::uint32_t b = 0; b < whole.size(); ++b) {
      group.buckets[b].tensors.clear();
      for (std::uint32_t i = 0; i < pieces; ++i) {
        group.buckets[b].tensors.push_back(static_cast<std::uint32_t>(group.tensors.size()));
        group.tensors.push_back(
            {whole[b].name + "." + std::to_string(i), whole[b].bytes / pieces, whole[b].forward_position});
      }
    }
    std::vector<trace::TraceRecord> records;
    TimeUs before_us = 0;
    for (const auto& record : node.trace.records) {
      const TimeUs at_us = record.begin_us();
      if (record.kind() == trace::TraceKind::kGradient) {
        auto gradient = record.as<trace::GradientTrace>();
        gradient.first_tensor *= pieces;
        for (std::uint32_t i = 1; i <= pieces; ++i, ++gradient.first_tensor)
          records.emplace_back(before_us + (at_us - before_us) * i / pieces,
                               before_us + (at_us - before_us) * i / pieces, gradient);
      } else {
        records.push_back(record);
      }
      if (record.kind() == trace::TraceKind::kGradient || record.kind() == trace::TraceKind::kStage) before_us = at_us;
    }
    node.trace.records = std::move(records);
    std::ranges::stable_sort(node.trace.records, {}, &trace::TraceRecord::begin_us);
  }
}

}  // namespace deft::replay
