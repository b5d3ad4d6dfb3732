// What codecs would cost a traced job.
#include "core/replay/traced_codec.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "core/model/daemon_thread.h"
#include "core/replay/quantiles.h"
#include "core/replay/recut.h"
#include "core/replay/replay.h"
#include "core/trace/cores_trace.h"
#include "tests/replay/traced_simulation.h"

namespace deft::replay {
namespace {

MeasuredJob measured_on(const std::string& link, std::size_t nodes = 4) {
  model::Profile profile;
  for (int i = 0; i < 8; ++i) profile.buckets.push_back({"b" + std::to_string(7 - i), 400'000, 1000, 2000, {}});
  profile.links.push_back({.name = link, .latency_us = 100, .relative_time = {}, .bytes_per_us = 20});
  auto measured =
      measure(traced_simulation(profile, "fifo", {.steps = 12, .nodes = std::vector<sim::NodeSpeed>(nodes)}));
  EXPECT_TRUE(measured) << measured.error().message();
  return *std::move(measured);
}

model::CodecCost cost_of(const std::string& name, const MeasuredJob& measured) {
  auto cost = codec_cost(name, measured, measured.nodes.size());
  EXPECT_TRUE(cost) << cost.error().message();
  return *std::move(cost);
}

// The node that keeps what the servers' encoding leaves out gets the encodings of the others: 0.378 of the bytes, and not 0.252.
TEST(TracedCodec, ParameterServersAnswerWithMoreThanAnAllReduceTakes) {
  const auto served = measured_on("ps:a:1+b:1"), ring = measured_on("gloo:eth0");
  const auto of_servers = cost_of("int8", served), of_ring = cost_of("int8", ring);
  EXPECT_NEAR(of_servers.share_on(0), 0.378, 1e-3);
  EXPECT_NEAR(of_ring.share_on(0), 0.252, 1e-3);
  auto free = of_servers;  // whatever encoding takes on this machine
  free.encode_us_per_byte = free.decode_us_per_byte = 0;
  auto as_ring = free;
  as_ring.link_shares.clear();
  const auto truly = replay(served, {.codec = free}), promised = replay(served, {.codec = as_ring});
  ASSERT_TRUE(truly && promised);
  EXPECT_GT(truly->step_us_p50, 1.1 * promised->step_us_p50);
}

TEST(TracedCodec, TheJobsOwnCodecCostsWhatTheTraceSays) {
  auto measured = measured_on("gloo:eth0");
  measured.profile.codecs.push_back(
      {.name = "int8", .wire_share = 0.3, .encode_us_per_byte = 0.5, .decode_us_per_byte = 0.25});
  const auto own = cost_of("int8", measured);
  EXPECT_DOUBLE_EQ(own.encode_us_per_byte, 0.5);
  EXPECT_DOUBLE_EQ(own.decode_us_per_byte, 0.25);
  EXPECT_DOUBLE_EQ(own.wire_share, 0.3);
  // A daemon that takes half a microsecond a byte is thousands of times as slow as any here, so others cost more there, too.
  EXPECT_GT(cost_of("bf16", measured).thread_us_per_byte(), 0.01);
  EXPECT_EQ(cost_of("none", measured).wire_share, 1);
}

TEST(TracedCodec, ADaemonWhoseSumsWereSlowEncodesSlowly) {
  auto measured = measured_on("gloo:eth0");
  measured.local_sums = {.workers = 2, .part_bytes = 400'000, .us_per_byte = 1000};
  EXPECT_GT(cost_of("int8", measured).thread_us_per_byte(), 1);
  measured.local_sums.us_per_byte = 1e-9;  // never less than here
  EXPECT_GT(cost_of("int8", measured).thread_us_per_byte(), 0);
}

TEST(TracedCodec, WhateverATraceSaysOfItsSumsCanBeCompared) {
  auto measured = measured_on("gloo:eth0");
  measured.local_sums = {.workers = 1'000'000, .part_bytes = 1e18, .us_per_byte = 1};
  EXPECT_GT(cost_of("int8", measured).thread_us_per_byte(), 0);
}

TEST(TracedCodec, SumsOfLocalWorkersAndSharedMachinesAreSeen) {
  model::Profile profile;
  for (int i = 0; i < 4; ++i) profile.buckets.push_back({"b" + std::to_string(3 - i), 400'000, 1000, 2000, {}});
  profile.links.push_back({.name = "gloo:a", .latency_us = 100, .relative_time = {}, .bytes_per_us = 100});
  auto job = traced_simulation(profile, "fifo", {.steps = 12, .nodes = {{}, {}, {}}});
  EXPECT_EQ(measure(job)->local_sums.us_per_byte, 0) << "a worker a node";
  job.nodes[2].trace.header.host = "another";
  auto& leader = job.nodes.front().trace;
  leader.header.ranks = {0, 1};
  std::vector<trace::TraceRecord> sums;
  for (const auto& record : leader.records) {
    if (record.kind() != trace::TraceKind::kTransfer) continue;
    auto sum = record.as<trace::TransferTrace>();
    sum.stage = static_cast<std::uint16_t>(trace::TransferStage::kSum);
    sums.emplace_back(record.begin_us() - 200, record.begin_us(), sum);
  }
  leader.records.insert(leader.records.end(), sums.begin(), sums.end());
  std::ranges::stable_sort(leader.records, {}, &trace::TraceRecord::begin_us);
  const auto measured = measure(job);
  ASSERT_TRUE(measured) << measured.error().message();
  EXPECT_EQ(measured->local_sums.workers, 2U);
  EXPECT_NEAR(measured->local_sums.us_per_byte, 200.0 / 400'000, 1e-9);
  EXPECT_NEAR(measured->local_sums.part_bytes, 400'000, 1);
  EXPECT_EQ(measured->busiest_host.nodes, 2U);
  EXPECT_EQ(measured->busiest_host.workers, 3U);
}

// Workers that run for `workers_share` of their compute, which is all of a step but the waits. Their daemons keep another half of a core.
JobTrace job_on_cores(double workers_share) {
  model::Profile profile;
  for (int i = 0; i < 8; ++i) profile.buckets.push_back({"b" + std::to_string(7 - i), 400'000, 1000, 2000, {}});
  profile.links.push_back({.name = "gloo:eth0", .latency_us = 100, .relative_time = {}, .bytes_per_us = 100});
  auto job = traced_simulation(profile, "fifo", {.steps = 40, .nodes = {{}, {}}});
  for (auto& node : job.nodes) {
    const double compute_share = 24'000 / median(measure(job)->steps_us);
    auto& records = node.trace.records;
    const TimeUs begin_us = records.front().begin_us(), end_us = records.back().end_us();
    const auto of_all = [&](double share) {
      return static_cast<std::uint64_t>(share * static_cast<double>(end_us - begin_us));
    };
    const double ran = 0.8 * workers_share * compute_share;  // and it had no core for the rest
    records.emplace_back(begin_us, end_us,
                         trace::CoresTrace{.busy_us = of_all(1),
                                           .own_us = of_all(ran + 0.5),
                                           .waited_us = of_all(0.2 * workers_share * compute_share),
                                           .which = 3,
                                           .cores = 2,
                                           .workers = 1});
    records.emplace_back(
        begin_us, end_us,
        trace::CpuTrace{.cpu_us = of_all(0.5), .thread = static_cast<std::uint16_t>(model::DaemonThread::kAll)});
    std::ranges::stable_sort(records, {}, &trace::TraceRecord::begin_us);
  }
  return job;
}

// Two workers on two cores: a codec takes from them what both nodes encode, as far as they need their cores.
TEST(TracedCodec, TakesNoTimeFromWorkersThatLeaveTheirCores) {
  for (const double share : {0.1, 0.6, 1.0}) {
    auto measured = measure(job_on_cores(share));
    ASSERT_TRUE(measured) << measured.error().message();
    charge_codecs(*measured, 2);
    EXPECT_NEAR(measured->codec_in_compute, share, 0.01);
  }
  auto untold = measured_on("gloo:eth0", 2);
  charge_codecs(untold, 2);
  EXPECT_EQ(untold.codec_in_compute, 1);
  charge_codecs(untold = measured_on("gloo:eth0", 2), 3);
  EXPECT_EQ(untold.codec_in_compute, 0) << "a core is left";
}

// A job of eight buckets whose trace tells what they are made of.
JobTrace with_elements(const model::Profile& profile, model::DType dtype) {
  auto job = traced_simulation(profile, "fifo", {.steps = 12, .nodes = std::vector<sim::NodeSpeed>(2)});
  auto& buckets = job.nodes.front().trace.groups.front().buckets;
  for (std::size_t b = 0; b < buckets.size(); ++b)
    buckets[b].elements =
        trace::TraceGroup::Elements{dtype, profile.buckets[buckets.size() - 1 - b].coded_bytes.value()};
  return job;
}

// The first buckets of the arena have matrices alone, and the others biases alone.
model::Profile half_of_biases(std::uint64_t element_bytes) {
  model::Profile profile;
  for (int i = 0; i < 8; ++i) {
    profile.buckets.push_back({"b" + std::to_string(7 - i), 400'000, 1000, 2000, {}});
    profile.buckets.back().coded_bytes = i < 4 ? 0 : 400'000;
    profile.buckets.back().element_bytes = element_bytes;
  }
  profile.links.push_back({.name = "gloo:a", .latency_us = 100, .relative_time = {}, .bytes_per_us = 20});
  return profile;
}

// What the simulated job takes on the wire a step, over its bytes.
double wire_share(const model::Profile& profile, const model::CodecCost& codec) {
  double wire = 0, all = 0;
  for (const auto& bucket : profile.buckets) {
    wire += static_cast<double>(codec.wire_bytes(bucket.coded_share(), bucket.bytes, 0));
    all += static_cast<double>(bucket.bytes);
  }
  return wire / all;
}

TEST(TracedCodec, WhatNoCodecMayEncodeTravelsAsItIs) {
  const model::CodecCost quarter{.name = "quarter", .wire_share = 0.25};
  for (const auto& [dtype, share] :
       {std::pair{model::DType::kFloat32, 0.5 + 0.5 * 0.25}, std::pair{model::DType::kBFloat16, 0.5 + 0.5 * 0.5}}) {
    auto truth = half_of_biases(model::is_half(dtype) ? 2 : 4);
    const auto measured = measure(with_elements(truth, dtype));
    ASSERT_TRUE(measured) << measured.error().message();
    EXPECT_DOUBLE_EQ(wire_share(measured->profile, quarter), share);
    EXPECT_NEAR(wire_share(with_buckets(*measured, "uniform:1000000")->profile, quarter), share, 1e-5);
    truth.codecs.push_back(quarter);
    auto setup = sim::setup_for(truth, "fifo");
    setup.codec = 1, setup.codec_cost = quarter;
    auto scheduler = sched::make_scheduler(setup);
    ASSERT_TRUE(scheduler);
    const auto outcome = sim::simulate(**scheduler, truth, {.steps = 60, .warmup_steps = 20, .nodes = {{}, {}}});
    const auto predicted = replay(*measured, {.codec = quarter});
    ASSERT_TRUE(outcome && predicted);
    EXPECT_NEAR(predicted->step_us_p50, outcome->step_us, 0.02 * outcome->step_us);
  }
}

// Types take turns as they are declared, and every other tensor is a bias.
TEST(TracedCodec, OtherBucketsHaveTheSameTensors) {
  trace::TraceGroup group;
  std::map<model::DType, std::uint64_t> coded;
  for (std::uint32_t i = 0; i < 12; ++i) {
    const auto dtype = i % 3 == 0 ? model::DType::kBFloat16 : model::DType::kFloat32;
    const std::uint64_t bytes = 50'000 + 4000 * i;
    group.tensors.push_back(
        {"t" + std::to_string(i), bytes, 11 - i, trace::TraceGroup::Elements{dtype, i % 2 * bytes}});
    coded[dtype] += i % 2 * bytes;
  }
  for (const char* bucketing : {"uniform:70000", "tensor", "ddp"}) {
    const auto cut = *recut(group, bucketing, 1 << 20);
    auto left = coded;
    for (const auto& bucket : cut.buckets) {
      ASSERT_TRUE(bucket.elements) << bucketing;
      left[bucket.elements->dtype] -= bucket.elements->coded_bytes;
      for (const auto tensor : bucket.tensors) EXPECT_EQ(group.tensors[tensor].elements->dtype, bucket.elements->dtype);
    }
    for (const auto& [dtype, bytes] : left) EXPECT_EQ(bytes, 0U) << bucketing;
  }
  group.tensors.back().elements.reset();
  const auto untold = *recut(group, "tensor", 1 << 20);
  for (const auto& bucket : untold.buckets) EXPECT_FALSE(bucket.elements);
}

// However the gradients are cut, buckets have as many bytes to encode as the daemon would count in them.
TEST(TracedCodec, CanLeaveSmallTensorsExact) {
  trace::TraceGroup group;
  for (std::uint32_t i = 0; i < 12; ++i) {
    const auto dtype = i % 3 == 0 ? model::DType::kBFloat16 : model::DType::kFloat32;
    const std::uint64_t bytes = 50'000 + 4000 * i;
    group.tensors.push_back(
        {"t" + std::to_string(i), bytes, 11 - i, trace::TraceGroup::Elements{dtype, i % 4 == 0 ? 0 : bytes}});
  }
  for (const std::uint64_t floor : {0, 54'000, 54'001, 70'000, 1'000'000}) {
    const auto fewer = with_codec_floor(group, floor);
    ASSERT_TRUE(fewer);
    for (const char* bucketing : {"uniform:70000", "uniform:16384", "tensor", "ddp"}) {
      const auto cut = *recut(*fewer, bucketing, 1 << 20);
      std::vector<model::ProfileBucket> buckets;  // in forward order
      for (const auto& bucket : cut.buckets) buckets.insert(buckets.begin(), {"b", bucket.bytes, 1, 1, {}});
      count_coded_bytes(*fewer, buckets);
      for (std::size_t b = 0; b < cut.buckets.size(); ++b)
        EXPECT_EQ(buckets[buckets.size() - 1 - b].coded_bytes, cut.buckets[b].elements->coded_bytes)
            << bucketing << " " << b << " from " << floor << " bytes on";
    }
  }
  group.tensors.back().elements.reset();
  EXPECT_FALSE(with_codec_floor(group, 70'000)) << "an older version wrote the trace";
}

// The trace has bytes on the wire and times of whole launches; the codec's own are those of what it encodes.
TEST(TracedCodec, OfTheTraceHasTheCostOfWhatItEncodes) {
  auto job = with_elements(half_of_biases(2), model::DType::kBFloat16);
  auto& records = job.nodes.front().trace.records;
  std::vector<trace::TraceRecord> encodings;
  std::map<std::uint64_t, bool> is_coded;  // by launch
  for (auto& record : records) {
    if (record.kind() == trace::TraceKind::kOrder) {
      auto order = record.as<trace::OrderTrace>();
      order.codec = 1;
      is_coded[order.number] = order.bucket < 4;
      record = {record.begin_us(), record.end_us(), order};
    } else if (record.kind() == trace::TraceKind::kTransfer) {
      auto transfer = record.as<trace::TransferTrace>();
      if (!is_coded.at(transfer.number)) continue;
      transfer.wire_bytes = transfer.bytes / 2;
      record = {record.begin_us(), record.end_us(), transfer};
      transfer.stage = static_cast<std::uint16_t>(trace::TransferStage::kEncode);
      encodings.emplace_back(record.begin_us() - 80, record.begin_us(), transfer);
    }
  }
  records.insert(records.end(), encodings.begin(), encodings.end());
  std::ranges::stable_sort(records, {}, &trace::TraceRecord::begin_us);
  const auto measured = measure(job);
  ASSERT_TRUE(measured) << measured.error().message();
  ASSERT_EQ(measured->profile.codecs.size(), 2U);
  const model::CodecCost& codec = measured->profile.codecs.back();
  EXPECT_NEAR(codec.wire_share, 0.25, 1e-6) << "of its gradients as float32";
  EXPECT_NEAR(codec.encode_us_per_byte, 80.0 / 800'000, 1e-9);
  EXPECT_NEAR(wire_share(measured->profile, codec), 0.75, 1e-6);
}

TEST(TracedCodec, WithoutACoreToSpareEncodingMakesComputeLonger) {
  auto measured = measured_on("gloo:eth0");
  *measured.profile.links.front().bytes_per_us = 1e5;  // nothing else counts
  measured.busiest_host = {.nodes = 4, .workers = 4};
  const WhatIf half{.codec = model::CodecCost{.name = "half", .wire_share = 0.5, .encode_us_per_byte = 1e-3}};
  charge_codecs(measured, 8);
  const auto spare = replay(measured, half);
  charge_codecs(measured, 2);
  const auto busy = replay(measured, half);
  ASSERT_TRUE(spare && busy);
  const double encoding_us = 1e-3 * 8 * 400'000;
  EXPECT_NEAR(busy->step_us_p50 - spare->step_us_p50, 2 * encoding_us, 0.02 * encoding_us) << "four nodes on two cores";
}

}  // namespace
}  // namespace deft::replay
