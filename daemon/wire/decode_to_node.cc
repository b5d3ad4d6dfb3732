// Checks the messages of a leader to a node.
#include <algorithm>
#include <unordered_set>

#include "core/base/text.h"
#include "core/model/update_cycle.h"
#include "daemon/wire/decoding.h"
#include "proto/plan_message.h"

namespace deft::daemon::wire {
namespace {

constexpr std::size_t kMaxBuckets = 1 << 20;

class NodeMessageReader {
 public:
  explicit NodeMessageReader(const NodeFacts& facts) : facts_(facts), link_epochs_(facts.link_epochs()) {}

  Result<ToNode> joined(const proto::Joined& from);
  Result<ToNode> declare_agreed(const proto::DeclareAgreed& from);
  Result<ToNode> launch_order(const proto::LaunchOrder& from);
  Result<ToNode> plan_order(const proto::PlanOrder& from);
  Result<ToNode> collective_start(const proto::CollectiveStart& from);
  Result<ToNode> collective_failed(const proto::CollectiveFailed& from);
  Result<ToNode> store_value(const proto::StoreValue& from);
  Result<ToNode> link_stop(const proto::LinkStop& from);
  Result<ToNode> link_replaced(const proto::LinkReplaced& from);
  Result<ToNode> progress(const proto::JobProgress& from);
  Result<ToNode> leave(const proto::Leave& from);
  Result<ToNode> stalled(const proto::Stalled& from);
  Result<ToNode> waiting(const proto::Waiting& from);
  Result<ToNode> released(const proto::Released& from);

 private:
  void own_node(const Joined& joined, const Field& at);
  Launch launch(const proto::Launch& from, const Field& at);
  std::optional<NodeFacts::Group> agreed(std::uint32_t id, const Field& at);
  void counts(const CollectiveStart& start, const NodeFacts::AskedCollective& asked, const Field& at);
  std::uint32_t link(std::uint32_t value, const Field& at) {
    return checks_.below(value, link_epochs_.size(), at, "links");
  }
  std::uint32_t epoch(std::uint32_t value, std::uint32_t link, std::uint32_t ahead, const Field& at) {
    return link < link_epochs_.size() ? checks_.at_most(value, link_epochs_[link] + ahead, at) : value;
  }

