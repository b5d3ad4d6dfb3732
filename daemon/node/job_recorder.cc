#include "daemon/node/job_recorder.h"

#include <glog/logging.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "core/base/policy_traits.h"
#include "core/compress/registry.h"
#include "core/shm/memory_records.h"
#include "core/trace/link_cost_trace.h"
#include "core/trace/segment_trace.h"
#include "daemon/base/log_lines.h"

namespace deft::daemon {
namespace {

constexpr TimeUs kStallDumpsUs = 60'000'000;     // a stall is told again and again, and written only now and then
constexpr std::size_t kMostStreams = 4;          // of which a slow disk keeps all but one; each has a thread
constexpr double kNoticeable = 0.005;            // of a link's cost
constexpr TimeUs kLongestAnswerUs = 60'000'000;  // an answer that took longer says nothing about the clocks

trace::TraceGroup::Bucket traced_bucket(const BucketMap& map, model::BucketIndex number, std::uint64_t min_bytes) {
  const model::Bucket& bucket = map.buckets()[number];
  trace::TraceGroup::Elements elements{.dtype = bucket.dtype};
  for (const std::uint32_t tensor : map.tensors_of(number))
    if (model::is_encodable(map.specs()[tensor], min_bytes))
      elements.coded_bytes += model::bytes_in(bucket, map.layout().tensors[tensor]);
  return {bucket.bytes, bucket.forward_position, map.tensors_of(number), elements};
}

trace::PolicyTrace traced_policy(const GroupPolicy& policy) {
  const auto fitting = [](double value) {
    return static_cast<std::uint32_t>(std::clamp(value, 0.0, double{std::numeric_limits<std::uint32_t>::max()}));
  };
  const sched::PolicyChange& change = policy.change;
  return {.step = change.step,
          .partition_bytes = change.sizes.partition_bytes,
          .credit_bytes = change.sizes.credit_bytes,
          .fused_bytes = fitting(static_cast<double>(change.choice.fused_bytes)),
          .before_us = fitting(change.before_us.value_or(0)),
          .after_us = fitting(change.after_us.value_or(0)),
          .group = static_cast<std::uint16_t>(policy.group),
          .policy = static_cast<std::uint8_t>(find_policy(change.choice.policy)->id),
          .reason = static_cast<std::uint8_t>(change.why)};
}

trace::LinkCostTrace traced_cost(model::LinkIndex link, const model::LinkModel& cost) {
  return {.latency_us = cost.latency_us, .bytes_per_us = cost.bytes_per_us, .link = static_cast<std::uint16_t>(link)};
}

// Changes that no decision would notice are not recorded.
bool has_moved(const trace::LinkCostTrace& then, const model::LinkModel& now) {
  const auto moved = [](double a, double b) { return std::abs(a - b) > kNoticeable * std::max(a, b); };
  return moved(then.latency_us, now.latency_us) || moved(then.bytes_per_us, now.bytes_per_us);
}

void record_cpu(trace::Recorder& recorder, const CpuTimes& times, std::size_t link) {
  for (const ThreadTime& thread : times.threads)
    recorder.add({times.since_us, times.until_us,
                  trace::CpuTrace{.cpu_us = static_cast<std::uint64_t>(thread.cpu_us),
                                  .thread = static_cast<std::uint16_t>(thread.thread),
                                  .link = static_cast<std::uint16_t>(link),
                                  .number = thread.number}});
}

// 0: a worker that is not here.
std::vector<pid_t> processes_of(const Membership& members) {
  std::vector<pid_t> processes;
  for (const auto& worker : members.workers()) processes.push_back(worker.port == nullptr ? 0 : worker.pid);
  return processes;
}

void record_segments(trace::Recorder& recorder, const link::SegmentLog& segments, std::uint64_t number,
                     std::size_t link) {
  for (const link::SegmentMove& move : segments.moves())
    recorder.add({move.began_us, move.ended_us,
                  trace::SegmentTrace{.number = number,
                                      .bytes = move.bytes,
                                      .peer = move.peer,
                                      .round = move.round,
                                      .link = static_cast<std::uint16_t>(link),
                                      .request = static_cast<std::uint16_t>(move.request),
                                      .part = static_cast<std::uint8_t>(move.part),
                                      .is_sent = static_cast<std::uint8_t>(move.is_sent),
                                      .is_server = static_cast<std::uint8_t>(move.is_server)}});
}

// `changed`: the options that the user has changed since the job began.
trace::TraceHeader header_of(const Membership& members, const View& view, const std::string& host,
                             const std::map<std::string, std::string>& changed) {
  trace::TraceHeader header{.job = members.identity().name,
                            .incarnation = view.epoch(),
                            .node = view.node(),
                            .nodes = view.node_count(),
                            .host = host,
                            .begun_s = static_cast<std::uint64_t>(std::max<std::time_t>(0, std::time(nullptr))),
                            .ranks = members.ranks()};
  header.options = members.settings().agreed();
  header.options["compression"] = members.settings().options.text("compression");  // empty: each policy's own
  for (const auto& [name, value] : changed) header.options[name] = value;
  for (const auto& link : view.links()) header.links.push_back(link.name());
  for (const auto& codec : members.settings().codecs)
    header.codecs.push_back(codec == nullptr ? "none" : compress::text_of(*codec));
  return header;
}

Result<void> check_owner(const JobIdentity& job) {
  if (::geteuid() == job.uid) return {};
  return fail(ErrorKind::kUnavailable, "a trace is wanted, and this node's daemon belongs to another user",
              "let deftrun start a daemon of your own: DEFT_SOCKET=/tmp/my-deftd.sock");
}

}  // namespace

Result<StepRange> parse_step_range(const std::string& text) {
  StepRange range;
  const char* const end = text.data() + text.size();
  auto read = std::from_chars(text.data(), end, range.first);
  range.last = range.first;
  if (read.ec == std::errc{} && read.ptr != end && *read.ptr == '-')
    read = std::from_chars(read.ptr + 1, end, range.last);
  if (read.ec != std::errc{} || read.ptr != end || range.last < range.first)
    return fail(ErrorKind::kInvalid, "trace_steps is '" + text + "'", "give a step or a range of steps: 100-119");
  return range;
}

JobRecorder::JobRecorder(const Membership& members, std::shared_ptr<const View> view, Place place)
    : members_(members), view_(std::move(view)), place_(std::move(place)) {}

void JobRecorder::settings_changed(std::map<std::string, std::string> options, TimeUs now_us) {
  recorder_->add({now_us, now_us, trace::SettingsTrace{static_cast<std::uint32_t>(options.size())}});
  options.merge(changed_.options);  // the new values win
  changed_.options = std::move(options);
}

void JobRecorder::take_decisions(SchedulerPort& schedulers, TimeUs now_us) {
  for (const GroupPolicy& policy : schedulers.take_policies()) {
    const trace::TraceRecord record(now_us, now_us, traced_policy(policy));
    recorder_->add(record);
    changed_.policies[policy.group] = record;
  }
  auto& costs = changed_.link_costs;
  for (model::LinkIndex link = 0; const auto* const cost = schedulers.link_cost(link); ++link) {
    const trace::TraceRecord record(now_us, now_us, traced_cost(link, *cost));
    const bool is_new = link == costs.size();
    if (!is_new && !has_moved(costs[link].as<trace::LinkCostTrace>(), *cost)) continue;
    recorder_->add(record);
    if (is_new) costs.emplace_back();
    costs[link] = record;
  }
}

void JobRecorder::Changed::add_decisions(trace::Recorder& recorder) const {
  for (const auto& [group, policy] : policies) recorder.add(policy);
  for (const auto& cost : link_costs) recorder.add(cost);
}

void JobRecorder::begin(std::function<void(Result<void>)> ready) {
  const Config& options = members_.settings().options;
  if (options.text("trace").empty()) return ready({});
  if (auto ok = check_owner(members_.identity()); !ok) return ready(ok);
  const std::string text = options.text("trace_steps");
  if (text.empty()) return open_stream(options.text("trace"), std::move(ready));
  const auto steps = parse_step_range(text);
  if (!steps) return ready(tl::unexpected(steps.error()));
  steps_.wanted = *steps;
  streams_.check(options.text("trace"), std::move(ready));
}

void JobRecorder::open_stream(const std::string& path_of_folder, std::function<void(Result<void>)> then) {
  const std::string name = trace_file_name(members_.identity().name, view_->node());
  const auto complain = [job = about(members_.identity())](const Error& error) {
    LOG(ERROR) << job << "the trace ends here: " << error.message();
  };
  const auto opened = [this, path = path_of_folder + "/" + name, then = std::move(then)](const Result<void>& ok) {
    if (!ok) return then(ok);
    for (const auto& group : groups_) streams_.newest().add(group);
    changed_.add_decisions(*recorder_);
    writing_.path = path;
    writing_.told.clear();
    LOG(INFO) << about(members_.identity()) << "writes a trace to " << path;
    then({});
  };
  streams_.open({path_of_folder, name, header_of(members_, *view_, place_.host, changed_.options), place_.most_bytes},
                complain, opened);
}

void JobRecorder::end(bool clean) {
  const bool all_written = is_writing() && !steps_.written && streams_.newest().is_whole();
  streams_.end();
  writing_.path.clear();
  if (clean || all_written || recorder_->now().next == 0) return;
  static_cast<void>(dump("the job failed"));  // without a state folder there is nothing to do
}

void JobRecorder::stalled(TimeUs now_us) {
  if (dumps_.stall_us != 0 && now_us - dumps_.stall_us < kStallDumpsUs) return;
  dumps_.stall_us = now_us;
  static_cast<void>(dump("the job is stalled"));
}

void JobRecorder::obey(const wire::TraceOrder& order, const Told& told) {
  switch (order.action) {
    case ipc::TraceAction::kStart: return start(order, told);
    case ipc::TraceAction::kStop: return told(stop());
    case ipc::TraceAction::kDump: break;
  }
  told(dump("a user asked"));
}

void JobRecorder::start(const wire::TraceOrder& order, const Told& told) {
  if (is_writing() && streams_.newest().ended()) writing_.path.clear();  // an error ended it
  if (is_writing())
    return told(fail(ErrorKind::kInvalid, "the job writes a trace to " + writing_.path + " already", "stop it first"));
  if (place_.state_folder.empty()) return told(fail(ErrorKind::kUnavailable, "this daemon keeps no files"));
  if (auto ok = check_owner(members_.identity()); !ok) return told(tl::unexpected(ok.error()));
  if (streams_.is_opening())
    return told(fail(ErrorKind::kUnavailable, "the file of another trace is being opened",
                     "wait: its folder may be on a slow disk or server"));
  if (streams_.unfinished() >= kMostStreams)
    return told(fail(ErrorKind::kUnavailable, "the files of earlier traces are not complete yet",
                     "wait: the disk may be full or slow"));
  steps_.written.reset();
  open_stream(order.folder, [this, steps = order.steps, told](const Result<void>& opened) {
    if (!opened) return told(tl::unexpected(opened.error()));
    if (steps > 0) steps_.written = StepRange{newest_step_ + 1, newest_step_ + steps};
    told(writing_.path);
  });
}

Result<std::string> JobRecorder::stop() {
  if (writing_.path.empty()) return fail(ErrorKind::kInvalid, "the job writes no trace", "start one first");
  streams_.end();
  return std::exchange(writing_.path, {});
}

Result<std::string> JobRecorder::dump(const std::string& reason) {
  if (place_.state_folder.empty()) return fail(ErrorKind::kUnavailable, "this daemon keeps no files");
  if (dumps_.newest && !dumps_.newest->ended()) return dumps_.newest->path();
  changed_.add_decisions(*recorder_);
  auto header = header_of(members_, *view_, place_.host, changed_.options);
  auto dump = start_writer<RingDump>(RingDump::Content{recorder_, std::move(header), groups_, members_.identity().uid},
                                     place_.state_folder, reason);
  if (!dump) return tl::unexpected(dump.error());
  dumps_.newest = std::move(*dump);
  return dumps_.newest->path();
}

void JobRecorder::declared(std::uint32_t id, const std::string& name, const Gradients& gradients) {
  trace::TraceGroup group{.group = id, .name = name};
  const std::uint64_t min_bytes = members_.settings().options.bytes("compression_min_bytes");
  for (const auto& spec : gradients.specs())
    group.tensors.push_back(
        {spec.name, spec.bytes(), spec.forward_position,
         trace::TraceGroup::Elements{spec.dtype, model::is_encodable(spec, min_bytes) ? spec.bytes() : 0}});
  for (model::BucketIndex b = 0; b < gradients.buckets().size(); ++b)
    group.buckets.push_back(traced_bucket(gradients.map(), b, min_bytes));
  if (!streams_.empty()) streams_.newest().add(group);
  groups_.push_back(std::move(group));
}

void JobRecorder::forget(std::uint32_t group) {
  std::erase_if(groups_, [&](const trace::TraceGroup& one) { return one.group == group; });
  changed_.policies.erase(group);
}

// The first local worker's forward decides which steps are written. The forward behind the last of them belongs to the trace, too: it tells
// when that step has ended.
void JobRecorder::stage_began(std::size_t worker, const shm::StageRecord& began, TimeUs now_us) {
  const bool is_forward = worker == 0 && began.stage == 1;
  const trace::TraceRecord record(now_us, now_us,
                                  trace::StageTrace{.worker = static_cast<std::uint32_t>(worker),
                                                    .stage = began.stage,
                                                    .step = began.step,
                                                    .waited_us = began.waited_us,
                                                    .tells_waits = began.tells_waits});
  if (is_forward) newest_step_ = began.step;
  const bool closes = steps_.written && is_forward && began.step > steps_.written->last && is_writing();
  if (closes) {
    recorder_->add(record);
    static_cast<void>(stop());
  }
  // A trace that a user has started goes on first, so the option's may have fewer steps, or none.
  const bool is_free = writing_.path.empty() && !streams_.is_opening();
  if (is_forward && steps_.wanted && began.step >= steps_.wanted->first && is_free) {
    const StepRange wanted = *std::exchange(steps_.wanted, std::nullopt);
    const auto opened = [this, wanted](const Result<void>& ok) {
      if (ok) steps_.written = wanted;
      if (!ok) LOG(ERROR) << about(members_.identity()) << "there is no trace: " << ok.error().message();
    };
    if (began.step <= wanted.last) open_stream(members_.settings().options.text("trace"), opened);
  }
  if (!closes || is_writing()) recorder_->add(record);
  writing_.tell(members_, worker);
}

void JobRecorder::Writing::tell(const Membership& members, std::size_t worker) {
  if (path.empty() || worker >= members.workers().size() || !told.insert(worker).second) return;
  if (WorkerPort* const port = members.workers()[worker].port) port->complete(shm::TraceBeganRecord{});
}

void JobRecorder::memory_told(std::size_t worker, const shm::Record& record, TimeUs now_us) {
  const auto number = static_cast<std::uint32_t>(worker);
  if (record.kind() == shm::RecordKind::kLayer) {
    const auto told = record.as<shm::LayerRecord>();
    recorder_->add({now_us, now_us, trace::LayerTrace{number, told.group, told.layer, told.tensor, told.forward_ns}});
  } else if (record.kind() == shm::RecordKind::kMemory) {
    const auto told = record.as<shm::MemoryRecord>();
    recorder_->add({now_us, now_us,
                    trace::MemoryTrace{.worker = number,
                                       .part = static_cast<std::uint16_t>(told.part),
                                       .begin = told.begin,
                                       .end = told.end,
                                       .input_of = told.input_of,
                                       .bytes = told.bytes,
                                       .growing = told.growing}});
  } else {
    const auto told = record.as<shm::MemoryStepRecord>();
    recorder_->add(
        {now_us, now_us, trace::MemoryStepTrace{number, told.layers, told.amounts, told.samples, told.step}});
  }
}

void JobRecorder::gradients_ready(std::size_t worker, const shm::ReadyRecord& ready, TimeUs now_us) {
  recorder_->add({now_us, now_us,
                  trace::GradientTrace{.worker = static_cast<std::uint32_t>(worker),
                                       .group = ready.group,
                                       .first_tensor = ready.first_tensor,
                                       .tensors = ready.tensors,
                                       .generation = ready.generation,
                                       .last_step = ready.last_step}});
}

void JobRecorder::ordered(const wire::Launch& launch, std::uint64_t number, TimeUs now_us) {
  trace::OrderTrace order{.number = number,
                          .generation = launch.generation,
                          .offset = launch.offset,
                          .codec = launch.codec,
                          .half = static_cast<std::uint8_t>(launch.half),
                          .bucket = launch.bucket,
                          .group = static_cast<std::uint16_t>(launch.group),
                          .link = static_cast<std::uint16_t>(launch.link)};
  order.set_bytes(launch.bytes);
  recorder_->add({now_us, now_us, order});
}

void JobRecorder::transferred(std::size_t link, const TransferDone& done, TimeUs now_us) {
  trace::TransferTrace transfer{.number = done.token,
                                .bytes = done.bytes,
                                .wire_bytes = done.wire_bytes,
                                .link = static_cast<std::uint16_t>(link)};
  TimeUs end_us = 0;
  for (const StageSpan& span : done.spans) {
    end_us = span.end_us;
    if (span.stage != trace::TransferStage::kLink && span.begin_us == span.end_us) continue;  // there was nothing to do
    transfer.stage = static_cast<std::uint16_t>(span.stage);
    recorder_->add({span.begin_us, span.end_us, transfer});
  }
  transfer.stage = static_cast<std::uint16_t>(trace::TransferStage::kReport);
  if (end_us > 0) recorder_->add({end_us, now_us, transfer});
  for (const link::PeerTraffic& peer : done.traffic)
    recorder_->add({done.traffic_since_us, now_us,
                    trace::TrafficTrace{.sent_bytes = peer.sent_bytes,
                                        .busy_us = static_cast<std::uint64_t>(peer.busy_us),
                                        .peer = peer.peer,
                                        .resent = peer.resent,
                                        .rtt_us = peer.rtt_us,
                                        .link = static_cast<std::uint16_t>(link),
                                        .is_server = static_cast<std::uint16_t>(peer.is_server),
                                        .pushed_kb = static_cast<std::uint32_t>(peer.pushed_bytes / 1024),
                                        .pushing_us = static_cast<std::uint32_t>(peer.pushing_us)}});
  if (done.segments && is_writing()) record_segments(*recorder_, *done.segments, done.token, link);
  record_cpu(*recorder_, done.cpu, link);
  record_cpu(*recorder_, meters_.threads.measure(now_us), 0);
  if (const auto cores = meters_.cores.measure(now_us, processes_of(members_)))
    recorder_->add({cores->since_us, cores->until_us, cores->trace});
}

void JobRecorder::clock_answered(TimeUs asked_us, TimeUs leader_us, TimeUs now_us) {
  if (asked_us <= 0 || leader_us <= 0 || asked_us > now_us || now_us - asked_us > kLongestAnswerUs) return;
  recorder_->add({asked_us, now_us, trace::ClockTrace{leader_us}});
}

}  // namespace deft::daemon
