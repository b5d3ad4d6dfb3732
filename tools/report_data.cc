#include "tools/report_data.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/replay/daemon_cpu.h"
#include "core/replay/job_timeline.h"
#include "core/replay/launches.h"
#include "core/replay/quantiles.h"
#include "core/replay/step_sample.h"
#include "core/replay/worker_steps.h"
#include "tools/explanation_words.h"

namespace deft::tools {
namespace {

using nlohmann::json;
using replay::TimeShares;

constexpr std::size_t kMostSlices = 400'000;  // of a page: a browser draws so many without a stutter
constexpr std::size_t kNamesShown = 5;        // tensors of a bucket

json shares_of(const TimeShares& shares) {
  json list = json::array();
  for (const auto& [share, name] : kShareNames) list.push_back({{"name", name}, {"us", shares.*share}});
  return list;
}

json path_of(const std::vector<replay::PathPiece>& path, TimeUs origin_us, const replay::StepSample& sample) {
  json begins = json::array(), lengths = json::array(), kinds = json::array();
  for (const auto& piece : path) {
    if (!sample.shows(piece.begin_us - origin_us, piece.end_us - origin_us)) continue;
    const auto kind = std::ranges::find(kShareNames, piece.share, &ShareName::share) - kShareNames.begin();
    begins.push_back(piece.begin_us - origin_us);
    lengths.push_back(piece.end_us - piece.begin_us);
    kinds.push_back(kind);
  }
  return {{"b", begins}, {"d", lengths}, {"k", kinds}};
}

std::uint64_t launch_of(const replay::TrackSlice& slice) {
  for (const auto& [name, value] : slice.numbers)
    if (name == "launch") return value + 1;
  return 0;
}

json sample_json(const replay::StepSample& sample) {
  json steps = json::array();
  for (const auto& step : sample.steps) steps.push_back({step.step, step.begin_us, step.end_us - step.begin_us});
  return {{"all", sample.has_all}, {"cut", sample.is_cut}, {"steps", steps}, {"of", sample.steps_of_trace}};
}

json timeline_of(const replay::JobTimeline& timeline) {
  json tracks = json::array(), names = json::array();
  for (const auto& track : timeline.tracks)
    tracks.push_back({{"node", track.node},
                      {"name", track.name},
                      {"b", json::array()},
                      {"d", json::array()},
                      {"n", json::array()},
                      {"l", json::array()}});
  json nodes = json::array();
  for (const auto& node : timeline.nodes) nodes.push_back({node.number, node.name});
  std::map<std::pair<std::string, std::string>, std::size_t> known;
  for (const auto& slice : timeline.slices) {
    const auto [at, is_new] = known.try_emplace({slice.category, slice.name}, known.size());
    if (is_new) names.push_back({slice.category, slice.name});
    json& track = tracks[slice.track];
    track["b"].push_back(slice.begin_us);
    track["d"].push_back(slice.end_us - slice.begin_us);
    track["n"].push_back(at->second);
    track["l"].push_back(launch_of(slice));
  }
  return {{"tracks", tracks}, {"names", names}, {"nodes", nodes}};
}

// The steps of each node's first worker.
json steps_of(const replay::JobTrace& trace, TimeUs origin_us) {
  json nodes = json::array();
  for (const auto& node : trace.nodes) {
    const auto* const group = replay::largest_group(node.trace);
    json columns = {{"node", node.trace.header.node},
                    {"step", json::array()},
                    {"begin", json::array()},
                    {"ms", json::array()},
                    {"compute", json::array()}};
    if (group != nullptr)
      for (const auto& step : replay::steps_of(node.trace, *group, 0)) {
        columns["step"].push_back(step.number);
        columns["begin"].push_back(step.ended_us - static_cast<TimeUs>(step.whole_us) - origin_us);
        columns["ms"].push_back(step.whole_us / 1e3);
        columns["compute"].push_back(step.compute_us() / 1e3);
      }
    nodes.push_back(std::move(columns));
  }
  return nodes;
}

struct BucketTimes {
  std::vector<double> ready_us;  // after the begin of backward
  std::vector<double> wait_us;   // of each part, from its gradients to its transfer
  double link_us = 0, path_us = 0, wire_bytes = 0;
  std::size_t parts = 0;
};

std::map<std::uint32_t, BucketTimes> bucket_times(const replay::JobTrace& trace, const trace::TraceGroup& group,
                                                  const std::vector<replay::WorkerStep>& steps,
                                                  const std::vector<replay::PathPiece>& path) {
  std::map<std::uint32_t, BucketTimes> times;
  std::map<std::uint64_t, std::uint32_t> bucket_of;  // by launch
  std::set<std::uint64_t> kept;                      // the warm-up and the unfinished last step do not count
  for (const auto& step : steps) kept.insert(step.number);
  for (const auto& step : steps)
    for (std::uint32_t b = 0; b < step.ready_us.size(); ++b)
      if (step.ready_us[b] > 0)
        times[b].ready_us.push_back(static_cast<double>(step.ready_us[b] - step.backward_began_us));
  for (const auto& launch : replay::launches_of(trace.leader()->trace)) {
    if (!launch.order || launch.order->group != group.group || launch.spans.empty()) continue;
    bucket_of[launch.number] = launch.order->bucket;
    if (!launch.last_step || !kept.contains(*launch.last_step)) continue;
    BucketTimes& bucket = times[launch.order->bucket];
    bucket.parts += 1;
    bucket.wire_bytes += static_cast<double>(launch.wire_bytes);
    bucket.link_us += launch.stage_us(trace::TransferStage::kLink);
    if (launch.ready_us)
      bucket.wait_us.push_back(std::max(0.0, static_cast<double>(launch.begin_us() - *launch.ready_us)));
  }
  for (const auto& piece : path)
    if (const auto bucket = bucket_of.find(piece.launch);
        piece.share != &TimeShares::compute_us && bucket != bucket_of.end())
      times[bucket->second].path_us += static_cast<double>(piece.end_us - piece.begin_us);
  return times;
}

std::string tensor_names(const trace::TraceGroup& group, const std::vector<std::uint32_t>& tensors) {
  std::string text;
  for (std::size_t i = 0; i < tensors.size() && i <= kNamesShown; ++i)
    text += (i > 0 ? ", " : "") + (i == kNamesShown ? "..." : group.tensors[tensors[i]].name);
  return text;
}

json buckets_of(const replay::JobTrace& trace, const std::vector<replay::PathPiece>& path) {
  json list = json::array();
  const auto* const group = replay::largest_group(trace.leader()->trace);
  if (group == nullptr) return list;
  const auto steps = replay::steps_of(trace.leader()->trace, *group, 0);
  const auto times = bucket_times(trace, *group, steps, path);
  const double count = std::max<double>(1, static_cast<double>(steps.size()));
  for (std::uint32_t b = 0; b < group->buckets.size(); ++b) {
    const auto at = times.find(b);
    const BucketTimes bucket = at == times.end() ? BucketTimes() : at->second;
    list.push_back({{"bucket", b},
                    {"tensors", tensor_names(*group, group->buckets[b].tensors)},
                    {"count", group->buckets[b].tensors.size()},
                    {"bytes", group->buckets[b].bytes},
                    {"ready_ms", replay::median(bucket.ready_us) / 1e3},
                    {"parts", static_cast<double>(bucket.parts) / count},
                    {"wait_ms", replay::median(bucket.wait_us) / 1e3},
                    {"link_ms", bucket.link_us / count / 1e3},
                    {"wire_bytes", bucket.wire_bytes / count},
                    {"path_ms", bucket.path_us / count / 1e3}});
  }
  return list;
}

json tensors_of(const replay::JobTrace& trace) {
  json list = json::array();
  const auto* const group = replay::largest_group(trace.leader()->trace);
  if (group == nullptr) return list;
  const auto buckets = replay::buckets_by_tensor(*group);
  for (std::size_t i = 0; i < group->tensors.size(); ++i)
    list.push_back({{"tensor", group->tensors[i].name}, {"bytes", group->tensors[i].bytes}, {"buckets", buckets[i]}});
  return list;
}

struct TrafficSum {
  double bytes = 0, rtt_us = 0;
  std::uint64_t resent = 0;
  TimeUs from_us = 0;
};
using TrafficByPeriod = std::map<TimeUs, TrafficSum>;  // by its end

// What the node sent to all others, by link.
std::map<std::uint16_t, TrafficByPeriod> traffic_by_link(const trace::NodeTrace& trace) {
  std::map<std::uint16_t, TrafficByPeriod> links;
  for (const auto& record : trace.records) {
    if (record.kind() != trace::TraceKind::kTraffic) continue;
    const auto traffic = record.as<trace::TrafficTrace>();
    TrafficSum& sum = links[traffic.link][record.end_us()];
    sum.bytes += static_cast<double>(traffic.sent_bytes);
    sum.rtt_us = std::max(sum.rtt_us, static_cast<double>(traffic.rtt_us));
    sum.resent += traffic.resent;
    sum.from_us = record.begin_us();
  }
  return links;
}

// What each node sent over each link, ten times a second.
json traffic_of(const replay::JobTrace& trace, TimeUs origin_us) {
  json series = json::array();
  for (const auto& node : trace.nodes)
    for (const auto& [link, periods] : traffic_by_link(node.trace)) {
      const auto& names = node.trace.header.links;
      json columns = {{"node", node.trace.header.node},
                      {"link", link < names.size() ? names[link] : "?"},
                      {"t", json::array()},
                      {"mbit", json::array()},
                      {"resent", json::array()},
                      {"rtt_us", json::array()}};
      for (const auto& [end_us, sum] : periods) {
        const double us = std::max<double>(1, static_cast<double>(end_us - sum.from_us));
        columns["t"].push_back(end_us - origin_us);
        columns["mbit"].push_back(8 * sum.bytes / us);
        columns["resent"].push_back(sum.resent);
        columns["rtt_us"].push_back(sum.rtt_us);
      }
      series.push_back(std::move(columns));
    }
  return series;
}

constexpr std::size_t kMostThreads = 1000;  // of a page

// How busy the threads of each node's daemon were.
json threads_of(const replay::JobTrace& trace, double step_us) {
  json list = json::array();
  for (const auto& use : replay::thread_uses(trace)) {
    if (list.size() == kMostThreads) break;
    list.push_back({{"node", use.node},
                    {"place", replay::place_of(use, trace)},
                    {"work", model::work_of(use.thread)},
                    {"number", use.number},
                    {"step_ms", use.share * step_us / 1e3},
                    {"busy", model::is_of_link(use.thread) ? json(use.busy) : json()},
                    {"share", use.share}});
  }
  return list;
}

}  // namespace

json report_data(const TracedJob& job, const replay::Explanation& explanation) {
  const replay::JobTrace& trace = job.trace;
  const auto& header = trace.leader()->trace.header;
  const TimeUs origin_us = replay::beginning_of(trace);
  std::vector<replay::PathPiece> path;
  replay::time_shares(trace, &path);
  auto timeline = replay::make_timeline(trace);
  const auto sample = replay::sample_steps(timeline, replay::step_spans(trace), kMostSlices);
  json problems = trace.problems;
  for (const auto& problem : job.measured.problems) problems.push_back(problem);
  return {{"job", header.job},
          {"options", header.options},
          {"links", header.links},
          {"problems", problems},
          {"causes", causes_json(explanation)},
          {"doubt", explanation.doubt},
          {"notes", explanation.notes},
          {"shares", shares_of(explanation.shares)},
          {"measured_us", explanation.measured_step_us},
          {"replayed_us", explanation.replayed_step_us},
          {"timeline", timeline_of(timeline)},
          {"drawn", sample_json(sample)},
          {"path", path_of(path, origin_us, sample)},
          {"steps", steps_of(trace, origin_us)},
          {"buckets", buckets_of(trace, path)},
          {"tensors", tensors_of(trace)},
          {"traffic", traffic_of(trace, origin_us)},
          {"threads", threads_of(trace, explanation.measured_step_us)}};
}

}  // namespace deft::tools
