// The seeds of tests/fuzz_trace: each is what its fuzzer takes as it is. DEFT_WRITE_CORPUS=FOLDER writes them anew, after the format
// of traces has changed.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "core/replay/daemon_cpu.h"
#include "core/replay/explain.h"
#include "core/replay/memory_peak.h"
#include "core/trace/cores_trace.h"
#include "core/trace/link_cost_trace.h"
#include "core/trace/segment_trace.h"
#include "tests/fuzz_trace/trace_input.h"
#include "tests/replay/traced_simulation.h"

namespace deft::replay {
namespace {

// Three layers, what forward keeps of them for backward, and weights.
void tell_memory(std::vector<trace::TraceRecord>& records, TimeUs at_us) {
  for (std::uint32_t layer = 0; layer < 3; ++layer)
    records.emplace_back(at_us, at_us, trace::LayerTrace{.layer = layer, .tensor = 2 - layer, .forward_ns = 1'000'000});
  const auto part = [](trace::MemoryPart of) { return static_cast<std::uint16_t>(of); };
  const trace::MemoryTrace amounts[] = {
      {.part = part(trace::MemoryPart::kWeights), .end = 9, .bytes = 1'200'000},
      {.part = part(trace::MemoryPart::kActivations),
       .begin = 1,
       .end = 6,
       .input_of = 1,
       .bytes = 5000,
       .growing = 5000},
      {.part = part(trace::MemoryPart::kActivations), .begin = 2, .end = 6, .bytes = 900, .growing = 900},
      {.part = part(trace::MemoryPart::kTemporary), .begin = 4, .end = 4, .bytes = 700, .growing = 300}};
  for (const auto& amount : amounts) records.emplace_back(at_us, at_us, amount);
  records.emplace_back(at_us, at_us,
                       trace::MemoryStepTrace{.layers = 3, .amounts = std::size(amounts), .samples = 4, .step = 5});
}

// `elements`: of the buckets; empty: as older versions wrote a trace.
trace::NodeTrace seed_trace(const std::string& policy, std::optional<trace::TraceGroup::Elements> elements) {
  model::Profile profile;
  for (int i = 0; i < 3; ++i) profile.buckets.push_back({"b" + std::to_string(2 - i), 400'000, 1500, 3000, {}});
  profile.links.push_back({.name = "gloo:a", .latency_us = 150, .relative_time = {}, .bytes_per_us = 50});
  auto trace = traced_simulation(profile, policy, {.steps = 8, .nodes = {{}, {}}}).nodes.front().trace;
  for (auto& bucket : trace.groups.front().buckets) bucket.elements = elements;
  for (auto& tensor : trace.groups.front().tensors)
    if (elements) tensor.elements = trace::TraceGroup::Elements{elements->dtype, tensor.bytes};
  const TimeUs at_us = trace.records.front().begin_us();
  trace.records.emplace_back(at_us, at_us + 100, trace::ClockTrace{at_us + 50});
  trace.records.emplace_back(
      at_us, at_us + 100'000,
      trace::TrafficTrace{.sent_bytes = 3'000'000, .busy_us = 60'000, .peer = 1, .rtt_us = 90, .link = 0});
  trace.records.emplace_back(
      at_us, at_us, trace::PolicyTrace{.step = 2, .partition_bytes = 1 << 20, .credit_bytes = 1 << 20, .reason = 2});
  trace.records.emplace_back(at_us, at_us, trace::LinkCostTrace{.latency_us = 150, .bytes_per_us = 45});
  trace.records.emplace_back(at_us, at_us, trace::SettingsTrace{1});
  for (std::uint16_t thread = 1; thread <= static_cast<std::uint16_t>(model::kLastDaemonThread); ++thread)
    trace.records.emplace_back(at_us, at_us + 150'000, trace::CpuTrace{.cpu_us = 9000U * thread, .thread = thread});
  trace.records.emplace_back(
      at_us, at_us + 500'000,
      trace::CoresTrace{
          .busy_us = 900'000, .own_us = 300'000, .waited_us = 90'000, .which = 3, .cores = 2, .workers = 1});
  for (std::uint8_t part = 1; part <= 3; ++part)
    for (const std::uint8_t is_sent : {std::uint8_t{0}, std::uint8_t{1}})
      trace.records.emplace_back(
          at_us, at_us + 300,
          trace::SegmentTrace{
              .number = 1, .bytes = 65536, .peer = is_sent, .round = 2, .part = part, .is_sent = is_sent});
  tell_memory(trace.records, at_us);
  return trace;
}

std::map<std::string, std::string> seeds() {
  std::map<std::string, std::string> seeds;
  const trace::TraceGroup::Elements elements{model::DType::kFloat32, 399'000};
  seeds["fifo"] = fuzz_trace::input_of(seed_trace("fifo", elements));
  seeds["bytescheduler"] = fuzz_trace::input_of(seed_trace("bytescheduler", std::nullopt));
  const std::string& whole = seeds["fifo"];
  const auto file = fuzz_trace::trace_of(reinterpret_cast<const std::uint8_t*>(whole.data()), whole.size());
  seeds["file"] = "\x01" + std::string(reinterpret_cast<const char*>(file.data()), file.size());
  return seeds;
}

TEST(FuzzCorpus, HasSeedsThatAreExplained) {
  if (const char* const folder = std::getenv("DEFT_WRITE_CORPUS"); folder != nullptr)
    for (const auto& [name, bytes] : seeds()) std::ofstream(std::filesystem::path(folder) / name) << bytes;
  for (const auto& [name, expected] : seeds()) {
    std::ifstream file(std::filesystem::path(DEFT_FUZZ_CORPUS) / name);
    ASSERT_TRUE(file) << name << " is missing: write the corpus anew";
    std::ostringstream text;
    text << file.rdbuf();
    const std::string seed = text.str();
    const auto trace =
        trace::parse_trace(fuzz_trace::trace_of(reinterpret_cast<const std::uint8_t*>(seed.data()), seed.size()));
    ASSERT_TRUE(trace) << name;
    EXPECT_TRUE(trace->problems.empty()) << name << ": " << trace->problems.front();
    auto other = *trace;
    other.header.node = 1;
    const auto job = join_nodes({*trace, other}, {"a", "b"});
    ASSERT_TRUE(job) << name;
    const auto measured = measure(*job);
    ASSERT_TRUE(measured) << name << ": " << measured.error().message();
    EXPECT_TRUE(explain(*job, *measured)) << name;
    EXPECT_EQ(measured->decisions.size(), 1U) << name;
    EXPECT_EQ(thread_uses(*job).size(), 2U * static_cast<std::size_t>(model::kLastDaemonThread)) << name;
    EXPECT_EQ(measured->profile.buckets.front().coded_bytes.has_value(), name != "bytescheduler") << name;
    ASSERT_EQ(measured->memories.size(), 2U) << name;
    EXPECT_EQ(memory_peak(measured->memories.front(), {}).use.total(), 1'206'600) << name;
  }
}

}  // namespace
}  // namespace deft::replay
