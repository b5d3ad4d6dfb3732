#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "tools/trace_output.h"

namespace deft::tools {
namespace {

using nlohmann::json;

class ChromeWriter {
 public:
  explicit ChromeWriter(std::ostream& out) : out_(out) { out_ << "[\n"; }
  ~ChromeWriter() { out_ << "\n]\n"; }
  ChromeWriter(const ChromeWriter&) = delete;
  ChromeWriter& operator=(const ChromeWriter&) = delete;

  void add(const json& event) {
    out_ << (first_ ? "" : ",\n") << event.dump();
    first_ = false;
  }

 private:
  std::ostream& out_;
  bool first_ = true;
};

json event_of(const replay::TrackSlice& slice, const replay::Track& track) {
  json arguments = json::object();
  for (const auto& [name, value] : slice.numbers) arguments[name] = value;
  return {{"ph", "X"},
          {"pid", track.node},
          {"tid", slice.track},
          {"ts", slice.begin_us},
          {"dur", slice.end_us - slice.begin_us},
          {"name", slice.name},
          {"cat", slice.category},
          {"args", std::move(arguments)}};
}

// The slices that an arrow joins, by its number: in the order of their begin.
std::map<std::uint64_t, std::vector<const replay::TrackSlice*>> slices_by_flow(const replay::JobTimeline& timeline) {
  std::map<std::uint64_t, std::vector<const replay::TrackSlice*>> flows;
  for (const auto& slice : timeline.slices)
    for (const std::uint64_t flow : slice.flows) flows[flow].push_back(&slice);
  const auto order = [](const replay::TrackSlice* slice) {  // a send comes first, also if it began at the same time
    return std::pair(slice->begin_us, slice->category == "receive");
  };
  for (auto& [flow, slices] : flows) std::ranges::stable_sort(slices, {}, order);
  return flows;
}

// An arrow has a start, steps, and a finish. Each is bound to the slice of its track that holds its time.
void add_arrows(const replay::JobTimeline& timeline, ChromeWriter& writer) {
  for (const auto& [flow, slices] : slices_by_flow(timeline)) {
    if (slices.size() < 2) continue;
    for (const auto* const slice : slices) {
      const bool is_first = slice == slices.front(), is_last = slice == slices.back();
      json event = {{"ph", is_first  ? "s"
                           : is_last ? "f"
                                     : "t"},
                    {"id", flow},
                    {"pid", timeline.tracks[slice->track].node},
                    {"tid", slice->track},
                    {"ts", slice->begin_us},
                    {"name", slice->category == "transfer" ? "launch" : "segment"},
                    {"cat", slice->category}};
      if (is_last) event["bp"] = "e";  // a finish would else be bound to the slice that comes next
      writer.add(event);
    }
  }
}

}  // namespace

void write_chrome(std::ostream& out, const replay::JobTimeline& timeline) {
  ChromeWriter writer(out);
  for (const auto& node : timeline.nodes)
    writer.add({{"ph", "M"}, {"pid", node.number}, {"name", "process_name"}, {"args", {{"name", node.name}}}});
  for (std::size_t i = 0; i < timeline.tracks.size(); ++i)
    writer.add({{"ph", "M"},
                {"pid", timeline.tracks[i].node},
                {"tid", i},
                {"name", "thread_name"},
                {"args", {{"name", timeline.tracks[i].name}}}});
  for (const auto& slice : timeline.slices) writer.add(event_of(slice, timeline.tracks[slice.track]));
  add_arrows(timeline, writer);
}

}  // namespace deft::tools
