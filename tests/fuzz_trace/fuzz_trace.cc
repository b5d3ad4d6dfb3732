// Feeds the reader of traces, and all that works on what it has read (trace_input.h). The same records stand for a second node, so
// that what compares nodes has something to compare.
#include "core/replay/explain.h"
#include "core/replay/job_timeline.h"
#include "core/replay/measured_job.h"
#include "core/replay/memory_peak.h"
#include "core/replay/step_sample.h"
#include "tests/fuzz/reached.h"
#include "tests/fuzz_trace/trace_input.h"

namespace {

constexpr std::size_t kMostSlices = 20;  // of a picture

void count_kinds(const deft::trace::NodeTrace& trace) {
  static deft::fuzz::Reached reached("records of traces", static_cast<std::size_t>(deft::trace::kLastTraceKind));
  for (const auto& record : trace.records) reached.count(static_cast<std::size_t>(record.kind()) - 1);
}

// What a step holds adds up to something, in whatever way it is to run.
void reckon(const deft::replay::StepMemory& memory) {
  const std::size_t last = memory.layers.size() - 1;
  for (const deft::replay::MemoryWhatIf& what_if :
       {deft::replay::MemoryWhatIf{}, deft::replay::MemoryWhatIf{2, 3, {}},
        deft::replay::MemoryWhatIf{1, 1, {{0, last / 2}, {last / 2 + 1, last}}}}) {
    if (!what_if.recomputed.empty() && last == 0) continue;
    const auto peak = deft::replay::memory_peak(memory, what_if);
    if (!(peak.use.total() >= 0) || memory.describe(peak.position).empty()) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  auto trace = deft::trace::parse_trace(deft::fuzz_trace::trace_of(data, size));
  if (!trace) return 0;
  count_kinds(*trace);
  auto other = *trace;
  other.header.node = 1, other.header.nodes = 2;
  auto job = deft::replay::join_nodes({std::move(*trace), std::move(other)}, {"fuzz", "fuzz2"});
  if (!job) return 0;
  auto timeline = deft::replay::make_timeline(*job, deft::replay::Detail::kSegments);
  for (const auto& slice : timeline.slices)
    if (slice.end_us < slice.begin_us || slice.track >= timeline.tracks.size()) std::abort();
  deft::replay::sample_steps(timeline, deft::replay::step_spans(*job), kMostSlices);
  if (timeline.slices.size() > kMostSlices) std::abort();
  std::vector<std::string> problems;
  for (const auto& memory : deft::replay::step_memories(*job, problems)) reckon(memory);
  const auto measured = deft::replay::measure(*job);
  if (measured && measured->profile.buckets.size() <= 16) static_cast<void>(deft::replay::explain(*job, *measured));
  return 0;
}
