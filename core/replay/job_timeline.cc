#include "core/replay/job_timeline.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <unordered_map>

#include "core/model/events.h"
#include "core/model/segment_part.h"
#include "core/replay/launches.h"
#include "core/replay/policies_in_force.h"
#include "core/replay/segments.h"
#include "core/replay/worker_steps.h"

namespace deft::replay {
namespace {

using trace::TraceKind;
using trace::TransferStage;

constexpr std::size_t kNamesShown = 3;  // tensors in the name of a slice

std::string_view stage_name(std::uint16_t stage) {
  switch (static_cast<TransferStage>(stage)) {
    case TransferStage::kSum: return "sum of local workers";
    case TransferStage::kEncode: return "encode";
    case TransferStage::kLink: return "link";
    case TransferStage::kDecode: return "decode";
    case TransferStage::kCopy: return "copy to local workers";
    case TransferStage::kReport: return "report";
  }
  return "unknown";
}

// "segment 3 to node 1", "result 3 of server 0".
std::string name_of(const trace::SegmentTrace& segment) {
  return std::string(model::name_of(static_cast<model::SegmentPart>(segment.part))) + " " +
         std::to_string(segment.round) + (segment.is_sent == 1 ? " to " : " of ") +
         (segment.is_server == 1 ? "server " : "node ") + std::to_string(segment.peer);
}

// When each of some tracks is free. The nodes of a tree over the tracks have the earliest of these times, so that a hundred thousand
// transfers at once do not take hours.
class FreeTimes {
 public:
  [[nodiscard]] std::size_t size() const { return size_; }
  // The first track that is free at this time; size() if there is none.
  [[nodiscard]] std::size_t first(TimeUs at_us) const {
    if (size_ == 0 || tree_[1] > at_us) return size_;
    std::size_t node = 1;
    while (node < leaves()) node = 2 * node + (tree_[2 * node] <= at_us ? 0 : 1);
    return node - leaves();
  }
  void set(std::size_t track, TimeUs free_us) {
    std::size_t node = leaves() + track;
    tree_[node] = free_us;
    while ((node /= 2) > 0) tree_[node] = std::min(tree_[2 * node], tree_[2 * node + 1]);
  }
  void add(TimeUs free_us) {
    if (size_ == leaves()) grow();
    set(size_++, free_us);
  }

 private:
  static constexpr TimeUs kNever = std::numeric_limits<TimeUs>::max();
  [[nodiscard]] std::size_t leaves() const { return tree_.size() / 2; }
  void grow() {
    const std::vector<TimeUs> times(tree_.begin() + static_cast<std::ptrdiff_t>(leaves()), tree_.end());
    tree_.assign(std::max<std::size_t>(2, 2 * tree_.size()), kNever);
    for (std::size_t track = 0; track < times.size(); ++track) set(track, times[track]);
  }

  std::vector<TimeUs> tree_;  // the root is 1, the children of i are 2i and 2i + 1, and the second half are the tracks
  std::size_t size_ = 0;
};

// Gives things that overlap tracks of their own: each takes the first track that is free when it begins.
class TrackPool {
 public:
  TrackPool(JobTimeline& timeline, std::uint32_t node, std::string name)
      : timeline_(timeline), node_(node), name_(std::move(name)) {}

  std::uint32_t take(TimeUs begin_us, TimeUs end_us) {
    const std::size_t track = free_.first(begin_us);
    if (track < free_.size()) return free_.set(track, end_us), tracks_[track];
    timeline_.tracks.push_back({node_, name_ + (tracks_.empty() ? "" : " #" + std::to_string(tracks_.size() + 1))});
    free_.add(end_us);
    return tracks_.emplace_back(static_cast<std::uint32_t>(timeline_.tracks.size() - 1));
  }

