// From messages.h to bytes.
#include "daemon/wire/codec.h"
#include "proto/control.pb.h"
#include "proto/plan_message.h"

namespace deft::daemon::wire {
namespace {

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void write(const Error& from, proto::Failure& to) {
  to.set_kind(static_cast<std::uint32_t>(from.kind));
  to.set_what(from.what);
  to.set_fix(from.fix);
  to.set_where(from.where);
}

void write(const std::vector<LinkAddress>& from, google::protobuf::RepeatedPtrField<proto::LinkAddress>& to) {
  for (const auto& link : from) {
    auto& added = *to.Add();
    added.set_name(link.name);
    added.set_address(link.address);
  }
}

void write(const CollectiveSpec& from, proto::CollectiveSpec& to) {
  to.set_rank(from.rank);
  to.set_collective(static_cast<std::uint32_t>(from.collective));
  to.set_terms(from.terms);
  if (from.collective == ipc::Collective::kBarrier) return;
  to.set_dtype(static_cast<std::uint32_t>(from.dtype));
  to.set_reduce_op(static_cast<std::uint32_t>(from.op));
  to.set_root(from.root);
  to.set_count(from.count);
  to.set_capacity(from.capacity);
}

// One function for each message. The messages that go both ways are written into either envelope.
void put(const Join& from, proto::ToLeader& out) {
  auto& join = *out.mutable_join();
  join.set_host(from.host);
  join.set_deft_version(from.deft_version);
  join.set_world(from.world);
  join.set_user(from.user);
  join.set_token(from.token);
  join.mutable_ranks()->Assign(from.ranks.begin(), from.ranks.end());
  for (const auto& [name, value] : from.settings) {
    auto& setting = *join.add_settings();
    setting.set_name(name);
    setting.set_value(value);
  }
  write(from.links, *join.mutable_links());
  if (from.refusal) write(*from.refusal, *join.mutable_refusal());
}

void put(const LinksOpen&, proto::ToLeader& out) { out.mutable_links_open(); }

void put(const Declare& from, proto::ToLeader& out) {
  auto& declare = *out.mutable_declare();
  declare.set_group(from.group);
  declare.set_name(from.name);
  declare.set_slots(from.slots);
  declare.set_reduce_op(static_cast<std::uint32_t>(from.op));
  for (const auto& spec : from.tensors) {
    auto& tensor = *declare.add_tensors();
    tensor.set_name(spec.name);
    tensor.set_dtype(static_cast<std::uint32_t>(spec.dtype));
    tensor.set_forward_position(spec.forward_position);
    tensor.set_codec(spec.codec);
    tensor.mutable_shape()->Assign(spec.shape.begin(), spec.shape.end());
  }
}

void put(const Release& from, proto::ToLeader& out) { out.mutable_release()->set_group(from.group); }

void put(const Released& from, proto::ToNode& out) { out.mutable_released()->set_group(from.group); }

void put(const CollectiveReady& from, proto::ToLeader& out) {
  auto& ready = *out.mutable_collective_ready();
  ready.set_name(from.name);
  for (const auto& spec : from.specs) write(spec, *ready.add_specs());
}

void put(const GradientStatistics& from, proto::ToLeader& out) {
  auto& statistics = *out.mutable_gradient_statistics();
  statistics.set_group(from.group);
  statistics.set_step(from.step);
  statistics.set_ranks(from.ranks);
  statistics.set_local_norms(from.local_norms);
  statistics.set_average_norms(from.average_norms);
  statistics.set_loss(from.loss);
  statistics.set_learning_rate(from.learning_rate);
  statistics.set_target(from.target);
  statistics.set_merged_as_sums(from.merged_as_sums);
}

void put(const StepTime& from, proto::ToLeader& out) {
  auto& step_time = *out.mutable_step_time();
  step_time.set_us(from.us);
  for (const auto& codec : from.codecs) {
    auto& told = *step_time.add_codecs();
    told.set_codec(codec.codec);
    told.set_bytes(codec.bytes);
    told.set_encode_us(codec.encode_us);
    told.set_decode_us(codec.decode_us);
  }
}

void put(const StoreSet& from, proto::ToLeader& out) {
  out.mutable_store_set()->set_key(from.key);
  out.mutable_store_set()->set_value(text_of(from.value));
}

void put(const StoreGet& from, proto::ToLeader& out) {
  out.mutable_store_get()->set_request(from.request);
  for (const auto& key : from.keys) out.mutable_store_get()->add_keys(key);
}

void put(const LinkFailed& from, proto::ToLeader& out) {
  out.mutable_link_failed()->set_link(from.link);
  out.mutable_link_failed()->set_epoch(from.epoch);
  write(from.cause, *out.mutable_link_failed()->mutable_cause());
}

void put(const LinkStopped& from, proto::ToLeader& out) {
  out.mutable_link_stopped()->set_link(from.link);
  out.mutable_link_stopped()->set_epoch(from.epoch);
  out.mutable_link_stopped()->set_finished_below(from.finished_below);
}

void put(const NodeProgress& from, proto::ToLeader& out) {
  auto& progress = *out.mutable_node_progress();
  for (const auto& link : from.links) {
    auto& told = *progress.add_links();
    told.set_epoch(link.epoch);
    told.set_finished_below(link.finished_below);
    told.set_started_below(link.started_below);
  }
}

void put(const Joined& from, proto::ToNode& out) {
  auto& joined = *out.mutable_joined();
  joined.set_node(from.node);
  for (const auto& info : from.nodes) {
    auto& node = *joined.add_nodes();
    node.set_host(info.host);
    node.mutable_ranks()->Assign(info.ranks.begin(), info.ranks.end());
    write(info.links, *node.mutable_links());
  }
}

void put(const Begin&, proto::ToNode& out) { out.mutable_begin(); }

void put(const DeclareAgreed& from, proto::ToNode& out) {
  auto& agreed = *out.mutable_declare_agreed();
  agreed.set_group(from.group);
  agreed.set_hash(from.hash);
  for (const auto& range : from.buckets) {
    auto& bucket = *agreed.add_buckets();
    bucket.set_offset(range.offset);
    bucket.set_bytes(range.bytes);
  }
}

void put(const LaunchOrder& from, proto::ToNode& out) {
  auto& order = *out.mutable_launch_order();
  order.set_first(from.first);
  for (const auto& launch : from.launches) {
    auto& to = *order.add_launches();
    to.set_link(launch.link);
    to.set_group(launch.group);
    to.set_bucket(launch.bucket);
    to.set_generation(launch.generation);
    to.set_offset(launch.offset);
    to.set_bytes(launch.bytes);
    to.set_last_step(launch.last_step);
    to.set_cycle_step(launch.cycle_step);
    to.set_priority(launch.priority);
    to.set_half(static_cast<std::uint32_t>(launch.half));
    to.set_codec(launch.codec);
  }
}

void put(const PlanOrder& from, proto::ToNode& out) {
  auto& order = *out.mutable_plan_order();
  order.set_group(from.group);
  *order.mutable_plan() = messages::to_message(messages::ScheduledPlan{from.epoch, from.activation_step, from.plan});
  order.set_reason(from.reason);
}

void put(const CollectiveStart& from, proto::ToNode& out) {
  auto& start = *out.mutable_collective_start();
  start.set_number(from.number);
  start.set_link(from.link);
  start.set_name(from.name);
  start.mutable_counts()->Assign(from.counts.begin(), from.counts.end());
}

void put(const CollectiveFailed& from, proto::ToNode& out) {
  out.mutable_collective_failed()->set_name(from.name);
  write(from.error, *out.mutable_collective_failed()->mutable_error());
}

void put(const StoreValue& from, proto::ToNode& out) {
  out.mutable_store_value()->set_request(from.request);
  for (const auto& value : from.values) out.mutable_store_value()->add_values(text_of(value));
}

void put(const LinkStop& from, proto::ToNode& out) {
  out.mutable_link_stop()->set_link(from.link);
  out.mutable_link_stop()->set_epoch(from.epoch);
  write(from.cause, *out.mutable_link_stop()->mutable_cause());
}

void put(const LinkReplaced& from, proto::ToNode& out) {
  out.mutable_link_replaced()->set_link(from.link);
  out.mutable_link_replaced()->set_epoch(from.epoch);
  out.mutable_link_replaced()->set_by(from.by);
  out.mutable_link_replaced()->set_from(from.from);
}

void put(const JobProgress& from, proto::ToNode& out) {
  auto& progress = *out.mutable_job_progress();
  for (const auto& link : from.links) {
    auto& told = *progress.add_links();
    told.set_epoch(link.epoch);
    told.set_finished_below(link.finished_below);
  }
}

template <typename To>

void put(const Heartbeat& from, To& out) {
  proto::Heartbeat& heartbeat = *out.mutable_heartbeat();
  heartbeat.set_reply(from.reply);
  heartbeat.set_sent_us(static_cast<std::uint64_t>(from.sent_us));
  heartbeat.set_answered_us(static_cast<std::uint64_t>(from.answered_us));
}

template <typename To>

void put(const Failure& from, To& out) {
  write(from.error, *out.mutable_failure());
  out.mutable_failure()->set_suspected(from.suspected);
}

void put(const TraceOrder& from, proto::ToNode& out) {
  out.mutable_trace_order()->set_action(static_cast<std::uint32_t>(from.action));
  out.mutable_trace_order()->set_folder(from.folder);
  out.mutable_trace_order()->set_steps(from.steps);
}

template <typename To>

void put(const Leave& from, To& out) {
  out.mutable_leave()->mutable_ranks()->Assign(from.ranks.begin(), from.ranks.end());
}

template <typename To>

void put(const Stalled& from, To& out) {
  out.mutable_stalled()->set_rank(from.rank);
  out.mutable_stalled()->set_tensor(from.tensor);
  out.mutable_stalled()->set_step(from.step);
  out.mutable_stalled()->set_age_ms(from.age_ms);
  out.mutable_stalled()->set_duty(static_cast<std::uint32_t>(from.duty));
}

void put(const Late& from, proto::ToNode& out) {
  out.mutable_late()->set_collective(from.collective);
  out.mutable_late()->set_group(from.group);
  out.mutable_late()->set_age_ms(from.age_ms);
}

template <typename To>

void put(const Waiting& from, To& out) {
  out.mutable_waiting()->set_group(from.group);
  out.mutable_waiting()->set_bucket(from.bucket);
  out.mutable_waiting()->set_generation(from.generation);
}

proto::Envelope envelope_of(const Header& header) {
  proto::Envelope envelope;
  envelope.set_version(header.version);
  envelope.set_job(header.job);
  envelope.set_incarnation(header.incarnation);
  return envelope;
}

}  // namespace

std::string encode(const Header& header, const ToLeader& message) {
  proto::Envelope envelope = envelope_of(header);
  std::visit([&](const auto& one) { put(one, *envelope.mutable_to_leader()); }, message);
  return envelope.SerializeAsString();
}

std::string encode(const Header& header, const ToNode& message) {
  proto::Envelope envelope = envelope_of(header);
  std::visit([&](const auto& one) { put(one, *envelope.mutable_to_node()); }, message);
  return envelope.SerializeAsString();
}

std::string joined_as_node(std::uint32_t node) {
  proto::Envelope envelope;  // protobuf merges the pieces of a message
  envelope.mutable_to_node()->mutable_joined()->set_node(node);
  return envelope.SerializeAsString();
}

std::string encode_refusal(const Header& header, const Error& error) {
  proto::Envelope envelope = envelope_of(header);
  write(error, *envelope.mutable_refusal());
  return envelope.SerializeAsString();
}

}  // namespace deft::daemon::wire
