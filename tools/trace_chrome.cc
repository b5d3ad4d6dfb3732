#include <nlohmann/json.hpp>

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
}

}  // namespace deft::tools