 private:
  JobTimeline& timeline_;
  const std::uint32_t node_;
  const std::string name_;
  std::vector<std::uint32_t> tracks_;
  FreeTimes free_;  // of them
};

// The flows of segments: one for each receive, and its send. A send to a server may feed a receive of each node.
class SegmentFlows {
 public:
  SegmentFlows(const JobTrace& job, bool has_segments) {
    if (!has_segments) return;
    for (const auto& node : job.nodes) sent_.add(node.trace);
    sent_.index();
    for (const auto& node : job.nodes) add_receives(node.trace);
  }
  // The send that is recorded, or that fed what is. Null: it is not known.
  [[nodiscard]] const SentSegments::Send* send_of(std::uint32_t node, const trace::SegmentTrace& segment) const {
    return segment.is_sent == 1 ? sent_.of(node, segment) : sent_.that_fed(node, segment);
  }
  // The flow of a receive of `node`, which that send fed.
  [[nodiscard]] std::uint64_t flow(const SentSegments::Send& send, std::uint32_t node) const {
    return kFirstSegmentFlow + std::uint64_t{node} * sent_.size() + sent_.number_of(send);
  }
  // The flows of all receives that a send fed.
  [[nodiscard]] std::vector<std::uint64_t> flows(const SentSegments::Send& send) const {
    const auto fed = fed_.find(sent_.number_of(send));
    return fed == fed_.end() ? std::vector<std::uint64_t>{} : fed->second;
  }

 private:
  void add_receives(const trace::NodeTrace& trace) {
    for (const auto& record : trace.records) {
      if (record.kind() != TraceKind::kSegment) continue;
      const auto segment = record.as<trace::SegmentTrace>();
      if (segment.is_sent == 1) continue;
      if (const auto* const send = sent_.that_fed(trace.header.node, segment))
        fed_[sent_.number_of(*send)].push_back(flow(*send, trace.header.node));
    }
  }

  SentSegments sent_;
  std::unordered_map<std::size_t, std::vector<std::uint64_t>> fed_;  // the flows of a send, by its number
};

class NodeTimeline {
 public:
  NodeTimeline(const AlignedNode& node, TimeUs origin_us, JobTimeline& timeline)
      : trace_(node.trace), origin_us_(origin_us), timeline_(timeline) {}

  void add();
  void add_segments(const SegmentFlows& flows);

 private:
  void add(std::uint32_t track, TimeUs begin_us, TimeUs end_us, TrackSlice slice) {
    slice.track = track;
    slice.begin_us = begin_us - origin_us_;
    slice.end_us = end_us - origin_us_;
    timeline_.slices.push_back(std::move(slice));
  }
  void add_policies();
  void add_stages();
  void add_gradients();
  void add_launches();
  void add_transfer(const NodeLaunch& launch, TrackPool& pool);
  [[nodiscard]] std::string link_name(std::uint16_t link) const;
  [[nodiscard]] std::uint32_t worker_track(std::uint32_t worker);
  [[nodiscard]] const trace::TraceGroup* group(std::uint32_t id) const;
  [[nodiscard]] std::string tensor_names(std::uint32_t group, const std::vector<std::uint32_t>& tensors) const;
  [[nodiscard]] std::string describe(const NodeLaunch& launch) const;

