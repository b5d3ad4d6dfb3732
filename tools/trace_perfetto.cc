#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/perfetto.pb.h"
#include "tools/trace_output.h"

namespace deft::tools {
namespace {

// Something that has no length in itself. Others may just have been short.
bool is_mark(const replay::TrackSlice& slice) {
  return slice.begin_us == slice.end_us && (slice.category == "gradient" || slice.category == "policy");
}

constexpr std::uint32_t kSequence = 1;      // all packets are of one writer
constexpr std::uint32_t kStateCleared = 1;  // SEQ_INCREMENTAL_STATE_CLEARED, on the first packet
constexpr std::uint64_t kNodeUuids = 1, kTrackUuids = 1 << 20;

class PerfettoWriter {
 public:
  explicit PerfettoWriter(std::ostream& out) : out_(out) {}

  void node(std::uint32_t number, const std::string& name);
  void track(std::uint32_t index, const replay::Track& track);
  void slices(const std::vector<replay::TrackSlice>& slices);

 private:
  perfetto::TracePacket& packet() {
    packet_.Clear();
    packet_.set_trusted_packet_sequence_id(kSequence);
    if (first_) packet_.set_sequence_flags(kStateCleared);
    first_ = false;
    return packet_;
  }
  perfetto::TrackEvent& event(std::uint32_t track, TimeUs at_us, perfetto::TrackEvent::Type type) {
    perfetto::TracePacket& at = packet();
    at.set_timestamp(static_cast<std::uint64_t>(at_us) * 1000);
    at.mutable_track_event()->set_type(type);
    at.mutable_track_event()->set_track_uuid(kTrackUuids + track);
    return *at.mutable_track_event();
  }
  // A trace is the field `packet`, repeated: so each packet is written on its own.
  void write() {
    trace_.Clear();
    trace_.add_packet()->Swap(&packet_);
    trace_.SerializeToOstream(&out_);
  }
  void begin(const replay::TrackSlice& slice);

  std::ostream& out_;
  bool first_ = true;
  perfetto::TracePacket packet_;
  perfetto::Trace trace_;
};

void PerfettoWriter::node(std::uint32_t number, const std::string& name) {
  auto& descriptor = *packet().mutable_track_descriptor();
  descriptor.set_uuid(kNodeUuids + number);
  descriptor.mutable_process()->set_pid(static_cast<std::int32_t>(number + 1));  // 0 is the idle process
  descriptor.mutable_process()->set_process_name(name);
  write();
}

void PerfettoWriter::track(std::uint32_t index, const replay::Track& track) {
  auto& descriptor = *packet().mutable_track_descriptor();
  descriptor.set_uuid(kTrackUuids + index);
  descriptor.set_parent_uuid(kNodeUuids + track.node);
  descriptor.set_name(track.name);
  write();
}

void PerfettoWriter::begin(const replay::TrackSlice& slice) {
  using Event = perfetto::TrackEvent;
  const bool at_once = is_mark(slice);
  Event& begun = event(slice.track, slice.begin_us, at_once ? Event::TYPE_INSTANT : Event::TYPE_SLICE_BEGIN);
  begun.set_name(slice.name);
  begun.add_categories(slice.category);
  for (const std::uint64_t flow : slice.flows) begun.add_flow_ids(flow);
  for (const auto& [name, value] : slice.numbers) {
    auto& annotation = *begun.add_debug_annotations();
    annotation.set_name(name);
    annotation.set_uint_value(value);
  }
  write();
}

// The slices of a track come in the order of their begin, each before those that it contains.
void PerfettoWriter::slices(const std::vector<replay::TrackSlice>& slices) {
  struct Open {
    std::uint32_t track;
    TimeUs end_us;
  };
  std::vector<Open> open;
  const auto close_until = [&](std::optional<replay::TrackSlice> next) {
    while (!open.empty() && (!next || open.back().track != next->track || open.back().end_us <= next->begin_us)) {
      event(open.back().track, open.back().end_us, perfetto::TrackEvent::TYPE_SLICE_END);
      write();
      open.pop_back();
    }
  };
  for (const auto& slice : slices) {
    close_until(slice);
    begin(slice);
    if (!is_mark(slice)) open.push_back({slice.track, slice.end_us});
  }
  close_until(std::nullopt);
}

}  // namespace

void write_perfetto(std::ostream& out, const replay::JobTimeline& timeline) {
  PerfettoWriter writer(out);
  for (const auto& node : timeline.nodes) writer.node(node.number, node.name);
  for (std::uint32_t i = 0; i < timeline.tracks.size(); ++i) writer.track(i, timeline.tracks[i]);
  writer.slices(timeline.slices);
}

}  // namespace deft::tools