  const NodeFacts& facts_;
  const std::vector<std::uint32_t> link_epochs_;
  Checks checks_;
};

// The receiver finds itself where the leader says that it is.
void NodeMessageReader::own_node(const Joined& joined, const Field& at) {
  const NodeInfo& own = joined.nodes[joined.node];
  const Field item{&at, "nodes", joined.node};
  checks_.require(own.ranks == facts_.local_ranks(), {&item, "ranks"}, "they are not those of this node");
  checks_.require(own.links.size() == link_epochs_.size(), {&item, "links"}, "they are not those of this node");
}

Result<ToNode> NodeMessageReader::joined(const proto::Joined& from) {
  const Field at{nullptr, "joined"};
  Joined to;
  to.node = checks_.below(from.node(), static_cast<std::uint64_t>(from.nodes_size()), {&at, "node"}, "nodes");
  checks_.size(static_cast<std::size_t>(from.nodes_size()), 1, facts_.world(), {&at, "nodes"});
  std::unordered_set<std::uint32_t> seen;
  for (int i = 0; i < from.nodes_size() && !checks_.failed(); ++i) {
    const Field item{&at, "nodes", i};
    const auto& node = from.nodes(i);
    to.nodes.push_back({checks_.name(node.host(), {&item, "host"}, kMaxNameBytes),
                        read_ranks(node.ranks(), facts_.world(), {&item, "ranks"}, checks_),
                        read_links(node.links(), {&item, "links"}, checks_)});
    for (const auto rank : to.nodes.back().ranks)
      checks_.require(seen.insert(rank).second, {&item, "ranks"},
                      [&] { return "rank " + std::to_string(rank) + " is on two nodes"; });
  }
  if (!checks_.failed()) {
    checks_.require(seen.size() == facts_.world(), {&at, "nodes"}, [&] {
      return "they have " + std::to_string(seen.size()) + " ranks, and the world has " + std::to_string(facts_.world());
    });
    checks_.require(std::ranges::count(to.nodes.front().ranks, 0U) == 1, {&at, "nodes"}, "rank 0 is not on the first");
    own_node(to, at);
  }
  return checked<ToNode>(std::move(to), checks_);
}

Result<ToNode> NodeMessageReader::declare_agreed(const proto::DeclareAgreed& from) {
  const Field at{nullptr, "declare_agreed"};
  DeclareAgreed to{.group = from.group(), .buckets = {}, .hash = from.hash()};
  const auto group = facts_.group(from.group());
  checks_.require(group.has_value(), {&at, "group"},
                  [&] { return "this node has not declared a group " + std::to_string(from.group()); });
  checks_.size(static_cast<std::size_t>(from.buckets_size()), 1, kMaxBuckets, {&at, "buckets"});
  for (int i = 0; i < from.buckets_size() && !checks_.failed(); ++i) {
    const Field item{&at, "buckets", i};
    const auto& bucket = from.buckets(i);
    checks_.below(bucket.offset(), group->slot_bytes, {&item, "offset"}, "bytes in a slot");
    checks_.require(bucket.bytes() > 0, {&item, "bytes"}, "0");
    if (!checks_.failed()) checks_.at_most(bucket.bytes(), group->slot_bytes - bucket.offset(), {&item, "bytes"});
    to.buckets.push_back({bucket.offset(), bucket.bytes()});
  }
  return checked<ToNode>(std::move(to), checks_);
}

std::optional<NodeFacts::Group> NodeMessageReader::agreed(std::uint32_t id, const Field& at) {
  auto group = facts_.group(id);
  if (group && !group->buckets.empty()) return group;
  checks_.fail(at, "no group " + std::to_string(id) + " is agreed");
  return std::nullopt;
}

// The bytes may run on over the buckets behind it, so the end of the slot is their limit here. That these buckets follow each
// other in memory is checked where they are booked (Gradients::start).
Launch NodeMessageReader::launch(const proto::Launch& from, const Field& at) {
  const Launch to{from.link(),
                  from.group(),
                  from.bucket(),
                  from.generation(),
                  from.offset(),
                  from.bytes(),
                  from.last_step(),
                  from.cycle_step(),
                  from.priority(),
                  static_cast<model::CodecIndex>(from.codec()),
                  static_cast<model::AllReduceHalf>(from.half())};
  checks_.at_most(from.half(), static_cast<std::uint32_t>(model::AllReduceHalf::kAllGather), {&at, "half"});
  link(to.link, {&at, "link"});
  const auto group = agreed(to.group, {&at, "group"});
  if (!group) return to;
  checks_.below(to.bucket, group->buckets.size(), {&at, "bucket"}, "buckets");
  if (from.codec() != model::kWithResiduals) checks_.below(from.codec(), group->codecs, {&at, "codec"}, "codecs");
  if (checks_.failed()) return to;
  const model::Bucket& bucket = group->buckets[to.bucket];
  checks_.below(to.offset, bucket.bytes, {&at, "offset"}, "bytes in the bucket");
  checks_.require(to.bytes > 0, {&at, "bytes"}, "0");
  if (!checks_.failed()) checks_.at_most(to.bytes, group->slot_bytes - bucket.offset - to.offset, {&at, "bytes"});
  checks_.at_most(to.cycle_step, to.last_step, {&at, "cycle_step"});
  checks_.require(to.priority == 0 || to.priority == bucket.forward_position, {&at, "priority"},
                  "neither 0 nor the bucket's place in forward");
  return to;
}

Result<ToNode> NodeMessageReader::launch_order(const proto::LaunchOrder& from) {
  const Field at{nullptr, "launch_order"};
  LaunchOrder to{.first = from.first(), .launches = {}};
  checks_.require(to.first == facts_.next_number(), {&at, "first"}, [&] {
    return std::to_string(to.first) + ", and launch " + std::to_string(facts_.next_number()) + " is due";
  });
  checks_.require(from.launches_size() > 0, {&at, "launches"}, "none");
  to.launches.reserve(static_cast<std::size_t>(from.launches_size()));
  for (int i = 0; i < from.launches_size() && !checks_.failed(); ++i)
    to.launches.push_back(launch(from.launches(i), {&at, "launches", i}));
  return checked<ToNode>(std::move(to), checks_);
}

Result<ToNode> NodeMessageReader::plan_order(const proto::PlanOrder& from) {
  const Field at{nullptr, "plan_order"};
  PlanOrder to;
  to.group = from.group();
  to.reason = readable(from.reason(), kMaxTextBytes);
  const auto group = agreed(to.group, {&at, "group"});
  if (!group) return tl::unexpected(*checks_.error());
  std::vector<std::uint64_t> bytes;
  for (const auto& bucket : group->buckets) bytes.push_back(bucket.bytes);
  auto dated = messages::from_message(from.plan(), bytes);
  if (!dated) {
    Error error = dated.error();  // it names the field, as "plan.hash: ..."
    error.what = "plan_order." + error.what;
    return tl::unexpected(std::move(error));
  }
  const auto needed = model::slots_needed(dated->plan.cycles);
  checks_.require(needed <= group->slots, {&at, "plan.generations"}, [&] {
    return "they need " + std::to_string(needed) + " slots of the arena, of " + std::to_string(group->slots);
  });
  to.epoch = dated->epoch;
  to.activation_step = dated->activation_step;
  to.plan = std::move(dated->plan);
  return checked<ToNode>(std::move(to), checks_);
}

// The requests of this node's workers decide which memory may be written: a leader's counts must add up to them.
void NodeMessageReader::counts(const CollectiveStart& start, const NodeFacts::AskedCollective& asked, const Field& at) {
  const std::size_t first = facts_.first_position();
  for (std::size_t i = 0; i < asked.counts.size() && first + i < start.counts.size(); ++i)
    checks_.require(
        start.counts[first + i] == asked.counts[i], {&at, "counts", static_cast<std::int64_t>(first + i)}, [&] {
          return std::to_string(start.counts[first + i]) + ", and this rank has " + std::to_string(asked.counts[i]);
        });
  const bool gathers = asked.first.collective == ipc::Collective::kAllGather;
  std::uint64_t left = asked.first.capacity;
  for (std::size_t i = 0; i < start.counts.size() && !checks_.failed(); ++i) {
    const Field item{&at, "counts", static_cast<std::int64_t>(i)};
    if (!gathers) {
      checks_.require(start.counts[i] == asked.first.count, item, "not the count of this node");
    } else if (start.counts[i] > left) {
      checks_.fail(item,
                   "the ranks bring more elements than the " + std::to_string(asked.first.capacity) + " expected");
    } else {
      left -= start.counts[i];
    }
  }
  if (gathers) checks_.require(left == 0, {&at, "counts"}, "the ranks bring fewer elements than expected");
}

Result<ToNode> NodeMessageReader::collective_start(const proto::CollectiveStart& from) {
  const Field at{nullptr, "collective_start"};
  CollectiveStart to;
  to.number = from.number();
  checks_.require(to.number == facts_.next_number(), {&at, "number"}, [&] {
    return std::to_string(to.number) + ", and launch " + std::to_string(facts_.next_number()) + " is due";
  });
  to.link = link(from.link(), {&at, "link"});
  to.name = checks_.text(from.name(), {&at, "name"}, kMaxLongNameBytes);
  checks_.size(static_cast<std::size_t>(from.counts_size()), facts_.world(), facts_.world(), {&at, "counts"});
  const auto asked = facts_.collective(to.name);
  const bool complete = asked && !asked->started && asked->counts.size() == facts_.local_ranks().size();
  checks_.require(complete, {&at, "name"}, [&] { return "not all workers of this node asked for '" + to.name + "'"; });
  if (checks_.failed()) return tl::unexpected(*checks_.error());
  checks_.require(asked->first.root < facts_.world(), {&at, "name"}, "its root is no rank");
  to.counts.assign(from.counts().begin(), from.counts().end());
  counts(to, *asked, at);
  return checked<ToNode>(std::move(to), checks_);
}

Result<ToNode> NodeMessageReader::collective_failed(const proto::CollectiveFailed& from) {
  const Field at{nullptr, "collective_failed"};
  CollectiveFailed to;
  to.name = checks_.text(from.name(), {&at, "name"}, kMaxLongNameBytes);
  const auto asked = facts_.collective(to.name);
  checks_.require(asked && !asked->started && asked->counts.size() == facts_.local_ranks().size(), {&at, "name"},
                  [&] { return "not all workers of this node asked for '" + to.name + "'"; });
  to.error = read_error(from.error(), {&at, "error"}, checks_);
  return checked<ToNode>(std::move(to), checks_);
}

Result<ToNode> NodeMessageReader::store_value(const proto::StoreValue& from) {
  const Field at{nullptr, "store_value"};
  StoreValue to{.request = from.request(), .values = {}};
  const auto values = static_cast<std::size_t>(from.values_size());
  if (const auto asked = facts_.keys_asked(to.request)) checks_.size(values, *asked, *asked, {&at, "values"});
  checks_.size(values, 1, kMaxStoreKeys, {&at, "values"});
  for (int i = 0; i < from.values_size() && !checks_.failed(); ++i) {
    checks_.at_most(from.values(i).size(), kMaxStoreValueBytes, {&at, "values", i});
    to.values.push_back(bytes_of(from.values(i)));
  }
  return checked<ToNode>(std::move(to), checks_);
}

Result<ToNode> NodeMessageReader::link_stop(const proto::LinkStop& from) {
  const Field at{nullptr, "link_stop"};
  LinkStop to;
  to.link = link(from.link(), {&at, "link"});
  to.epoch = epoch(from.epoch(), to.link, 0, {&at, "epoch"});
  to.cause = read_error(from.cause(), {&at, "cause"}, checks_);
  return checked<ToNode>(std::move(to), checks_);
}

Result<ToNode> NodeMessageReader::link_replaced(const proto::LinkReplaced& from) {
  const Field at{nullptr, "link_replaced"};
  LinkReplaced to;
  to.link = link(from.link(), {&at, "link"});
  to.epoch = epoch(from.epoch(), to.link, 1, {&at, "epoch"});
  to.by = link(from.by(), {&at, "by"});
  checks_.require(to.by != to.link, {&at, "by"}, "a link that replaces itself");
  to.from = checks_.at_most(from.from(), facts_.next_number(), {&at, "from"});
  return checked<ToNode>(to, checks_);
}

Result<ToNode> NodeMessageReader::progress(const proto::JobProgress& from) {
  const Field at{nullptr, "job_progress"};
  JobProgress to;
  checks_.size(static_cast<std::size_t>(from.links_size()), link_epochs_.size(), link_epochs_.size(), {&at, "links"});
  for (int i = 0; i < from.links_size() && !checks_.failed(); ++i) {
    const Field item{&at, "links", i};
    to.links.push_back(
        {epoch(from.links(i).epoch(), static_cast<std::uint32_t>(i), 0, {&item, "epoch"}),
         checks_.at_most(from.links(i).finished_below(), facts_.next_number(), {&item, "finished_below"})});
  }
  return checked<ToNode>(std::move(to), checks_);
}

Result<ToNode> NodeMessageReader::leave(const proto::Leave& from) {
  return checked<ToNode>(Leave{read_ranks(from.ranks(), facts_.world(), {nullptr, "leave.ranks"}, checks_)}, checks_);
}

Result<ToNode> NodeMessageReader::stalled(const proto::Stalled& from) {
  const Field at{nullptr, "stalled"};
  checks_.below(from.rank(), facts_.world(), {&at, "rank"}, "ranks");
  return checked<ToNode>(read(from, at, checks_), checks_);
}

Result<ToNode> NodeMessageReader::waiting(const proto::Waiting& from) {
  const Field at{nullptr, "waiting"};
  const auto group = agreed(from.group(), {&at, "group"});
  checks_.below(from.bucket(), group ? group->buckets.size() : 0, {&at, "bucket"}, "buckets");
  return checked<ToNode>(Waiting{from.group(), from.bucket(), from.generation()}, checks_);
}

Result<ToNode> NodeMessageReader::released(const proto::Released& from) {
  const Field at{nullptr, "released.group"};
  const auto group = agreed(from.group(), at);
  checks_.require(group && group->may_go, at,
                  [&] { return "not all workers of this node have released group " + std::to_string(from.group()); });
  return checked<ToNode>(Released{from.group()}, checks_);
}

Result<ToNode> read_failure(const proto::Failure& from) {
  Checks checks;
  return checked<ToNode>(Failure{read_error(from, {nullptr, "failure"}, checks), from.suspected()}, checks);
}

Result<ToNode> read_trace_order(const proto::TraceOrder& from) {
  Checks checks;
  const Field at{nullptr, "trace_order"};
  TraceOrder to;
  to.action = read_enum(from.action(), ipc::TraceAction::kDump, ipc::TraceAction::kStop, {&at, "action"}, checks);
  to.folder = checks.text(from.folder(), {&at, "folder"}, kMaxLongNameBytes);
  const bool starts = to.action == ipc::TraceAction::kStart;
  checks.require(starts == to.folder.starts_with('/'), {&at, "folder"}, "only a start has one, from the root");
  to.steps = from.steps();
  checks.require(starts || to.steps == 0, {&at, "steps"}, "only a start has them");
  return checked<ToNode>(std::move(to), checks);
}

Result<ToNode> read_late(const proto::Late& from) {
  Checks checks;
  const Field at{nullptr, "late"};
  Late to;
  to.collective = checks.text(from.collective(), {&at, "collective"}, kMaxLongNameBytes);
  to.group = checks.below(from.group(), kMaxGroupNumbers, {&at, "group"}, "numbers of groups");
  to.age_ms = checks.at_most(from.age_ms(), kMostMs, {&at, "age_ms"});
  return checked<ToNode>(std::move(to), checks);
}

}  // namespace

Result<ToNode> decode(const proto::ToNode& message, const NodeFacts& facts) {
  using Kind = proto::ToNode;
  NodeMessageReader reader(facts);
  switch (message.message_case()) {
    case Kind::kJoined: return reader.joined(message.joined());
    case Kind::kBegin: return ToNode(Begin{});
    case Kind::kDeclareAgreed: return reader.declare_agreed(message.declare_agreed());
    case Kind::kLaunchOrder: return reader.launch_order(message.launch_order());
    case Kind::kPlanOrder: return reader.plan_order(message.plan_order());
    case Kind::kCollectiveStart: return reader.collective_start(message.collective_start());
    case Kind::kCollectiveFailed: return reader.collective_failed(message.collective_failed());
    case Kind::kStoreValue: return reader.store_value(message.store_value());
    case Kind::kLinkStop: return reader.link_stop(message.link_stop());
    case Kind::kLinkReplaced: return reader.link_replaced(message.link_replaced());
    case Kind::kJobProgress: return reader.progress(message.job_progress());
    case Kind::kHeartbeat: return ToNode(read(message.heartbeat()));
    case Kind::kFailure: return read_failure(message.failure());
    case Kind::kLeave: return reader.leave(message.leave());
    case Kind::kStalled: return reader.stalled(message.stalled());
    case Kind::kWaiting: return reader.waiting(message.waiting());
    case Kind::kTraceOrder: return read_trace_order(message.trace_order());
    case Kind::kLate: return read_late(message.late());
    case Kind::kReleased: return reader.released(message.released());
    case Kind::MESSAGE_NOT_SET: break;
  }
  return fail(ErrorKind::kViolation, "to_node: it holds no message of this version");
}

}  // namespace deft::daemon::wire