  const trace::NodeTrace& trace_;
  const TimeUs origin_us_;
  JobTimeline& timeline_;
  std::map<std::uint32_t, std::uint32_t> worker_tracks_;
};

std::uint32_t NodeTimeline::worker_track(std::uint32_t worker) {
  const auto [at, is_new] = worker_tracks_.emplace(worker, timeline_.tracks.size());
  if (is_new) {
    const auto& ranks = trace_.header.ranks;
    const std::string name =
        worker < ranks.size() ? "rank " + std::to_string(ranks[worker]) : "worker " + std::to_string(worker);
    timeline_.tracks.push_back({trace_.header.node, name});
  }
  return at->second;
}

const trace::TraceGroup* NodeTimeline::group(std::uint32_t id) const {
  const auto at = std::ranges::find(trace_.groups, id, &trace::TraceGroup::group);
  return at == trace_.groups.end() ? nullptr : &*at;
}

std::string NodeTimeline::tensor_names(std::uint32_t id, const std::vector<std::uint32_t>& tensors) const {
  const trace::TraceGroup* const known = group(id);
  std::string text;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (i == kNamesShown) return text + ", ...";
    const bool named = known != nullptr && tensors[i] < known->tensors.size();
    text += (i > 0 ? ", " : "") + (named ? known->tensors[tensors[i]].name : "tensor " + std::to_string(tensors[i]));
  }
  return text;
}

// A policy that was chosen before the trace began is marked at its beginning.
void NodeTimeline::add_policies() {
  std::optional<std::uint32_t> track;
  for (const auto& group : trace_.groups)
    for (const PolicyInForce& policy : policies_in_force(trace_, group)) {
      if (!track) {
        track = static_cast<std::uint32_t>(timeline_.tracks.size());
        timeline_.tracks.push_back({trace_.header.node, "policy"});
      }
      const TimeUs at_us = std::max(origin_us_, policy.recorded_us);
      add(*track, at_us, at_us,
          {.name = to_text(policy), .category = "policy", .numbers = {{"group", group.group}, {"step", policy.step}}});
    }
}

// A stage lasts until the worker's next one. What the worker has waited is told with the next one.
void NodeTimeline::add_stages() {
  std::map<std::uint32_t, std::pair<TimeUs, trace::StageTrace>> open;  // by worker
  for (const auto& record : trace_.records) {
    if (record.kind() != TraceKind::kStage) continue;
    const auto stage = record.as<trace::StageTrace>();
    if (const auto at = open.find(stage.worker); at != open.end()) {
      const auto& [began_us, before] = at->second;
      const bool forward = before.stage == static_cast<std::uint32_t>(model::Stage::kForward);
      add(worker_track(stage.worker), began_us, std::max(began_us, record.begin_us()),
          {.name = (forward ? "forward " : "backward ") + std::to_string(before.step),
           .category = "compute",
           .numbers = {{"step", before.step}, {"waited_us", stage.waited_us}}});
    }
    open.insert_or_assign(stage.worker, std::pair(record.begin_us(), stage));
  }
}

void NodeTimeline::add_gradients() {
  for (const auto& record : trace_.records) {
    if (record.kind() != TraceKind::kGradient) continue;
    const auto gradient = record.as<trace::GradientTrace>();
    std::vector<std::uint32_t> tensors(std::min<std::size_t>(gradient.tensors, kNamesShown + 1));
    std::iota(tensors.begin(), tensors.end(), gradient.first_tensor);
    add(worker_track(gradient.worker), record.begin_us(), record.begin_us(),
        {.name = tensor_names(gradient.group, tensors),
         .category = "gradient",
         .numbers = {{"generation", gradient.generation}, {"tensors", gradient.tensors}}});
  }
}

std::string NodeTimeline::describe(const NodeLaunch& launch) const {
  if (!launch.order) return "collective";
  const trace::TraceGroup* const known = group(launch.order->group);
  if (known == nullptr || launch.order->bucket >= known->buckets.size())
    return "bucket " + std::to_string(launch.order->bucket);
  const auto& bucket = known->buckets[launch.order->bucket];
  return "bucket " + std::to_string(launch.order->bucket) + ": " + tensor_names(launch.order->group, bucket.tensors);
}

void NodeTimeline::add_transfer(const NodeLaunch& launch, TrackPool& pool) {
  const std::uint32_t track = pool.take(launch.begin_us(), launch.end_us());
  std::vector<std::pair<std::string, std::uint64_t>> numbers = {{"launch", launch.number}, {"bytes", launch.bytes}};
  if (launch.wire_bytes != launch.bytes) numbers.emplace_back("wire_bytes", launch.wire_bytes);
  if (launch.order) {
    numbers.emplace_back("generation", launch.order->generation);
    numbers.emplace_back("offset", launch.order->offset);
  }
  add(track, launch.begin_us(), launch.end_us(),
      {.name = describe(launch), .category = "transfer", .numbers = std::move(numbers), .flows = {launch.number + 1}});
  for (const auto& span : launch.spans)
    add(track, span.begin_us, span.end_us,
        {.name = std::string(stage_name(span.stage)), .category = "stage", .numbers = {}});
}

void NodeTimeline::add_launches() {
  std::map<std::uint16_t, TrackPool> links;
  TrackPool waiting(timeline_, trace_.header.node, "waits for a link");
  for (const NodeLaunch& launch : launches_of(trace_)) {
    if (launch.spans.empty()) continue;
    if (launch.ready_us && *launch.ready_us < launch.begin_us())
      add(waiting.take(*launch.ready_us, launch.begin_us()), *launch.ready_us, launch.begin_us(),
          {.name = describe(launch), .category = "wait", .numbers = {{"launch", launch.number}}});
    auto& pool = links.try_emplace(launch.link, timeline_, trace_.header.node, link_name(launch.link)).first->second;
    add_transfer(launch, pool);
  }
}

// A receive is drawn from its send on, if that is known: this node may have begun to wait long before.
void NodeTimeline::add_segments(const SegmentFlows& flows) {
  std::map<std::pair<std::uint16_t, std::uint8_t>, TrackPool> pools;  // by link and direction
  for (const auto& record : trace_.records) {
    if (record.kind() != TraceKind::kSegment) continue;
    const auto segment = record.as<trace::SegmentTrace>();
    const bool is_sent = segment.is_sent == 1;
    const auto* const send = flows.send_of(trace_.header.node, segment);
    TimeUs begin_us = record.begin_us();
    std::vector<std::uint64_t> joined;
    if (send != nullptr) {
      begin_us = std::max(begin_us, send->begin_us);
      joined = is_sent ? flows.flows(*send) : std::vector{flows.flow(*send, trace_.header.node)};
    }
    const TimeUs end_us = std::max(begin_us, record.end_us());
    const std::string name = link_name(segment.link) + (is_sent ? " sends" : " receives");
    auto& pool = pools.try_emplace({segment.link, segment.is_sent}, timeline_, trace_.header.node, name).first->second;
    add(pool.take(begin_us, end_us), begin_us, end_us,
        {.name = name_of(segment),
         .category = is_sent ? "send" : "receive",
         .numbers = {{"launch", segment.number}, {"bytes", segment.bytes}, {"request", segment.request}},
         .flows = std::move(joined)});
  }
}

std::string NodeTimeline::link_name(std::uint16_t link) const {
  const auto& names = trace_.header.links;
  return link < names.size() ? names[link] : "link " + std::to_string(link);
}

void NodeTimeline::add() {
  for (const std::uint32_t worker : recorded_workers(trace_)) static_cast<void>(worker_track(worker));
  add_policies();
  add_stages();
  add_gradients();
  add_launches();
}

}  // namespace

TimeUs beginning_of(const JobTrace& job) {
  TimeUs begin_us = std::numeric_limits<TimeUs>::max();
  for (const auto& node : job.nodes)
    for (const auto& record : node.trace.records)
      if (!trace::may_be_older(record.kind())) begin_us = std::min(begin_us, record.begin_us());
  return begin_us == std::numeric_limits<TimeUs>::max() ? 0 : begin_us;
}

JobTimeline make_timeline(const JobTrace& job, Detail detail) {
  JobTimeline timeline;
  const TimeUs origin_us = beginning_of(job);
  const bool has_segments = detail == Detail::kSegments;
  const SegmentFlows flows(job, has_segments);
  for (const auto& node : job.nodes) {
    const auto& header = node.trace.header;
    timeline.nodes.push_back({header.node, "node " + std::to_string(header.node) + ": " + header.host});
    NodeTimeline of_node(node, origin_us, timeline);
    of_node.add();
    if (has_segments) of_node.add_segments(flows);
  }
  std::ranges::stable_sort(timeline.slices, {}, [](const TrackSlice& slice) {
    return std::make_tuple(slice.track, slice.begin_us, -slice.end_us);
  });
  return timeline;
}

}  // namespace deft::replay
