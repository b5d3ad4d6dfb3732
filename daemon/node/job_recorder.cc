#include "daemon/node/job_recorder.h"

#include <glog/logging.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

namespace deft::daemon {
namespace {

constexpr TimeUs kLongestAnswerUs = 60'000'000;  // an answer that took longer says nothing about the clocks

// A job's name may hold what a file's name must not.
std::string file_name(const std::string& job, std::uint32_t node) {
  std::string name;
  for (const char c : job) name += std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' ? c : '_';
  return name.substr(0, 100) + "-node" + std::to_string(node) + ".trace";
}

Result<void> make_folder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0755) == 0) return {};
  struct ::stat status {};
  if (errno == EEXIST && ::stat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) return {};
  return fail(ErrorKind::kInvalid, "the folder " + folder + " of DEFT_TRACE cannot be made: " + std::strerror(errno),
              "give a folder in which you may write, on each node");
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

JobRecorder::JobRecorder(const Membership& members, std::shared_ptr<const View> view, std::string host)
    : members_(members), view_(std::move(view)), host_(std::move(host)) {}

trace::TraceHeader JobRecorder::header() const {
  trace::TraceHeader header{.job = members_.identity().name,
                            .incarnation = view_->epoch(),
                            .node = view_->node(),
                            .nodes = view_->node_count(),
                            .host = host_,
                            .ranks = members_.ranks()};
  header.options = members_.settings().agreed();
  for (const auto& link : view_->links()) header.links.push_back(link.name());
  return header;
}

Result<void> JobRecorder::begin() {
  const Config& options = members_.settings().options;
  if (options.text("trace").empty()) return {};
  if (::geteuid() != members_.identity().uid)
    return fail(ErrorKind::kUnavailable, "DEFT_TRACE is set, and this node's daemon belongs to another user",
                "let deftrun start a daemon of your own: DEFT_SOCKET=/tmp/my-deftd.sock");
  if (const std::string text = options.text("trace_steps"); !text.empty()) {
    const auto steps = parse_step_range(text);
    if (!steps) return tl::unexpected(steps.error());
    steps_ = *steps;
    return make_folder(options.text("trace"));
  }
  return open_stream();
}

Result<void> JobRecorder::open_stream() {
  const std::string folder = members_.settings().options.text("trace");
  if (auto ok = make_folder(folder); !ok) return ok;
  const std::string path = folder + "/" + file_name(members_.identity().name, view_->node());
  auto writer = trace::TraceWriter::create(path, header());
  if (!writer) return tl::unexpected(writer.error());
  const auto complain = [job = members_.identity().name](const Error& error) {
    LOG(ERROR) << "[" << job << "] the trace ends here: " << error.message();
  };
  stream_ = std::make_unique<trace::TraceStream>(recorder_, std::move(*writer), complain);
  for (const auto& group : groups_) stream_->add(group);
  LOG(INFO) << "[" << members_.identity().name << "] writes a trace to " << path;
  return {};
}

void JobRecorder::end() {
  if (stream_) stream_->end();
}

void JobRecorder::declared(std::uint32_t id, const std::string& name, const Gradients& gradients) {
  trace::TraceGroup group{.group = id, .name = name};
  for (const auto& spec : gradients.specs()) group.tensors.push_back({spec.name, spec.bytes(), spec.forward_position});
  for (model::BucketIndex b = 0; b < gradients.buckets().size(); ++b) {
    const model::Bucket& bucket = gradients.buckets()[b];
    group.buckets.push_back({bucket.bytes, bucket.forward_position, gradients.map().tensors_of(b)});
  }
  if (stream_) stream_->add(group);
  groups_.push_back(std::move(group));
}

// The first local worker's forward decides which steps are written.
void JobRecorder::stage_began(std::size_t worker, const shm::StageRecord& began, TimeUs now_us) {
  const bool is_forward = worker == 0 && began.stage == 1;
  if (steps_ && is_forward && began.step > steps_->last) end();
  if (steps_ && is_forward && !stream_ && began.step >= steps_->first && began.step <= steps_->last) {
    if (auto ok = open_stream(); !ok) {
      LOG(ERROR) << "[" << members_.identity().name << "] there is no trace: " << ok.error().message();
      steps_.reset();
    }
  }
  recorder_->add({now_us, now_us,
                  trace::StageTrace{.worker = static_cast<std::uint32_t>(worker),
                                    .stage = began.stage,
                                    .step = began.step,
                                    .waited_us = began.waited_us}});
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
}

void JobRecorder::clock_answered(TimeUs asked_us, TimeUs leader_us, TimeUs now_us) {
  if (asked_us <= 0 || leader_us <= 0 || asked_us > now_us || now_us - asked_us > kLongestAnswerUs) return;
  recorder_->add({asked_us, now_us, trace::ClockTrace{leader_us}});
}

}  // namespace deft::daemon
